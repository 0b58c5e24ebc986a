"""Writing while the lock is ours: changes of the work set first, then events, then somebody else's turn.

Decides what the next entry is, whom it names as the next writer, and whether this node waits for the lock.

Invariants: nothing is written behind an entry that changes the work set until that is decided, except the first entry
of a new ballot; such a change is written only when all before it is decided; what no majority holds yet is bounded.
"""

from __future__ import annotations

from collections.abc import Callable

from chaplain.sequence.context import SequenceContext
from chaplain.sequence.lock import SequenceLock
from chaplain.sequence.messages.entry import Ballot, EntryKind, encode_change, make_entry
from chaplain.sequence.messages.peer import Beat, SequenceState
from chaplain.sequence.peers import SequencePeer
from chaplain.sequence.reconfiguration import due_change
from chaplain.sequence.window.entries import HeldEntry
from chaplain.sequence.work_set import successor

_ALONE_SUFFICES = 2
"""In a work set of so many one member may be enough, the other being dead: then nobody's word is waited for."""


class Proposer:
    def __init__(self, bench: SequenceContext, locking: SequenceLock, decide: Callable[[], None]) -> None:
        self._bench = bench
        self._locking = locking
        self._decide = decide
        self._chore_ns: int | None = None
        """Since when a change of the work set is due."""
        self._stuck_ns: int | None = None
        """Since when something is undecided."""
        self._asked = (0, 0)
        """Whom we told last that we wait, and for which place."""

    def reset(self) -> None:
        self._chore_ns = self._stuck_ns = None

    def due_ns(self) -> int | None:
        waits = self._chore_ns is not None or self._stuck_ns is not None
        return self._bench.now_ns + self._bench.settings.chore_ns // 4 if waits else None

    @property
    def has_chore(self) -> bool:
        return self._chore_ns is not None

    def look_for_chores(self) -> None:
        """See whether there is something to do that nobody asked for."""
        bench = self._bench
        due = bench.is_member and due_change(bench) is not None
        self._chore_ns = (self._chore_ns if self._chore_ns is not None else bench.now_ns) if due else None

    def watch(self) -> None:
        bench = self._bench
        log = bench.log
        if not bench.history or not (log.head.index > log.decided or self._is_something_lost()):
            self._stuck_ns = None
        elif self._stuck_ns is None:
            self._stuck_ns = bench.now_ns

    def _is_something_lost(self) -> bool:
        """Whether it takes another entry to decide what becomes of events of ours."""
        publishing = self._bench.publishing
        return bool(publishing.lost) and publishing.is_lost_behind(self._bench.log.head.index)

    def decided(self) -> None:
        self._stuck_ns = None

    def write_first(self, ballot: Ballot) -> None:
        """The lock is ours by a new ballot: go on with what was found, and put a first entry of ours behind it."""
        bench = self._bench
        may_publish = bench.publishing and not bench.log.changing and bench.state is SequenceState.WRK
        if may_publish and self._has_room():
            self._append(EntryKind.EVENTS, ballot, self._batch())
        else:
            self._append(EntryKind.PASS, ballot, then=bench.seat)
        bench.spread(bench.log.decided)
        self._decide()

    def write(self) -> None:
        """While the lock is ours: changes of the work set first, then events, then somebody else's turn."""
        bench = self._bench
        while self._has_reason() and self._locking.holds and not bench.log.changing:
            before = bench.log.head_hash
            written = self._write_one()
            if written is None:
                return
            bench.spread_last(before, written)
            if len(bench.log.members) <= _ALONE_SUFFICES:
                self._decide()

    def _has_reason(self) -> bool:
        """Whether there may be something to write, were the lock ours."""
        bench = self._bench
        publishing = bench.publishing
        return bool(publishing.pending_bytes or publishing.lost or bench.company.wanting or self._chore_ns is not None)

    def rests(self) -> bool:
        """Whether there is nothing to write, to wait for or to be decided, and so nothing to do for one who is calm."""
        bench = self._bench
        return (
            bench.log.head.index == bench.log.decided
            and self._stuck_ns is None
            and not bench.wants
            and not self._has_reason()
            and self._locking.rests
        )

    def _write_one(self) -> HeldEntry | None:
        bench = self._bench
        change = due_change(bench) if self._chore_ns is not None else None
        if change is not None:
            if bench.log.undecided:
                return None
            return self._append(EntryKind.CHANGE, bench.promised, encode_change(change), then=bench.seat)
        if bench.publishing.pending_bytes and not (bench.alone and self._is_held_back()):
            return self._append(EntryKind.EVENTS, bench.promised, self._batch()) if self._has_room() else None
        if (self._next() != bench.seat or self._is_something_lost()) and self._has_room():
            return self._append(EntryKind.PASS, bench.promised)
        return None

    def _has_room(self) -> bool:
        settings, log = self._bench.settings, self._bench.log
        fits = log.undecided_bytes + settings.batch_bytes_max <= settings.flight_bytes_max
        return fits and log.undecided < settings.flight_entries_max

    def _batch(self) -> bytes:
        bench = self._bench
        return bench.publishing.take(bench.log.head.index + 1, bench.settings.batch_bytes_max)

    def _append(self, kind: EntryKind, ballot: Ballot, body: bytes = b"", then: int = 0) -> HeldEntry:
        bench = self._bench
        assert ballot == bench.promised, "nobody writes under a ballot that is not his"
        bench.counts["entries_written"] += 1
        return bench.log.append(make_entry(kind, ballot, bench.settings.identifier, then or self._next(), body))

    def _next(self) -> int:
        """Whose turn is next: going round, the first member that waits for the lock; else it stays ours."""
        bench = self._bench
        if not bench.company.wanting:
            return bench.seat
        fresh = bench.company.fresh(bench.now_ns, bench.settings.silence_ns)
        wanting = {one.bearing.seat for one in fresh if one.bearing.wants and one.bearing.history == bench.history}
        return successor(bench.log.members, bench.seat, wanting) or bench.seat

    def _is_held_back(self) -> bool:
        bench = self._bench
        lonely = len(bench.log.members) == 1
        return lonely and bench.now_ns - bench.since_ns < bench.settings.lonely_ns

    def _wants(self) -> bool:
        bench = self._bench
        idle = not bench.publishing.pending_bytes and self._chore_ns is None and self._stuck_ns is None
        if idle or not bench.is_member or self._locking.holds:
            return False
        due = [since for since in (self._chore_ns, self._stuck_ns) if since is not None]
        if bench.publishing or not due:
            return bool(bench.publishing)
        staggered_ns = bench.settings.chore_ns * (3 + bench.rank()) // 3
        return any(bench.now_ns - since > staggered_ns for since in due)

    def wait(self) -> None:
        """Say at once that we wait, to whoever has the lock; everybody else hears it with the next word."""
        bench = self._bench
        bench.wants = self._wants()
        self._locking.wait(wants=bench.wants)
        if bench.wants and bench.publishing and not bench.ack_due:
            holder = bench.company.of_seat(bench.log.members, bench.log.turn)
            if holder is not None and not self._asked_at(holder):
                bench.tell(holder, Beat(bench.bearing()))

    def _asked_at(self, holder: SequencePeer) -> bool:
        key = (holder.identifier, self._bench.log.head.index)
        asked, self._asked = self._asked == key, key
        return asked
