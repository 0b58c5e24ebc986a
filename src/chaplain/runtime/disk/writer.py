"""Puts `Persist` effects on disk and says so, in order: small ones at once, the others in a thread of its own.

What is small and finds the thread idle is written and synced by whoever gave it: handing it over and back costs more
than a quick disk. A disk that was slow gets the thread for a while, so that it holds up nobody for long.

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
from chaplain.runtime.disk.operations import DataFiles, NoRoom
from chaplain.runtime.disk.syscalls import DataDirectory

QUEUE_BYTES_MAX = 256 * 1024 * 1024
STORAGE_STOP_S = 10.0
SMALL_BYTES = 64 * 1024
SLOW_NS = 10_000_000
"""A sync that took longer makes the next ones go to the thread, for `SLOW_FOR_NS`."""
SLOW_FOR_NS = 1_000_000_000
ROOM_POLL_S = 0.2
"""A full disk is tried again after this."""


def _size_bytes(persist: Persist) -> int:
    return sum(len(o.data) if isinstance(o, WriteAt | Replace) else 0 for o in persist.operations)


class DiskWriter:
    """The disk of one node. `fd` becomes readable when `completed` has something to tell."""

    def __init__(self, disk: DataDirectory, queue_bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self.counts: Counter[str] = Counter()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._queue_bytes_max = queue_bytes_max
        self._files = DataFiles(disk)
        self._room = threading.Condition()
        self._queue: list[Persist] = []
        self._queue_bytes = 0
        self._busy = False
        """The thread has something in hand, or something waits for it."""
        self._slow_until_ns = 0
        self._done: deque[Persisted | PersistFailed] = deque()
        self._failure = ""
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="storage", daemon=True)
        self._thread.start()

    def submit(self, persists: list[Persist]) -> bool:
        """Do these, or queue them; says whether they are done. Waits while the queue is full: a node that outruns its
        disk must slow down.
        """
        if done := self.at_once(persists):
            self._tell(done)
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

    def at_once(self, persists: list[Persist]) -> list[Persisted | PersistFailed]:
        """Do these here, if they are small, and say what came of it; nothing of it comes through `completed`. Empty:
        they are to be submitted. Nobody else submits, so an idle thread stays idle meanwhile.
        """
        # Without the lock: only we say that the thread is busy, and it takes that back when nothing is left for it. But
        # what it finished may not have been told yet, and comes first.
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
            return []  # done again, all of it, by the thread, which can wait
        except Exception as error:
            self._fail(error)
        return self._finish(persists)

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
                self._busy = bool(self._queue)
                self._room.wait_for(lambda: self._queue or self._closing)
                group, self._queue = self._queue, []
            if not group:
                self._files.close()
                return
            self._perform_all(group)
            self._tell(self._finish(group))
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
        """Sync what was performed, and say what came of it."""
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

    def _tell(self, done: list[Persisted | PersistFailed]) -> None:
        self._done.extend(done)
        os.eventfd_write(self.fd, 1)

    def _fail(self, error: Exception) -> None:
        """A fault of ours, too, must stop the node and not leave it waiting."""
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
