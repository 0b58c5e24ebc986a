"""The other nodes: who is connected, what each said of itself last, and which seats are known to be empty for good.

Invariants: only the session that a node has now may speak for it; a seat is dead once its node has shown a later one,
and stays so; what somebody acknowledged is never forgotten while its seat lasts.
"""

from __future__ import annotations

from collections.abc import Iterator

from chaplain.link.events import Peer
from chaplain.sequence.messages.peer import Bearing, LogLength
from chaplain.sequence.work_set import WorkSet


class SequencePeer:
    """One other node."""

    __slots__ = (
        "acked",
        "asked_ns",
        "bearing",
        "connected",
        "endpoint",
        "heard_ns",
        "identifier",
        "instance",
        "tenure",
    )

    def __init__(self, peer: Peer) -> None:
        self.identifier = peer.identifier
        self.endpoint = peer.endpoint
        self.instance = peer.instance
        self.connected = True
        self.tenure = -1
        """The latest that this session has shown; a word under an earlier one comes late."""
        self.bearing = Bearing()
        self.acked: LogLength = self.bearing.head
        self.heard_ns: int | None = None
        """When it last said anything of the sequence."""
        self.asked_ns: int | None = None
        """When it last asked to join."""


class SequencePeers:
    def __init__(self) -> None:
        self.fellows: dict[int, SequencePeer] = {}
        self.dead: set[int] = set()
        self.changes = 0
        """Counts whatever may have changed beside how far the others are: who is connected, seats, states, wishes."""
        self.wanting = 0
        """How many wait for the lock, by their last word."""
        self._expected: dict[int, int] = {}
        """Members that never spoke: since when they are waited for, by seat."""

    # Sessions.

    def enter(self, peer: Peer) -> SequencePeer:
        self.changes += 1
        known = self.fellows.get(peer.identifier)
        if known is None:
            known = self.fellows[peer.identifier] = SequencePeer(peer)
        elif known.instance != peer.instance:
            known.asked_ns, known.tenure = None, -1
        known.instance, known.endpoint, known.connected = peer.instance, peer.endpoint, True
        return known

    def exit(self, peer: Peer) -> None:
        self.changes += 1
        known = self.fellows.get(peer.identifier)
        if known is not None and known.instance == peer.instance:
            known.connected = False

    def note(self, now_ns: int, peer: Peer, bearing: Bearing) -> SequencePeer | None:
        """Take what a peer says of itself; None if it is not its session any more, or an old word of it."""
        known = self.fellows.get(peer.identifier)
        if known is None or not known.connected or known.instance != peer.instance:
            return None
        before = known.bearing
        if bearing.seat in self.dead or bearing.tenure < known.tenure:
            return None
        if before.seat and before.seat != bearing.seat:
            self.dead.add(before.seat)
        if before.seat != bearing.seat or before.history != bearing.history:
            known.acked = bearing.head
            self.changes += 1
        if before.state is not bearing.state:
            self.changes += 1
        known.acked = max(known.acked, bearing.head)
        self.wanting += bearing.wants - before.wants
        known.bearing, known.heard_ns, known.tenure = bearing, now_ns, bearing.tenure
        return known

    def asks(self, now_ns: int, fellow: SequencePeer) -> None:
        """It wants to join."""
        fellow.asked_ns = now_ns
        self.changes += 1

    # Questions.

    def connected(self) -> Iterator[SequencePeer]:
        return (fellow for fellow in self.fellows.values() if fellow.connected)

    def fresh(self, now_ns: int, within_ns: int) -> list[SequencePeer]:
        """Who is connected and spoke lately, in order of identifiers."""
        found = [one for one in self.connected() if one.heard_ns is not None and now_ns - one.heard_ns <= within_ns]
        return sorted(found, key=lambda fellow: fellow.identifier)

    def of_seat(self, members: WorkSet, seat: int) -> SequencePeer | None:
        """The node that has this seat in the work set, if it is connected and still has it."""
        for member in members:
            if member.seat == seat:
                fellow = self.fellows.get(member.identifier)
                if fellow is not None and fellow.connected and fellow.bearing.seat in {0, seat}:
                    return fellow
        return None

    def heard_ns(self, identifier: int, seat: int, now_ns: int) -> int:
        """When a member was last heard; one that never was counts from when it was first asked after."""
        fellow = self.fellows.get(identifier)
        if fellow is not None and fellow.bearing.seat == seat and fellow.heard_ns is not None:
            self._expected.pop(seat, None)
            return fellow.heard_ns
        return self._expected.setdefault(seat, now_ns)

    def forget(self) -> None:
        """A history is over for us: what its members acknowledged means nothing any more."""
        self._expected.clear()
        for fellow in self.fellows.values():
            fellow.acked = fellow.bearing.head
