"""The apply queue of one database: agreed messages with statements for it, in order, each once.

Messages come from memory when they are agreed, and from the log if the database is behind. The queue decides which
messages are applied next; it does not know databases.

    messages_with_statements   indexes of all messages with statements for the stream
    applied                    the last message that the database has applied
    _queued_through            the last message that was queued or passed to the database

Invariants: `applied` <= `_queued_through`; batches are contiguous in `messages_with_statements`; at most
`QUEUE_BYTES_MAX` plus one message are queued.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection
from enum import StrEnum

from chaplain.executor.divergence import DivergenceCheck
from chaplain.executor.events import MessageApplied, Work
from chaplain.executor.statement import SQL_TYPE

QUEUE_BYTES_MAX = 16 * 1024 * 1024
APPLY_BYTES_MAX = 4 * 1024 * 1024
"""Size of one batch passed to the database."""
_TYPE_AT = 21
_CLIENT_AT = 8


class ApplyPhase(StrEnum):
    CLOSED = "closed"
    OPENING = "opening"
    IDLE = "idle"
    BUSY = "busy"
    LACKING = "lacking"
    """The log no longer has the next message: the executor fetches another executor's copy."""
    DAMAGED = "damaged"
    """The rows do not match the tallies: the database is about to be rebuilt."""
    STOPPED = "stopped"


class ApplyQueue:
    def __init__(self, stream: str, executors: Callable[[], Collection[int]], given_up: int = 0) -> None:
        self.stream = stream
        self.given_up = given_up
        """The log may have dropped statements up to this message: a database that has not applied it needs a copy."""
        self.phase = ApplyPhase.CLOSED
        self.trouble = ""
        """Why the executor stopped."""
        self.messages_with_statements: array[int] = array("Q")
        self.applied = 0
        self.fingerprint = b""
        self.divergence = DivergenceCheck(executors)
        self.reading = 0
        """Token of the log read in flight; 0: none."""
        self.pause_ns = 0
        """The log is not read again before this time; 0: no pause."""
        self.kept = 0
        """The last message in the copy kept on disk."""
        self.keeping = False
        """A copy is being made."""
        self.in_use = False
        """An errand that writes to the database is in flight."""
        self.checking = False
        """An integrity check is in flight."""
        self.damage = ""
        """The defect of the database, if it was rebuilt since this node started."""
        self._executors = executors
        self._queued_through = 0
        self._queue: deque[Work] = deque()
        self._queued_bytes = 0

    # Incoming messages.

    def add_message(self, index: int) -> None:
        assert not self.messages_with_statements or index > self.messages_with_statements[-1]
        self.messages_with_statements.append(index)

    def start_at(self, index: int) -> None:
        """Messages with statements up to this one existed, and the log may no longer have them."""
        if not self.messages_with_statements or self.messages_with_statements[0] > index:
            self.messages_with_statements.insert(0, index)

    def offer(self, work: Work) -> None:
        """Queue a newly agreed message if all messages before it are queued."""
        before = self.messages_with_statements[-2] if len(self.messages_with_statements) > 1 else 0
        if self.phase in (ApplyPhase.IDLE, ApplyPhase.BUSY) and not self.reading and self._queued_through >= before:
            self.enqueue(work)

    def enqueue(self, work: Work) -> bool:
        if work.index <= self._queued_through:
            return True  # applied before a restart
        if self._queued_bytes > QUEUE_BYTES_MAX:
            return False
        assert work.index == self.next_needed(), "a message was skipped"
        self._queue.append(work)
        self._queued_bytes += work.size_bytes
        self._queued_through = work.index
        return True

    @property
    def has_room(self) -> bool:
        """True if the queue has room for more messages of the log."""
        return self._queued_bytes <= QUEUE_BYTES_MAX // 2

    def next_needed(self) -> int | None:
        """The next message that is neither queued nor applied."""
        place = bisect_right(self.messages_with_statements, self._queued_through)
        return self.messages_with_statements[place] if place < len(self.messages_with_statements) else None

    # The database.

    def opened(self, index: int, fingerprint: bytes, kept: int = 0) -> None:
        assert self.phase in (ApplyPhase.OPENING, ApplyPhase.LACKING)
        self.phase = ApplyPhase.IDLE
        copied = index > self.applied
        self.applied = self._queued_through = index
        self.fingerprint, self.kept = fingerprint, kept
        if index and copied:
            self.divergence.record_own(index, fingerprint)

    def wait_for_copy(self) -> None:
        """The log no longer has the next message: empty the queue and wait for a copy."""
        self.phase = ApplyPhase.LACKING
        self._queue.clear()
        self._queued_bytes = 0
        self._queued_through = self.applied

    def next_batch(self) -> tuple[Work, ...]:
        """The works to apply now; empty if there are none or the database is busy."""
        if self.phase is not ApplyPhase.IDLE or not self._queue:
            return ()
        works: list[Work] = []
        size = 0
        while self._queue and (not works or size + self._queue[0].size_bytes <= APPLY_BYTES_MAX):
            works.append(self._queue.popleft())
            size += works[-1].size_bytes
        self._queued_bytes -= size
        self.phase, self.in_use = ApplyPhase.BUSY, True
        return tuple(works)

    def reserve(self) -> bool:
        """Reserve the database for another task, if it is idle and has applied everything agreed. Return True if it was
        reserved.
        """
        free = self.phase is ApplyPhase.IDLE and not self._queue and not self.behind
        self.in_use = self.in_use or free
        if free:
            self.phase = ApplyPhase.BUSY
        return free

    def release(self) -> None:
        """Record that the batch, or the other task, has ended."""
        self.in_use = False
        if self.phase is ApplyPhase.BUSY:
            self.phase = ApplyPhase.IDLE

    def record_applied(self, step: MessageApplied) -> None:
        assert step.index > self.applied, "a message was applied twice"
        self.applied = step.index
        self.fingerprint = step.fingerprint

    def stop(self, trouble: str) -> None:
        self.phase = ApplyPhase.STOPPED
        self.trouble = trouble
        self._queue.clear()
        self._queued_bytes = 0

    def mark_damaged(self, damage: str) -> None:
        """Discard the queue's knowledge of the database: it is valid again for the database that is opened next."""
        self.stop("")
        self.phase, self.damage, self.keeping = ApplyPhase.DAMAGED, damage, False
        self.applied = self._queued_through = 0
        self.fingerprint = b""
        self.divergence = DivergenceCheck(self._executors)

    @property
    def is_open(self) -> bool:
        return self.phase in (ApplyPhase.IDLE, ApplyPhase.BUSY)

    def next_unapplied(self) -> int:
        """The next message to apply; beyond all indexes if there is none."""
        place = bisect_right(self.messages_with_statements, self.applied)
        return self.messages_with_statements[place] if place < len(self.messages_with_statements) else 1 << 62

    def first_after_kept(self) -> int:
        """The next message that the copy on disk does not contain; beyond all indexes if there is none."""
        place = bisect_right(self.messages_with_statements, self.kept)
        return self.messages_with_statements[place] if place < len(self.messages_with_statements) else 1 << 62

    def first_needed(self) -> int:
        """The next message that the log must retain for this database; beyond all indexes if there is none."""
        place = bisect_right(self.messages_with_statements, max(self.kept, self.given_up))
        return self.messages_with_statements[place] if place < len(self.messages_with_statements) else 1 << 62

    def last_through(self, index: int) -> int:
        """The last message with statements up to this index; 0 if there is none."""
        place = bisect_right(self.messages_with_statements, index)
        return self.messages_with_statements[place - 1] if place else 0

    @property
    def is_stuck(self) -> bool:
        """True if the database executes nothing from the log: it has stopped, or waits for another node's copy."""
        return self.phase in (ApplyPhase.STOPPED, ApplyPhase.LACKING)

    @property
    def needs_copy(self) -> bool:
        """True if the log may have dropped statements that the database has not executed."""
        return self.applied < self.given_up

    def has_reached(self, index: int) -> bool:
        """True if everything for this database up to this message is applied."""
        return self.next_unapplied() > index

    @property
    def behind(self) -> int:
        """Number of messages that are not applied."""
        return len(self.messages_with_statements) - bisect_right(self.messages_with_statements, self.applied)


def lanes_of(body: bytes | memoryview) -> list[int]:
    """The lanes of the packs in a batch that contain statements. The packs were validated before."""
    view = memoryview(body)
    lanes: list[int] = []
    position = 0
    while position < len(view):
        if view[position + _TYPE_AT] == SQL_TYPE:
            lanes.append(int.from_bytes(view[position + _CLIENT_AT : position + _CLIENT_AT + 4], "little"))
        position += int.from_bytes(view[position : position + 4], "little")
    return lanes
