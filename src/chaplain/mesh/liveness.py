"""Who is due for a heartbeat, a ping, or to be given up.

Every peer has the same three intervals, so a queue ordered by the last event has the next one due at its head: each
event moves one peer to the end, and the earliest deadline is read off without looking at the others.

Invariants:
- `heard` and `attended` hold every peer that is present, `spoke` every node among them;
- each queue is ordered by its own time, as far as time does not run backwards (then a peer is late by as much);
- nobody is given up who was not pinged first and had `ping_after_ns` to answer;
- anything heard is a sign of life, whatever it says. A beacon is not: it proves nothing about the session.
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
        self._spoke: Queue = OrderedDict()
        self._attended: Queue = OrderedDict()
        self._heard: Queue = OrderedDict()
        self._calm_ns = 0
        """Nobody is pinged or given up before this: anything heard since can only have put it off."""

    def watch(self, now_ns: int, session: MeshSession) -> None:
        """From now on; the greeting was a sign of life in both directions."""
        instance = session.peer.instance
        self._heard[instance] = self._attended[instance] = session
        if session.is_node:
            self._spoke[instance] = session
            self.spoke(now_ns, session)
        self.heard(now_ns, session)

    def release(self, session: MeshSession) -> None:
        for queue in (self._spoke, self._attended, self._heard):
            queue.pop(session.peer.instance, None)

    def heard(self, now_ns: int, session: MeshSession) -> None:
        if session.heard_ns == now_ns:
            return  # many commands come in one frame
        session.heard_ns = session.attended_ns = now_ns
        instance = session.peer.instance
        self._heard.move_to_end(instance)
        self._attended.move_to_end(instance)

    def spoke(self, now_ns: int, session: MeshSession) -> None:
        """Only of nodes: clients get no heartbeats."""
        if session.spoke_ns == now_ns:
            return
        session.spoke_ns = now_ns
        self._spoke.move_to_end(session.peer.instance)

    def gone(self, now_ns: int) -> Iterator[MeshSession]:
        """Who has been silent too long. The caller releases each before it takes the next."""
        while self._heard and (due := self._gone_ns(first := _head(self._heard))) is not None and due <= now_ns:
            yield first

    def to_ping(self, now_ns: int) -> Iterator[MeshSession]:
        while self._attended and (first := _head(self._attended)).attended_ns + self._ping_after_ns <= now_ns:
            if not _pinged(first):
                first.pinged_ns = now_ns
            first.attended_ns = now_ns
            self._attended.move_to_end(first.peer.instance)
            yield first

    def to_beat(self, now_ns: int) -> Iterator[MeshSession]:
        """Who has heard nothing of us. The caller speaks to each before it takes the next."""
        while self._spoke and (first := _head(self._spoke)).spoke_ns + self._heartbeat_ns <= now_ns:
            yield first

    def deadline(self) -> int | None:
        if not self._heard:
            return None
        beat_ns = _head(self._spoke).spoke_ns + self._heartbeat_ns if self._spoke else None
        # Heartbeats are due most often by far, so the other queues are seldom looked at.
        if beat_ns is not None and beat_ns <= self._calm_ns:
            return beat_ns
        calm_ns = _head(self._attended).attended_ns + self._ping_after_ns
        if (gone_ns := self._gone_ns(_head(self._heard))) is not None and gone_ns < calm_ns:
            calm_ns = gone_ns
        self._calm_ns = calm_ns
        return calm_ns if beat_ns is None or calm_ns < beat_ns else beat_ns

    def _gone_ns(self, session: MeshSession) -> int | None:
        """When to give the peer up, or None before it had a chance to answer.

        After a pause of this process or a jump of its clock everybody seems silent: first ask, then wait.
        """
        if not _pinged(session):
            return None
        assert session.pinged_ns is not None
        return max(session.heard_ns + self._gone_after_ns, session.pinged_ns + self._ping_after_ns)


def _pinged(session: MeshSession) -> bool:
    """Whether a PING went out since the peer was last heard."""
    return session.pinged_ns is not None and session.pinged_ns > session.heard_ns


def _head(queue: Queue) -> MeshSession:
    return next(iter(queue.values()))
