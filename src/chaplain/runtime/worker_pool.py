"""A thread pool for work that would block the event loop, such as signature checks and reads of the log.

Such work releases the GIL, so two threads run in parallel. Results come back in any order; the requester puts a ticket
into each task to match them.

A task that raises `NoDescriptors` goes to the end of the queue and runs again. Any other exception is a bug: the pool
raises it in the event loop, and the node stops.

Invariants: each task has exactly one result. At most `WAITING_MAX` tasks are queued; beyond that `submit` blocks.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from chaplain.runtime.fd_limits import NoDescriptors

WAITING_MAX = 1024
PAUSE_S = 0.1
"""How long a thread waits after `NoDescriptors` before it takes the next task."""
THREADS = 2

Result = TypeVar("Result")


class TaskGroup(NamedTuple):
    """Handlers of some types of effects, and the number of threads that run them."""

    handlers: Mapping[type, Callable[[Any], Any]]
    threads: int = THREADS
    cancel: Callable[[], object] = bool
    """Called at shutdown, so that a handler can abort a long task."""


class WorkerPool(Generic[Result]):
    """Threads that run tasks. `fd` becomes readable when `completed` has results."""

    def __init__(self, threads: int = THREADS) -> None:
        self.counts: Counter[str] = Counter()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], Result]] = deque()
        self._done: deque[Result] = deque()
        self._failure: BaseException | None = None
        self._closing = False
        self._threads = [threading.Thread(target=self._work, name=f"worker-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Callable[[], Result]) -> None:
        """Queue a task. Blocks while `WAITING_MAX` tasks are queued."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < WAITING_MAX)
            self._waiting.append(task)
            self._changed.notify_all()
        self.counts["worker_tasks"] += 1

    def completed(self) -> list[Result]:
        """Return the results since the last call. Raises an exception of a task here, in the loop's thread."""
        os.eventfd_read(self.fd)
        if self._failure is not None:
            raise self._failure
        return [self._done.popleft() for _ in range(len(self._done))]

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        os.close(self.fd)

    def _work(self) -> None:
        while (task := self._next()) is not None:
            try:
                self._done.append(task())
            except NoDescriptors:
                self._put_back(task)
                continue
            except BaseException as error:  # a bug: `completed` raises it in the loop, and the node stops
                self._failure = error
            os.eventfd_write(self.fd, 1)

    def _put_back(self, task: Callable[[], Result]) -> None:
        with self._changed:
            self.counts["worker_waits_for_descriptors"] += 1
            self._waiting.append(task)
            self._changed.wait_for(lambda: self._closing, PAUSE_S)

    def _next(self) -> Callable[[], Result] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            if self._closing:
                return None
            task = self._waiting.popleft()
            self._changed.notify_all()
            return task
