"""A thread that puts `Persist` effects on disk and says so, in order.

It takes everything that is queued, performs it, syncs each touched file once, and only then completes all of it. After
the first error nothing is tried again and everything fails: a failed sync may have thrown away what it was to
write, and a later one would not notice. Only a write that found no room waits until there is some: nothing of it was
lost, and nobody was told anything.

Invariants: tickets complete in the order they came, each exactly once; `Persisted` follows the sync of all that is
in its ticket and before; the queue holds at most `queue_bytes_max`, or one ticket.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque

from chaplain.core import Operation, Persist, Persisted, PersistFailed, Replace, WriteAt
from chaplain.errors import StorageError
from chaplain.runtime.disk import Disk
from chaplain.runtime.files import Files, NoRoom

QUEUE_BYTES_MAX = 256 * 1024 * 1024
STORAGE_STOP_S = 10.0
ROOM_POLL_S = 0.2
"""A full disk is tried again after this."""


def _size_bytes(persist: Persist) -> int:
    return sum(len(o.data) if isinstance(o, WriteAt | Replace) else 0 for o in persist.operations)


class Storage:
    """The disk of one node. `fd` becomes readable when `completed` has something to tell."""

    def __init__(self, disk: Disk, queue_bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self.counts: Counter[str] = Counter()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._queue_bytes_max = queue_bytes_max
        self._files = Files(disk)
        self._room = threading.Condition()
        self._queue: list[Persist] = []
        self._queue_bytes = 0
        self._done: deque[Persisted | PersistFailed] = deque()
        self._failure = ""
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="storage", daemon=True)
        self._thread.start()

    def submit(self, persists: list[Persist]) -> None:
        """Queue these. Waits while the queue is full: a node that outruns its disk must slow down."""
        with self._room:
            for persist in persists:
                self._room.wait_for(lambda: self._queue_bytes < self._queue_bytes_max)
                self._queue.append(persist)
                self._queue_bytes += _size_bytes(persist)
                if self._queue_bytes >= self._queue_bytes_max:
                    self._room.notify_all()
            self._room.notify_all()

    def completed(self) -> list[Persisted | PersistFailed]:
        """What is finished since the last call."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return []
        return [self._done.popleft() for _ in range(len(self._done))]

    @property
    def queued_bytes(self) -> int:
        return self._queue_bytes

    def close(self) -> None:
        """Finish what is queued, then end."""
        with self._room:
            self._closing = True
            self._room.notify_all()
        self._thread.join(STORAGE_STOP_S)
        if self._thread.is_alive():
            raise StorageError("the disk did not finish in time; what was queued last may not be on it")
        os.close(self.fd)

    def _work(self) -> None:
        while True:
            with self._room:
                self._room.wait_for(lambda: self._queue or self._closing)
                group, self._queue = self._queue, []
            if not group:
                self._files.close()
                return
            self._complete(group)
            with self._room:
                self._queue_bytes -= sum(map(_size_bytes, group))
                assert self._queue_bytes >= 0
                self._room.notify_all()

    def _complete(self, group: list[Persist]) -> None:
        if not self._failure:
            self._attempt(group)
        for persist in group:
            failed = PersistFailed(persist.ticket, self._failure)
            self._done.append(failed if self._failure else Persisted(persist.ticket))
        os.eventfd_write(self.fd, 1)

    def _attempt(self, group: list[Persist]) -> None:
        started_ns = time.monotonic_ns()
        try:
            for persist in group:
                for operation in persist.operations:
                    self._perform(operation)
            self._files.sync()
        except Exception as error:  # a fault of ours in this thread must stop the node as well, not leave it waiting
            self._failure = str(error) if isinstance(error, OSError | StorageError) else repr(error)
            self.counts["storage_failures"] += 1
        self.counts["storage_groups"] += 1
        self.counts["storage_tickets"] += len(group)
        self.counts["storage_busy_microseconds"] += (time.monotonic_ns() - started_ns) // 1000

    def _perform(self, operation: Operation) -> None:
        while True:
            try:
                return self._files.perform(operation)
            except NoRoom as full:
                self.counts["storage_waits_for_room"] += 1
                with self._room:
                    if self._room.wait_for(lambda: self._closing, ROOM_POLL_S):
                        raise StorageError(f"the disk is full, and the node was asked to stop: {full}") from full
