"""A node that has the cluster's key and lies.

Run as `python -m tests.support.rogue_member CONFIG KIND [VICTIM INSTANCE]`.

`liar` is a real node with its own identity that tells every lie gossip has words for, about everybody, many times a
second, invents members by the thousand, and passes on nothing that others say. `impostor` shows a victim's public key.
`spy` finds out the victim's instance, which is also the name of its connections, and `twin` calls itself by it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from chaplain.config import load_node
from chaplain.core import HostEffect
from chaplain.gossip import codec, payloads
from chaplain.gossip import member_record as cards
from chaplain.gossip.codec import (
    Accuse,
    Action,
    Body,
    Cards,
    Compare,
    EntryStanding,
    LeaveMessage,
    ListEntry,
    MessageType,
)
from chaplain.gossip.events import ALL, EventId, MemberView
from chaplain.gossip.member_record import INCARNATION_MAX, MemberRecord
from chaplain.gossip.payloads import Health, LastHeard
from chaplain.link.auth.identity import Identity, from_text, identifier_of
from chaplain.link.events import Forget, Meet
from chaplain.mesh.events import Whisper
from chaplain.node.core import NodeCore, NodeInput
from chaplain.runtime.layers import node
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel

INVENTED = 20_000
CARDS_PER_BODY = 32
BODIES_PER_TURN = 10
TURN_NS = 50_000_000
REDIAL_NS = 1_000_000_000


class Liar(NodeCore):
    """Does what a node does, and then lies."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        identity = arguments[1]
        assert isinstance(identity, Identity)
        self._identity = identity
        self._invented = 0
        self._chance = Random(1)
        self._next_ns = self.started_ns + TURN_NS
        self._redial_ns = self.started_ns + REDIAL_NS
        self.gossip._dissemination.forward = lambda body, sender: None  # type: ignore[method-assign]

    def deadline(self) -> int | None:
        return min(super().deadline() or self._next_ns, self._next_ns)

    def step(self, now_ns: int, event: NodeInput) -> list[HostEffect]:
        effects = super().step(now_ns, event)
        if now_ns < self._next_ns:
            return effects
        self._next_ns = now_ns + TURN_NS
        self._out = []
        if now_ns >= self._redial_ns:
            self._redial_ns = now_ns + REDIAL_NS
            self._redial()
        known = {member.identifier: member for member in self.gossip.members()}
        victims = [known[identifier] for identifier in sorted(self.mesh.peers()) if identifier in known]
        for body in [*self._lies(victims), *self._inventions()]:
            content = parcel.encode(Parcel(self.identifier, Layer.GOSSIP, codec.encode(body)))
            for peer in self.mesh.peers().values():
                self._work.append((self._mesh, Whisper(peer.instance, content)))
        self._run()
        return effects + self._out

    def _redial(self) -> None:
        """Whoever has parted from us is greeted again."""
        for neighbour in self.settings.neighbours:
            self._work += [(self._link, Forget(neighbour)), (self._link, Meet(neighbour))]
        self._run()

    def _lies(self, victims: list[MemberView]) -> list[Body]:
        lies: list[Body] = [Cards((cards.make(self._identity, self.settings.link.endpoint, INCARNATION_MAX),))]
        for victim in victims:
            lies += self._lies_about(victim)
        entries = tuple(ListEntry(victim.identifier, victim.incarnation, EntryStanding.LOST) for victim in victims)
        return [*lies, Compare(1, 0, True, entries)]

    def _lies_about(self, victim: MemberView) -> list[Body]:
        me, dissemination = self._identity, self.gossip._dissemination
        on_behalf = codec.sign_leave(me, dissemination._next_id(), victim.identifier, victim.incarnation)
        at_the_end = codec.sign_leave(me, dissemination._next_id(), victim.identifier, INCARNATION_MAX)
        its_id = EventId(victim.identifier, victim.incarnation, dissemination._next_id().counter)
        own_word = LeaveMessage(0, its_id, victim.key, victim.identifier, victim.incarnation, on_behalf.signature)
        raised = cards.make(me, victim.uri, INCARNATION_MAX)
        forged = MemberRecord(
            victim.identifier, victim.key, INCARNATION_MAX, raised.version, victim.uri, raised.signature
        )
        silent = payloads.put_status(LastHeard(victim.identifier, victim.incarnation, 0xFFFFFFFF))
        lies: list[Body] = [on_behalf, at_the_end, own_word, Cards((forged,), (own_word,))]
        lies += [Accuse(victim.incarnation), Accuse(INCARNATION_MAX)]
        for incarnation in (victim.incarnation, INCARNATION_MAX):
            health = payloads.put_health(Health(victim.identifier, incarnation))
            lies.append(self._message(MessageType.HEALTH, health, Action.STATUS))
        return [*lies, self._message(MessageType.STATUS, silent, Action.NONE)]

    def _message(self, kind: MessageType, content: bytes, action: Action) -> Body:
        return codec.sign_message(
            self._identity, self.gossip._dissemination._next_id(), kind, content, action=action, target=ALL
        )

    def _inventions(self) -> list[Body]:
        if self._invented >= INVENTED or not self.mesh.peers():
            return []
        bodies: list[Body] = []
        for _ in range(BODIES_PER_TURN):
            bodies.append(Cards(tuple(self._invent() for _ in range(CARDS_PER_BODY))))
        if self._invented >= INVENTED:
            print("invented", flush=True)
        return bodies

    def _invent(self) -> MemberRecord:
        self._invented += 1
        return cards.make(Identity.generate(self._chance), f"tcp://127.0.0.1:{1 + self._invented % 1000}", 1)


class Spy(NodeCore):
    """Says once which instance the victim has."""

    victim = 0

    def step(self, now_ns: int, event: NodeInput) -> list[HostEffect]:
        effects = super().step(now_ns, event)
        if Spy.victim in self.mesh.peers():
            print(self.mesh.peers()[Spy.victim].instance.hex(), flush=True)
            Spy.victim = 0
        return effects


class Impostor(Identity):
    """Somebody else's public key, with a secret that does not belong to it."""

    __slots__ = ()

    def __init__(self, seed: bytes, key: bytes) -> None:
        super().__init__(seed)
        self.key = key
        self.identifier = identifier_of(key)


def main(config: str, kind: str, victim: str = "", instance: str = "") -> int:
    if kind == "liar":
        node.NodeCore = Liar  # type: ignore[misc]
    key = from_text(victim, 32, "victim") if victim else b""
    if kind == "spy":
        Spy.victim = identifier_of(key)
        node.NodeCore = Spy  # type: ignore[misc]
    if kind == "impostor":
        node.read_identity = lambda path: Impostor(Random(2).randbytes(32), key)  # type: ignore[assignment]
    if instance:
        node.new_instance = lambda rng: bytes.fromhex(instance)  # type: ignore[assignment]
    print("ready", flush=True)
    return node.run_node(load_node(Path(config)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
