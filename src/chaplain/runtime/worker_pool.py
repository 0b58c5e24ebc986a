"""Work that would hold up the loop, done by a few threads: checking signatures and reading the log.

Both release Python's lock while they are busy, so two threads really work side by side. Answers come back in any order;
whoever asked put a ticket on each piece of work.

A piece that finds no descriptor left goes behind the others and is done again; whatever else goes wrong in one is a
fault of ours.

Invariants: every piece of work is answered once; at most `WAITING_MAX` pieces wait, then `submit` waits, too.
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
"""How long a thread waits for somebody to close something."""
THREADS = 2

Answer = TypeVar("Answer")


class TaskGroup(NamedTuple):
    """Threads for some kinds of work, by type of what is wanted."""

    doers: Mapping[type, Callable[[Any], Any]]
    threads: int = THREADS
    give_up: Callable[[], object] = bool
    """Called when all is to end: whoever is busy with something long need not bring it to its end."""


class WorkerPool(Generic[Answer]):
    """`fd` becomes readable when `completed` has something to tell."""

    def __init__(self, threads: int = THREADS) -> None:
        self.counts: Counter[str] = Counter()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], Answer]] = deque()
        self._done: deque[Answer] = deque()
        self._failure: BaseException | None = None
        self._closing = False
        self._threads = [threading.Thread(target=self._work, name=f"labour-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, piece: Callable[[], Answer]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < WAITING_MAX)
            self._waiting.append(piece)
            self._changed.notify_all()
        self.counts["labour_pieces"] += 1

    def completed(self) -> list[Answer]:
        """What is finished since the last call. Raises what went wrong in a thread, in the loop's own thread."""
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
        while (piece := self._next()) is not None:
            try:
                self._done.append(piece())
            except NoDescriptors:
                self._put_back(piece)
                continue
            except BaseException as error:  # a fault of ours: the loop raises it and the node stops
                self._failure = error
            os.eventfd_write(self.fd, 1)

    def _put_back(self, piece: Callable[[], Answer]) -> None:
        with self._changed:
            self.counts["labour_waits_for_descriptors"] += 1
            self._waiting.append(piece)
            self._changed.wait_for(lambda: self._closing, PAUSE_S)

    def _next(self) -> Callable[[], Answer] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            if self._closing:
                return None
            piece = self._waiting.popleft()
            self._changed.notify_all()
            return piece
