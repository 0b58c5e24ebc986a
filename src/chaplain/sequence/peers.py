"""The other nodes: their sessions, their latest states, and the seats that are known to be dead.

Invariants: only messages of a node's current session count; a seat is dead when its node has sent a later seat, and
stays dead; an acknowledgement counts while its seat is alive.
"""

from __future__ import annotations

from collections.abc import Iterator

from chaplain.link.events import Peer
from chaplain.sequence.messages.peer import LogLength, PeerState
from chaplain.sequence.work_set import WorkSet


class SequencePeer:
    """Another node."""

    __slots__ = (
        "acked",
        "asked_ns",
        "connected",
        "endpoint",
        "heard_ns",
        "identifier",
        "instance",
        "last_state",
        "tenure",
    )

    def __init__(self, peer: Peer) -> None:
        self.identifier = peer.identifier
        self.endpoint = peer.endpoint
        self.instance = peer.instance
        self.connected = True
        self.tenure = -1
        """The latest tenure of this session; a message with an earlier one is outdated."""
        self.last_state = PeerState()
        self.acked: LogLength = self.last_state.head
        """The greatest log length that the node has acknowledged under its current seat."""
        self.heard_ns: int | None = None
        """When the last sequence message of this node arrived."""
        self.asked_ns: int | None = None
        """When the node last asked to join."""


class SequencePeers:
    def __init__(self) -> None:
        self.by_id: dict[int, SequencePeer] = {}
        self.dead: set[int] = set()
        """Seats that lost their memory."""
        self.changes = 0
        """Counts changes of anything except log lengths: connections, seats, states, requests to join."""
        self.wanting = 0
        """How many peers wait for the lock, by their latest states."""
        self._expected: dict[int, int] = {}
        """By seat: the time since which this node waits for a member that it has never heard."""

    # Sessions.

    def enter(self, peer: Peer) -> SequencePeer:
        self.changes += 1
        known = self.by_id.get(peer.identifier)
        if known is None:
            known = self.by_id[peer.identifier] = SequencePeer(peer)
        elif known.instance != peer.instance:
            known.asked_ns, known.tenure = None, -1
        known.instance, known.endpoint, known.connected = peer.instance, peer.endpoint, True
        return known

    def exit(self, peer: Peer) -> None:
        self.changes += 1
        known = self.by_id.get(peer.identifier)
        if known is not None and known.instance == peer.instance:
            known.connected = False

    def note(self, now_ns: int, peer: Peer, peer_state: PeerState) -> SequencePeer | None:
        """Record a peer's peer_state. Return None if it came from an old session or is outdated."""
        known = self.by_id.get(peer.identifier)
        if known is None or not known.connected or known.instance != peer.instance:
            return None
        before = known.last_state
        if peer_state.seat in self.dead or peer_state.tenure < known.tenure:
            return None
        if before.seat and before.seat != peer_state.seat:
            self.dead.add(before.seat)
        if before.seat != peer_state.seat or before.history != peer_state.history:
            known.acked = peer_state.head
            self.changes += 1
        if before.state is not peer_state.state:
            self.changes += 1
        known.acked = max(known.acked, peer_state.head)
        self.wanting += peer_state.wants - before.wants
        known.last_state, known.heard_ns, known.tenure = peer_state, now_ns, peer_state.tenure
        return known

    def asks(self, now_ns: int, peer: SequencePeer) -> None:
        """Record that the peer asks to join."""
        peer.asked_ns = now_ns
        self.changes += 1

    # Queries.

    def connected(self) -> Iterator[SequencePeer]:
        return (peer for peer in self.by_id.values() if peer.connected)

    def recent(self, now_ns: int, within_ns: int) -> list[SequencePeer]:
        """Connected peers that were heard within this time, ordered by identifier."""
        found = [one for one in self.connected() if one.heard_ns is not None and now_ns - one.heard_ns <= within_ns]
        return sorted(found, key=lambda peer: peer.identifier)

    def of_seat(self, members: WorkSet, seat: int) -> SequencePeer | None:
        """The node with this seat in the work set, if it is connected and still has the seat."""
        for member in members:
            if member.seat == seat:
                peer = self.by_id.get(member.identifier)
                if peer is not None and peer.connected and peer.last_state.seat in {0, seat}:
                    return peer
        return None

    def heard_ns(self, identifier: int, seat: int, now_ns: int) -> int:
        """The time at which a member was last heard. For a member that was never heard, the time of the first call of
        this method.
        """
        peer = self.by_id.get(identifier)
        if peer is not None and peer.last_state.seat == seat and peer.heard_ns is not None:
            self._expected.pop(seat, None)
            return peer.heard_ns
        return self._expected.setdefault(seat, now_ns)

    def forget(self) -> None:
        """Forget what peers acknowledged in a history that this node abandons."""
        self._expected.clear()
        for peer in self.by_id.values():
            peer.acked = peer.last_state.head
