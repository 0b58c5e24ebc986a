"""What one database has been given and has done: agreed messages with statements for it, in order, each once.

Messages come from memory as they are agreed, and from the log if the database is behind. Decides what is handed over
next; refuses to know databases.

    touched   every message with statements for the stream, by index
    applied   what the database has done of it
    fed       what it has been given, or waits here to be

Invariants: `applied` <= `fed`; what is handed over is contiguous in `touched`; at most `QUEUE_BYTES_MAX` and one
message wait.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection
from enum import StrEnum

from chaplain.executor.divergence import Comparison
from chaplain.executor.events import MessageApplied, Work
from chaplain.executor.statement import SQL_TYPE

QUEUE_BYTES_MAX = 16 * 1024 * 1024
APPLY_BYTES_MAX = 4 * 1024 * 1024
"""What is handed over at a time."""
_TYPE_AT = 21
_CLIENT_AT = 8


class ApplyPhase(StrEnum):
    CLOSED = "closed"
    OPENING = "opening"
    IDLE = "idle"
    BUSY = "busy"
    LACKING = "lacking"
    """What comes next is in the log no more: another executor's copy is on its way."""
    DAMAGED = "damaged"
    """Its rows are not what its statements left: it is being made anew."""
    STOPPED = "stopped"


class ApplyQueue:
    def __init__(self, stream: str, executors: Callable[[], Collection[int]], given_up: int = 0) -> None:
        self.stream = stream
        self.given_up = given_up
        """The log may have dropped statements up to this message: a database that is not as far needs a copy."""
        self.phase = ApplyPhase.CLOSED
        self.trouble = ""
        """Why it is stopped."""
        self.touched: array[int] = array("Q")
        self.applied = 0
        self.fingerprint = b""
        self.comparison = Comparison(executors)
        self.reading = 0
        """The token of a read of the log that is under way."""
        self.pause_ns = 0
        """Not to be read again before this."""
        self.kept = 0
        """The last message in the copy that is on disk beside the database."""
        self.keeping = False
        """A copy is being made."""
        self.lent = False
        """Something is under way that writes to the database."""
        self.checking = False
        """Its rows are being read again."""
        self.damage = ""
        """What was wrong with it, if it was made anew since this node started."""
        self._executors = executors
        self._fed = 0
        self._queue: deque[Work] = deque()
        self._queued_bytes = 0

    # What there is.

    def touch(self, index: int) -> None:
        assert not self.touched or index > self.touched[-1]
        self.touched.append(index)

    def begin(self, index: int) -> None:
        """Messages up to this one, the last of them, may be in the log no more."""
        if not self.touched or self.touched[0] > index:
            self.touched.insert(0, index)

    def offer(self, work: Work) -> None:
        """A message was agreed; taken if everything before it was."""
        before = self.touched[-2] if len(self.touched) > 1 else 0
        if self.phase in (ApplyPhase.IDLE, ApplyPhase.BUSY) and not self.reading and self._fed >= before:
            self.take(work)

    def take(self, work: Work) -> bool:
        if work.index <= self._fed:
            return True  # done before a restart
        if self._queued_bytes > QUEUE_BYTES_MAX:
            return False
        assert work.index == self.wanted(), "a message was passed over"
        self._queue.append(work)
        self._queued_bytes += work.size_bytes
        self._fed = work.index
        return True

    @property
    def has_room(self) -> bool:
        """Whether it is worth while to read more from the log."""
        return self._queued_bytes <= QUEUE_BYTES_MAX // 2

    def wanted(self) -> int | None:
        """The next message that is neither here nor done."""
        place = bisect_right(self.touched, self._fed)
        return self.touched[place] if place < len(self.touched) else None

    # What the database does.

    def opened(self, index: int, fingerprint: bytes, kept: int = 0) -> None:
        assert self.phase in (ApplyPhase.OPENING, ApplyPhase.LACKING)
        self.phase = ApplyPhase.IDLE
        copied = index > self.applied
        self.applied = self._fed = index
        self.fingerprint, self.kept = fingerprint, kept
        if index and copied:
            self.comparison.reached(index, fingerprint)

    def lack(self) -> None:
        """What comes next cannot be had from the log."""
        self.phase = ApplyPhase.LACKING
        self._queue.clear()
        self._queued_bytes = 0
        self._fed = self.applied

    def hand_over(self) -> tuple[Work, ...]:
        """What to apply now; nothing if there is nothing, or something is being applied."""
        if self.phase is not ApplyPhase.IDLE or not self._queue:
            return ()
        works: list[Work] = []
        size = 0
        while self._queue and (not works or size + self._queue[0].size_bytes <= APPLY_BYTES_MAX):
            works.append(self._queue.popleft())
            size += works[-1].size_bytes
        self._queued_bytes -= size
        self.phase, self.lent = ApplyPhase.BUSY, True
        return tuple(works)

    def lend(self) -> bool:
        """Whether the database is free for something else, having done all that was agreed; then it is busy with it."""
        free = self.phase is ApplyPhase.IDLE and not self._queue and not self.behind
        self.lent = self.lent or free
        if free:
            self.phase = ApplyPhase.BUSY
        return free

    def give_back(self) -> None:
        """What it was given, or lent for, is over."""
        self.lent = False
        if self.phase is ApplyPhase.BUSY:
            self.phase = ApplyPhase.IDLE

    def did(self, step: MessageApplied) -> None:
        assert step.index > self.applied, "a message was applied twice"
        self.applied = step.index
        self.fingerprint = step.fingerprint

    def stop(self, trouble: str) -> None:
        self.phase = ApplyPhase.STOPPED
        self.trouble = trouble
        self._queue.clear()
        self._queued_bytes = 0

    def spoil(self, damage: str) -> None:
        """What it holds counts for nothing: it begins anew, wherever it is opened next."""
        self.stop("")
        self.phase, self.damage, self.keeping = ApplyPhase.DAMAGED, damage, False
        self.applied = self._fed = 0
        self.fingerprint = b""
        self.comparison = Comparison(self._executors)

    @property
    def is_open(self) -> bool:
        return self.phase in (ApplyPhase.IDLE, ApplyPhase.BUSY)

    def undone(self) -> int:
        """The next message that is not done; beyond all if there is none."""
        place = bisect_right(self.touched, self.applied)
        return self.touched[place] if place < len(self.touched) else 1 << 62

    def first_unkept(self) -> int:
        """The next message that is not in the copy on disk; beyond all if there is none."""
        place = bisect_right(self.touched, self.kept)
        return self.touched[place] if place < len(self.touched) else 1 << 62

    def first_needed(self) -> int:
        """The next message that the log must keep for this database; beyond all if there is none."""
        place = bisect_right(self.touched, max(self.kept, self.given_up))
        return self.touched[place] if place < len(self.touched) else 1 << 62

    def last_through(self, index: int) -> int:
        """The last message with statements up to this one; 0 if there is none."""
        place = bisect_right(self.touched, index)
        return self.touched[place - 1] if place else 0

    @property
    def is_stuck(self) -> bool:
        """Whether it executes nothing from the log: it has stopped, or waits for another node's copy."""
        return self.phase in (ApplyPhase.STOPPED, ApplyPhase.LACKING)

    @property
    def needs_copy(self) -> bool:
        """Whether statements that it has not executed may be gone from the log."""
        return self.applied < self.given_up

    def has_reached(self, index: int) -> bool:
        """Whether everything for this database up to a message is done."""
        return self.undone() > index

    @property
    def behind(self) -> int:
        """Messages that are not done."""
        return len(self.touched) - bisect_right(self.touched, self.applied)


def lanes_of(body: bytes | memoryview) -> list[int]:
    """The lanes of the packs in a batch that hold statements. The packs were found whole before."""
    view = memoryview(body)
    lanes: list[int] = []
    position = 0
    while position < len(view):
        if view[position + _TYPE_AT] == SQL_TYPE:
            lanes.append(int.from_bytes(view[position + _CLIENT_AT : position + _CLIENT_AT + 4], "little"))
        position += int.from_bytes(view[position : position + 4], "little")
    return lanes
