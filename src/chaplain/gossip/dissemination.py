"""Dissemination: sends messages to sessions, forwards them, and repairs losses.

With up to `flood_max` members a message is sent to all sessions (flooding, as in gossip.txt). With more members it is
sent to `fanout` random sessions. A node that did not receive it learns of it from another node's HAVE, and fetches it.
A message for one node is sent directly to it if there is a session, to the two sessions nearest to it on the ring if it
is a member, and to all sessions otherwise.

This module does not know what messages mean. It collects the effects of one step in `out`, in order.

Invariants:
- a message is forwarded at most once by each node, at most `hops_max` times from its origin, and only with its origin's
  signature;
- bytes sent per second stay within the budget, with one second's budget as reserve for membership.
"""

from __future__ import annotations

import random
from collections import Counter

from chaplain.core import Report
from chaplain.gossip import codec
from chaplain.gossip.codec import Action, Body, GossipMessage, Have, LeaveMessage, MessageType, WantMessages
from chaplain.gossip.events import ALL, EventId, GossipEffect
from chaplain.gossip.member_record import GossipSigner, Verify
from chaplain.gossip.members import MemberList
from chaplain.gossip.seen import RecentMessages, SeenMessages
from chaplain.gossip.settings import GossipSettings
from chaplain.mesh.events import Whisper
from chaplain.units import SECOND_NS
from chaplain.wire import parcel as parcels
from chaplain.wire.parcel import Layer, Parcel

OFFER_MAX = 128
"""Message ids in one HAVE."""
_RING = 1 << 32


class Dissemination:
    def __init__(
        self, signer: GossipSigner, check: Verify, settings: GossipSettings, rng: random.Random, members: MemberList
    ) -> None:
        self.signer = signer
        self.check = check
        self.settings = settings
        self.rng = rng
        self.members = members
        self.epoch = 1
        """Identifies this run in message ids: higher than that of every earlier run."""
        self.sessions: dict[int, bytes] = {}
        """The instance of every node with a session, by identifier."""
        self.out: list[GossipEffect] = []
        """The effects of the current step."""
        self.counts: Counter[str] = Counter()
        self.now_ns = 0
        self.seen = SeenMessages(settings, members.is_present)
        self._recent = RecentMessages(settings)
        self._counter = 0
        self._allowance_bytes = settings.bytes_per_second_max
        self._allowed_ns = 0

    @property
    def identifier(self) -> int:
        return self.signer.identifier

    def report(self, event: str, identifier: int = 0, **detail: str | int) -> None:
        self.counts[event] += 1
        self.out.append(Report(event, f"{identifier:08x}" if identifier else "", detail))

    def send(self, identifier: int, body: Body, *, urgent: bool = True) -> bool:
        """Send a body to one node. Returns False if there is no session or no budget."""
        return self._send_encoded((identifier,), codec.encode(body), urgent=urgent) == 1

    def fire(
        self,
        message_type: MessageType,
        content: bytes,
        *,
        action: Action = Action.NONE,
        target: int = ALL,
        urgent: bool = True,
    ) -> GossipMessage:
        """Sign a message of this node and send it."""
        message = codec.sign_message(self.signer, self._next_id(), message_type, content, action=action, target=target)
        self._send_first(message, target, urgent=urgent)
        return message

    def fire_leave(self, subject: int, incarnation: int) -> LeaveMessage:
        leave = codec.sign_leave(self.signer, self._next_id(), subject, incarnation)
        self._send_first(leave, ALL, urgent=True)
        return leave

    def accept(self, body: GossipMessage | LeaveMessage, sender: int) -> bool:
        """Whether this message is new, genuine and within `hops_max`. An accepted message is recorded as seen."""
        if body.id.origin == self.identifier or not self.seen.is_fresh(body.id):
            self.counts["duplicates"] += 1
            return False
        if body.key in self.members.expelled:
            self.counts["expelled_refused"] += 1
            return False
        if body.hops > self.settings.hops_max:
            self.counts["hops_exceeded"] += 1
            return False
        record = self.members.get(body.id.origin)
        if record is not None and record.card.key != body.key:
            self.report("key_conflict", sender, origin=body.id.origin)
            return False
        if not codec.is_genuine(body, self.check):
            self.report("message_forged", sender, origin=body.id.origin)
            return False
        self.seen.add(body.id, len(self.members))
        return True

    def forward(self, body: GossipMessage | LeaveMessage, sender: int) -> None:
        """Forward a message of another node with its hop count increased."""
        target = body.target if isinstance(body, GossipMessage) else ALL
        if target == self.identifier:
            return
        aged = _one_hop_older(body)
        encoded = codec.encode(aged)
        if _is_repairable(body):
            self._recent.add(body.id, encoded, self.now_ns)
        urgent = isinstance(body, LeaveMessage) or body.type not in (
            MessageType.USER,
            MessageType.QUERY,
            MessageType.ANSWER,
        )
        self._send_encoded(self._receivers(target, (sender, body.id.origin)), encoded, urgent=urgent)

    def advertise(self) -> None:
        """Send one random peer the ids of recent messages."""
        ids = self._recent.newest(OFFER_MAX, self.now_ns)
        if ids and self.sessions:
            self.send(self.rng.choice(list(self.sessions)), Have(ids), urgent=False)

    def on_have(self, sender: int, have: Have) -> None:
        lacking = tuple(
            event_id for event_id in have.ids if event_id.origin != self.identifier and self.seen.is_fresh(event_id)
        )
        if lacking:
            self.send(sender, WantMessages(lacking), urgent=False)

    def on_want(self, sender: int, want: WantMessages) -> None:
        for event_id in want.ids:
            body = self._recent.get(event_id)
            if body is not None:
                self.counts["repaired"] += self._send_encoded((sender,), body, urgent=False)

    def _next_id(self) -> EventId:
        self._counter += 1
        return EventId(self.identifier, self.epoch, self._counter)

    def _send_first(self, body: GossipMessage | LeaveMessage, target: int, *, urgent: bool) -> None:
        encoded = codec.encode(body)
        self.counts["fired"] += 1
        if _is_repairable(body):
            self._recent.add(body.id, encoded, self.now_ns)
        if target != self.identifier:
            self._send_encoded(self._receivers(target, ()), encoded, urgent=urgent)

    def _receivers(self, target: int, exclude: tuple[int, ...]) -> list[int]:
        if target != ALL and target in self.sessions:
            return [target]
        others = [identifier for identifier in self.sessions if identifier not in exclude]
        if target != ALL and self.members.is_present(target):
            # Sessions exist at distances 1, 2, 4 … on the ring, so each hop shortens the distance.
            return sorted(others, key=lambda identifier: _ring_distance(identifier, target))[:2]
        if len(self.members) <= self.settings.flood_max or len(others) <= self.settings.fanout:
            return others
        return self.rng.sample(others, self.settings.fanout)

    def _send_encoded(self, identifiers: tuple[int, ...] | list[int], body: bytes, *, urgent: bool) -> int:
        content = parcels.encode(Parcel(self.identifier, Layer.GOSSIP, body))
        sent = 0
        for identifier in identifiers:
            instance = self.sessions.get(identifier)
            if instance is None or not self._take_budget(len(content), urgent=urgent):
                continue
            self.out.append(Whisper(instance, content, urgent))
            sent += 1
        self.counts["whispers"] += sent
        self.counts["bytes"] += sent * len(content)
        return sent

    def _take_budget(self, size_bytes: int, *, urgent: bool) -> bool:
        rate = self.settings.bytes_per_second_max
        # A token bucket: it fills with `bytes_per_second_max` and contains at most one second's worth. Urgent messages
        # may overdraw it by as much again.
        earned = (self.now_ns - self._allowed_ns) * rate // SECOND_NS
        if earned > 0:
            self._allowance_bytes = min(rate, self._allowance_bytes + earned)
            self._allowed_ns = self.now_ns
        if self._allowance_bytes - size_bytes < (-rate if urgent else 0):
            self.counts["over_budget"] += 1
            return False
        self._allowance_bytes -= size_bytes
        return True


def _is_repairable(body: GossipMessage | LeaveMessage) -> bool:
    """Whether the message may be sent to others later, for repair.

    Key rotation steps may not: a rotation repeats them itself, and a node that restarts after it must not install a key
    that was retired meanwhile.
    """
    return isinstance(body, LeaveMessage) or (body.target == ALL and body.type != MessageType.KEY)


def _one_hop_older(body: GossipMessage | LeaveMessage) -> GossipMessage | LeaveMessage:
    hops = min(255, body.hops + 1)
    if isinstance(body, LeaveMessage):
        return LeaveMessage(hops, body.id, body.key, body.subject, body.incarnation, body.signature)
    return GossipMessage(
        hops, body.id, body.key, body.target, body.type, body.action, body.content, body.signed, body.signature
    )


def _ring_distance(one: int, other: int) -> int:
    return min((one - other) % _RING, (other - one) % _RING)
