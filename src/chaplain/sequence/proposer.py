"""The proposer: while this node holds the lock, it writes changes of the work set first, then events, then passes the
lock.

Decides the next entry, the seat that it names as the next writer, and whether this node waits for the lock.

Invariants: while a change of the work set is undecided, only the first entry of a new ballot is written after it; a
change is written only when all entries before it are decided; entries without a majority are bounded.
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
"""In a work set of at most this size, one member is a quorum if the other is dead. The proposer then awaits no
acknowledgement.
"""


class Proposer:
    def __init__(self, context: SequenceContext, lock: SequenceLock, decide: Callable[[], None]) -> None:
        self._context = context
        self._lock = lock
        self._decide = decide
        self._change_due_ns: int | None = None
        """Since when a change of the work set is due."""
        self._undecided_ns: int | None = None
        """Since when there are undecided entries."""
        self._notified = (0, 0)
        """The lock holder that was last informed that we wait, and the log index at that time."""

    def reset(self) -> None:
        self._change_due_ns = self._undecided_ns = None

    def due_ns(self) -> int | None:
        waits = self._change_due_ns is not None or self._undecided_ns is not None
        return self._context.now_ns + self._context.settings.chore_ns // 4 if waits else None

    @property
    def has_due_change(self) -> bool:
        return self._change_due_ns is not None

    def check_for_change(self) -> None:
        """Check whether a change of the work set is due."""
        context = self._context
        due = context.is_member and due_change(context) is not None
        self._change_due_ns = (
            (self._change_due_ns if self._change_due_ns is not None else context.now_ns) if due else None
        )

    def watch_undecided(self) -> None:
        """Track since when entries are undecided, or displaced publishes unsettled."""
        context = self._context
        log = context.log
        if not context.history or not (log.head.index > log.decided or self._has_displaced()):
            self._undecided_ns = None
        elif self._undecided_ns is None:
            self._undecided_ns = context.now_ns

    def _has_displaced(self) -> bool:
        """True if publishes of ours were displaced from the log, and only another decided entry can tell whether they
        are decided.
        """
        queue = self._context.publish_queue
        return bool(queue.displaced_chains) and queue.is_displaced_after(self._context.log.head.index)

    def on_decided(self) -> None:
        self._undecided_ns = None

    def write_first(self, ballot: Ballot) -> None:
        """Write the first entry under our new ballot, after the adopted log. It also decides the adopted entries."""
        context = self._context
        may_publish = context.publish_queue and not context.log.changing and context.state is SequenceState.WRK
        if may_publish and self._has_room():
            self._append_batch(ballot)
        else:
            self._append(EntryKind.PASS, ballot, then=context.seat)
        context.broadcast_after(context.log.decided)
        self._decide()

    def write(self) -> None:
        """While we hold the lock: write changes of the work set first, then events, then pass the lock."""
        context = self._context
        while self._has_reason() and self._lock.holds and not context.log.changing:
            before = context.log.head_hash
            written = self._write_one()
            if written is None:
                return
            context.broadcast_last(before, written)
            if len(context.log.members) <= _ALONE_SUFFICES:
                self._decide()

    def _has_reason(self) -> bool:
        """True if there may be something to write if we held the lock."""
        context = self._context
        queue = context.publish_queue
        return bool(
            queue.pending_bytes or queue.displaced_chains or context.peers.wanting or self._change_due_ns is not None
        )

    def is_idle(self) -> bool:
        """True if there is nothing to write, to wait for or to decide."""
        context = self._context
        return (
            context.log.head.index == context.log.decided
            and self._undecided_ns is None
            and not context.wants
            and not self._has_reason()
            and self._lock.is_idle
        )

    def _write_one(self) -> HeldEntry | None:
        context = self._context
        change = due_change(context) if self._change_due_ns is not None else None
        if change is not None:
            if context.log.undecided:
                return None
            return self._append(EntryKind.CHANGE, context.promised, encode_change(change), then=context.seat)
        if context.publish_queue.pending_bytes and not (context.founded_alone and self._is_held_back()):
            return self._append_batch(context.promised) if self._has_room() else None
        if (self._next() != context.seat or self._has_displaced()) and self._has_room():
            return self._append(EntryKind.PASS, context.promised)
        return None

    def _has_room(self) -> bool:
        settings, log = self._context.settings, self._context.log
        fits = log.undecided_bytes + settings.batch_bytes_max <= settings.flight_bytes_max
        return fits and log.undecided < settings.flight_entries_max

    def _append_batch(self, ballot: Ballot) -> HeldEntry:
        """Write what waits: an entry of events, or one without, if only confirmations wait."""
        context = self._context
        body = context.publish_queue.take(context.log.head.index + 1, context.settings.batch_bytes_max)
        return self._append(EntryKind.EVENTS if body else EntryKind.PASS, ballot, body)

    def _append(self, kind: EntryKind, ballot: Ballot, body: bytes = b"", then: int = 0) -> HeldEntry:
        context = self._context
        assert ballot == context.promised, "a node writes only under its own promised ballot"
        context.counts["entries_written"] += 1
        return context.log.append(make_entry(kind, ballot, context.settings.identifier, then or self._next(), body))

    def _next(self) -> int:
        """The next writer: in round-robin order the first member that waits for the lock, else this node."""
        context = self._context
        if not context.peers.wanting:
            return context.seat
        recent = context.peers.recent(context.now_ns, context.settings.silence_ns)
        wanting = {
            one.last_state.seat for one in recent if one.last_state.wants and one.last_state.history == context.history
        }
        return successor(context.log.members, context.seat, wanting) or context.seat

    def _is_held_back(self) -> bool:
        """True while a node that founded its history alone still waits for other nodes to join."""
        context = self._context
        lonely = len(context.log.members) == 1
        return lonely and context.now_ns - context.since_ns < context.settings.lonely_ns

    def _should_wait(self) -> bool:
        """True if this node should wait for the lock. For a due change or undecided entries, nodes stagger by their
        rank.
        """
        context = self._context
        idle = not context.publish_queue.pending_bytes and self._change_due_ns is None and self._undecided_ns is None
        if idle or not context.is_member or self._lock.holds:
            return False
        due = [since for since in (self._change_due_ns, self._undecided_ns) if since is not None]
        if context.publish_queue or not due:
            return bool(context.publish_queue)
        staggered_ns = context.settings.chore_ns * (3 + context.rank()) // 3
        return any(context.now_ns - since > staggered_ns for since in due)

    def wait_for_lock(self) -> None:
        """Inform the lock holder at once that we wait; the other members learn it from our next message."""
        context = self._context
        context.wants = self._should_wait()
        self._lock.wait(wants=context.wants)
        if context.wants and context.publish_queue and not context.ack_due:
            holder = context.peers.of_seat(context.log.members, context.log.next_seat)
            if holder is not None and not self._was_notified(holder):
                context.send(holder, Beat(context.own_state()))

    def _was_notified(self, holder: SequencePeer) -> bool:
        """True if this holder was already informed at this log index; records that it is informed now."""
        key = (holder.identifier, self._context.log.head.index)
        asked, self._notified = self._notified == key, key
        return asked
