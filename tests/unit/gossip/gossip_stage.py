"""One core on a stage, with partners that the test plays."""

from __future__ import annotations

import random
from typing import Any

from chaplain.gossip import codec
from chaplain.gossip import member_record as cards
from chaplain.gossip.codec import Action, Body, Cards, MessageType
from chaplain.gossip.core import GossipCore
from chaplain.gossip.events import ALL, EventId, GossipInput, GossipParcel
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.units import SECOND_NS
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel

START_NS = 1000 * SECOND_NS


class Partner:
    """Another node, played by the test."""

    def __init__(self, number: int) -> None:
        self.identity = Identity(bytes([number]) * 32)
        self.identifier = self.identity.identifier
        self.uri = f"tcp://127.0.0.1:{7000 + number}"
        self.peer = Peer(bytes([number]) * 16, self.identifier, self.identity.key, self.uri)
        self._counter = 0

    def card(self, incarnation: int = 1, uri: str = "") -> cards.MemberRecord:
        return cards.make(self.identity, uri or self.uri, incarnation)

    def next_id(self, epoch: int = 1) -> EventId:
        self._counter += 1
        return EventId(self.identifier, epoch, self._counter)

    def message(
        self, kind: MessageType, content: bytes, *, target: int = ALL, action: Action = Action.NONE, epoch: int = 1
    ) -> codec.GossipMessage:
        return codec.sign_message(self.identity, self.next_id(epoch), kind, content, action=action, target=target)

    def leave(self, subject: int, incarnation: int) -> codec.LeaveMessage:
        return codec.sign_leave(self.identity, self.next_id(), subject, incarnation)


class Stage:
    def __init__(self, settings: GossipSettings | None = None, **more: Any) -> None:
        self.own = Partner(100)
        self.now_ns = START_NS
        self.settings = settings or GossipSettings()
        self.core = GossipCore(
            self.own.identity, self.own.peer.instance, self.own.uri, self.settings, random.Random(1), START_NS,
            **{"incarnation": 1, **more},
        )  # fmt: skip
        self.by_instance: dict[bytes, Partner] = {}

    def step(self, event: GossipInput) -> list[Any]:
        return list(self.core.step(self.now_ns, event))

    def wait(self, duration_ns: int) -> list[Any]:
        """Let time pass as a host does, waking the core whenever it asks."""
        from chaplain.core import Woken

        end_ns = self.now_ns + duration_ns
        effects: list[Any] = []
        while self.core.deadline() <= end_ns:
            self.now_ns = max(self.now_ns, self.core.deadline())
            effects += self.step(Woken())
        self.now_ns = end_ns
        return effects

    def meet(self, *partners: Partner, incarnation: int = 1) -> list[Any]:
        """Sessions with these, who show their cards."""
        effects: list[Any] = []
        for partner in partners:
            self.by_instance[partner.peer.instance] = partner
            effects += self.step(Entered(partner.peer, {}))
            effects += self.tell(partner, Cards((partner.card(incarnation),)))
        return effects

    def part(self, partner: Partner) -> list[Any]:
        return self.step(Exited(partner.peer, "closed"))

    def tell(self, partner: Partner, body: Body) -> list[Any]:
        return self.tell_bytes(partner, codec.encode(body))

    def tell_bytes(self, partner: Partner, body: bytes) -> list[Any]:
        return self.step(GossipParcel(partner.peer, Parcel(partner.identifier, Layer.GOSSIP, body)))

    def said(self, effects: list[Any]) -> list[tuple[Partner, Body]]:
        """What went to whom."""
        return [
            (self.by_instance[effect.instance], codec.decode(parcel.decode(effect.content).body))
            for effect in effects
            if isinstance(effect, Whisper)
        ]

    def said_of(self, effects: list[Any], kind: type[Any] | MessageType) -> list[tuple[Partner, Any]]:
        """Of these, bodies of one class, or messages of one type."""
        if isinstance(kind, MessageType):
            return [
                pair for pair in self.said(effects) if isinstance(pair[1], codec.GossipMessage) and pair[1].type == kind
            ]
        return [pair for pair in self.said(effects) if isinstance(pair[1], kind)]


def of(effects: list[Any], kind: type[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]
