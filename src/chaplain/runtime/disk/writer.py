"""Writes `Persist` effects to disk and reports their completion, in order.

Small writes that find the storage thread idle are written and synced by the caller's thread: on a fast disk, handing
them to another thread and back costs more than the sync. After a slow sync all writes go to the thread for
`SLOW_FOR_NS`, so that a slow disk does not block the event loop.

The thread takes everything that is queued (group commit), performs it, syncs each changed file once, and only then
reports completion. After the first error it fails all later operations and retries none: a failed fsync may have
dropped dirty pages, and a later fsync would succeed without them. The exception is a write to a full disk, which waits
until there is space: nothing was lost, and nothing was reported.

Invariants: tickets complete in the order of submission, each exactly once. `Persisted` follows the sync of its own and
all earlier tickets. The queue contains at most `queue_bytes_max` bytes, except that an empty queue accepts one larger
ticket.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque

from chaplain.core import Operation, Persist, Persisted, PersistFailed, Replace, WriteAt
from chaplain.errors import StorageError
from chaplain.runtime.disk.operations import DataFiles, NoRoom
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.units import SECOND_NS

QUEUE_BYTES_MAX = 256 * 1024 * 1024
STORAGE_STOP_S = 10.0
"""How long `close` waits for queued writes."""
SMALL_BYTES = 64 * 1024
"""Groups of writes up to this size may be written by the caller's thread."""
SLOW_NS = 10_000_000
"""After a sync that took longer than this, all writes go to the storage thread for `SLOW_FOR_NS`."""
SLOW_FOR_NS = SECOND_NS
ROOM_POLL_S = 0.2
"""Interval between attempts to write to a full disk."""


def _size_bytes(persist: Persist) -> int:
    return sum(len(o.data) if isinstance(o, WriteAt | Replace) else 0 for o in persist.operations)


class DiskWriter:
    """The disk of one node. `fd` becomes readable when `completed` has results. Only one thread may submit writes."""

    def __init__(self, disk: DataDirectory, queue_bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self.counts: Counter[str] = Counter()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._queue_bytes_max = queue_bytes_max
        self._files = DataFiles(disk)
        self._room = threading.Condition()
        self._queue: list[Persist] = []
        self._queue_bytes = 0
        self._busy = False
        """Whether the thread is writing, or writes are queued for it."""
        self._slow_until_ns = 0
        self._done: deque[Persisted | PersistFailed] = deque()
        self._failure = ""
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="storage", daemon=True)
        self._thread.start()

    def submit(self, persists: list[Persist]) -> bool:
        """Write these now or queue them. Return whether they are on disk already.

        Blocks while the queue is full, so that a node that is faster than its disk slows down (back-pressure).
        """
        if done := self.write_now(persists):
            self._report(done)
            return True
        with self._room:
            self._busy = True
            for persist in persists:
                self._room.wait_for(lambda: self._queue_bytes < self._queue_bytes_max)
                self._queue.append(persist)
                self._queue_bytes += _size_bytes(persist)
                if self._queue_bytes >= self._queue_bytes_max:
                    self._room.notify_all()
            self._room.notify_all()
        return False

    def write_now(self, persists: list[Persist]) -> list[Persisted | PersistFailed]:
        """Write and sync these in the caller's thread if they are small, and return the results.

        An empty list means that the caller has to `submit` them. `completed` does not return these results. An idle
        storage thread stays idle during the call, because only one thread submits writes.
        """
        # This needs no lock: only the submitting thread sets `_busy`, and the storage thread clears it when its queue
        # is empty. But if completions of the storage thread wait in `_done`, they have to be reported first.
        if self._busy or self._done or self._failure or time.monotonic_ns() < self._slow_until_ns:
            return []
        size_bytes = 0
        for persist in persists:
            for operation in persist.operations:
                if type(operation) is not WriteAt:
                    return []
                size_bytes += len(operation.data)
        if size_bytes > SMALL_BYTES:
            return []
        try:
            for persist in persists:
                for operation in persist.operations:
                    self._files.perform(operation)
        except NoRoom:
            return []  # the storage thread repeats the whole group, because it can wait for space
        except Exception as error:
            self._fail(error)
        return self._finish(persists)

    def completed(self) -> list[Persisted | PersistFailed]:
        """Return the results since the last call."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return []
        return [self._done.popleft() for _ in range(len(self._done))]

    @property
    def queued_bytes(self) -> int:
        return self._queue_bytes

    def close(self) -> None:
        """Write everything that is queued, then end the thread."""
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
                self._busy = bool(self._queue)
                self._room.wait_for(lambda: self._queue or self._closing)
                group, self._queue = self._queue, []
            if not group:
                self._files.close()
                return
            self._perform_all(group)
            self._report(self._finish(group))
            with self._room:
                self._queue_bytes -= sum(map(_size_bytes, group))
                assert self._queue_bytes >= 0
                self._room.notify_all()

    def _perform_all(self, group: list[Persist]) -> None:
        try:
            for persist in group if not self._failure else ():
                for operation in persist.operations:
                    self._perform(operation)
        except Exception as error:
            self._fail(error)

    def _finish(self, group: list[Persist]) -> list[Persisted | PersistFailed]:
        """Sync the performed operations and return the result of each ticket."""
        started_ns = time.monotonic_ns()
        try:
            if not self._failure:
                self._files.sync()
        except Exception as error:
            self._fail(error)
        now_ns = time.monotonic_ns()
        if now_ns - started_ns > SLOW_NS:
            self._slow_until_ns = now_ns + SLOW_FOR_NS
        self.counts["storage_groups"] += 1
        self.counts["storage_tickets"] += len(group)
        self.counts["storage_busy_microseconds"] += (now_ns - started_ns) // 1000
        failure = self._failure
        return [PersistFailed(each.ticket, failure) if failure else Persisted(each.ticket) for each in group]

    def _report(self, done: list[Persisted | PersistFailed]) -> None:
        self._done.extend(done)
        os.eventfd_write(self.fd, 1)

    def _fail(self, error: Exception) -> None:
        """Fail this and all later tickets. A bug must stop the node as well, and not leave it waiting for a result."""
        self._failure = str(error) if isinstance(error, OSError | StorageError) else repr(error)
        self.counts["storage_failures"] += 1

    def _perform(self, operation: Operation) -> None:
        while True:
            try:
                return self._files.perform(operation)
            except NoRoom as full:
                self.counts["storage_waits_for_room"] += 1
                with self._room:
                    if self._room.wait_for(lambda: self._closing, ROOM_POLL_S):
                        raise StorageError(f"the disk is full, and the node was asked to stop: {full}") from full
