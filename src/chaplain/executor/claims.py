"""Claims of stopped executors on the log: how much of it the node retains for them, and the note that it writes when it
gives a claim up.

A node drops no part of its log that one of its databases still has to execute. An executor that stopped, or that waits
for another node's copy, executes nothing, so without a bound the log would grow until the disk is full. When its claim
retains more than `bytes_max` of segments that could otherwise be dropped, the claim is given up: this core writes a
note to disk, and then the log may be dropped. Such a database can continue only from another node's copy, which must
contain at least the dropped messages.

Decides when a claim is given up. Does not know segments or retention rules: the journal reports how many bytes a
message retains.

Invariant: a claim counts as given up only once the note is on disk. Otherwise a restarted node could not tell a
database that lacks dropped statements from one that has all of them.

Bounds: one note per database; claims are checked every `LOOK_NS` while an executor is stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import msgspec

from chaplain.core import Persist, Replace, Report
from chaplain.errors import StorageError
from chaplain.executor.apply_queue import ApplyQueue

FILE = "executor.given-up"
LOOK_NS = 1_000_000_000


class HeldLog(Protocol):
    """The part of the journal that this module uses."""

    @property
    def keep_through(self) -> int: ...

    def held_bytes(self, now_ns: int, index: int, /) -> int:
        """Bytes of segments that could be dropped if no executor needed the messages from this one on."""
        ...


class Claims:
    def __init__(self, counts: Counter[str], bytes_max: int, stored: bytes | None, file: str = FILE) -> None:
        """`stored` is the content of the file. With a `bytes_max` of 0 no claim is ever given up."""
        self._counts = counts
        self._bytes_max = bytes_max
        self._file = file
        self._noted: dict[str, int] = decode(stored)
        self._writing: dict[int, tuple[ApplyQueue, int]] = {}
        """By ticket: the queue and message of a note that is being written."""
        self._ticket = 0
        self.due_ns: int | None = None
        self.effects: list[Persist | Report] = []

    def given_up(self, stream: str) -> int:
        """The last message with statements for the stream that the log may have dropped before they were executed."""
        return self._noted.get(stream, 0)

    def watch(self, now_ns: int) -> None:
        """Start the periodic check: an executor stopped, or lacks a part of the log."""
        if self._bytes_max and self.due_ns is None:
            self.due_ns = now_ns + LOOK_NS

    def woken(self, now_ns: int, queues: Iterable[ApplyQueue], journal: HeldLog) -> None:
        if self.due_ns is None or now_ns < self.due_ns:
            return
        stopped = [queue for queue in queues if queue.is_stuck]
        self.due_ns = now_ns + LOOK_NS if stopped else None
        for queue in stopped if not self._writing else ():
            self._check(now_ns, queue, journal)

    def _check(self, now_ns: int, queue: ApplyQueue, journal: HeldLog) -> None:
        last = queue.last_through(journal.keep_through)
        if last > queue.given_up and journal.held_bytes(now_ns, queue.first_needed()) > self._bytes_max:
            self._noted[queue.stream] = last
            self._ticket += 1
            self._writing[self._ticket] = (queue, last)
            self.effects.append(Persist(self._ticket, (Replace(self._file, encode(self._noted)),)))

    def written(self, ticket: int) -> None:
        queue, last = self._writing.pop(ticket)
        queue.given_up = last
        self._counts["logs_given_up"] += 1
        detail: dict[str, str | int] = {"stream": queue.stream, "index": last, "reason": queue.trouble}
        self.effects.append(Report("log no longer kept for a stopped executor", detail=detail))


def encode(noted: dict[str, int]) -> bytes:
    return msgspec.json.encode(dict(sorted(noted.items()))) + b"\n"


def decode(stored: bytes | None) -> dict[str, int]:
    try:
        return {} if stored is None else msgspec.json.decode(stored, type=dict[str, int])
    except msgspec.DecodeError as error:
        raise StorageError(
            f"{FILE} cannot be read ({error}): remove it and the databases of this node, which are then made again"
        ) from error
