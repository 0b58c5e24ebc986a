"""Decides which peers are due for a heartbeat or a PING, and which are silent for too long.

Every peer has the same three intervals. So each queue is ordered by the time of its last event and has the next due
peer at its head. An event moves one peer to the end, and reading the earliest deadline needs no search.

Invariants:
- `_heard` and `_heard_or_pinged` contain every peer that is present, `_sent_to` every node among them;
- each queue is ordered by its own time, unless the clock runs backwards (then a peer is late by as much);
- a peer expires only after a PING to which it had `ping_after_ns` to respond;
- every received command is a sign of life. A beacon is not: it proves nothing about the session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from chaplain.mesh.session import MeshSession
from chaplain.mesh.settings import MeshSettings

Queue = OrderedDict[bytes, MeshSession]


class Liveness:
    def __init__(self, settings: MeshSettings) -> None:
        self._heartbeat_ns = settings.heartbeat_ns
        self._ping_after_ns = settings.ping_after_ns
        self._gone_after_ns = settings.gone_after_ns
        self._sent_to: Queue = OrderedDict()
        self._heard_or_pinged: Queue = OrderedDict()
        self._heard: Queue = OrderedDict()
        self._due_ns: int | None = None
        """Nothing is due before this time. It is computed after each wake-up, because commands that are sent or
        received afterwards can only postpone it. None if it has to be computed."""

    def add(self, now_ns: int, session: MeshSession) -> None:
        """Start watching a peer. The handshake was a sign of life in both directions."""
        instance = session.peer.instance
        self._due_ns = None
        self._heard[instance] = self._heard_or_pinged[instance] = session
        if session.is_node:
            self._sent_to[instance] = session
            self.sent(now_ns, session)
        self.received(now_ns, session)

    def remove(self, session: MeshSession) -> None:
        self._due_ns = None
        for queue in (self._sent_to, self._heard_or_pinged, self._heard):
            queue.pop(session.peer.instance, None)

    def received(self, now_ns: int, session: MeshSession) -> None:
        if session.heard_ns == now_ns:
            return  # one frame contains many commands
        session.heard_ns = session.heard_or_pinged_ns = now_ns
        instance = session.peer.instance
        self._heard.move_to_end(instance)
        self._heard_or_pinged.move_to_end(instance)

    def sent(self, now_ns: int, session: MeshSession) -> None:
        """Record a command to a node. Clients are not recorded, because they get no heartbeats."""
        if session.sent_ns == now_ns:
            return
        session.sent_ns = now_ns
        self._sent_to.move_to_end(session.peer.instance)

    def expired(self, now_ns: int) -> Iterator[MeshSession]:
        """The peers that were silent for too long. The caller removes each before it takes the next. A wake-up begins
        with this call.
        """
        self._due_ns = None
        while self._heard and (due := self._expiry_ns(first := _head(self._heard))) is not None and due <= now_ns:
            yield first

    def to_ping(self, now_ns: int) -> Iterator[MeshSession]:
        while (
            self._heard_or_pinged
            and (first := _head(self._heard_or_pinged)).heard_or_pinged_ns + self._ping_after_ns <= now_ns
        ):
            if not _has_unanswered_ping(first):
                first.pinged_ns = now_ns
            first.heard_or_pinged_ns = now_ns
            self._heard_or_pinged.move_to_end(first.peer.instance)
            yield first

    def to_heartbeat(self, now_ns: int) -> Iterator[MeshSession]:
        """The nodes to which nothing was sent for `heartbeat_ns`. The caller sends to each before it takes the next."""
        while self._sent_to and (first := _head(self._sent_to)).sent_ns + self._heartbeat_ns <= now_ns:
            yield first

    def deadline(self) -> int | None:
        """When to look for due peers. No peer is due before this time."""
        if self._due_ns is None and self._heard:
            due = [_head(self._heard_or_pinged).heard_or_pinged_ns + self._ping_after_ns]
            if self._sent_to:
                due.append(_head(self._sent_to).sent_ns + self._heartbeat_ns)
            if (expiry_ns := self._expiry_ns(_head(self._heard))) is not None:
                due.append(expiry_ns)
            self._due_ns = min(due)
        return self._due_ns

    def _expiry_ns(self, session: MeshSession) -> int | None:
        """The time at which the peer expires, or None before it had a chance to answer a PING.

        After a pause of this process or a jump of its clock, every peer seems silent. So the mesh pings first, then
        waits.
        """
        if not _has_unanswered_ping(session):
            return None
        assert session.pinged_ns is not None
        return max(session.heard_ns + self._gone_after_ns, session.pinged_ns + self._ping_after_ns)


def _has_unanswered_ping(session: MeshSession) -> bool:
    """Whether a PING was sent since the peer was last heard."""
    return session.pinged_ns is not None and session.pinged_ns > session.heard_ns


def _head(queue: Queue) -> MeshSession:
    return next(iter(queue.values()))
