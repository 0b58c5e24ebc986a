"""Waits on file descriptors and calls their handlers. Any thread may wake it."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable


class Poll:
    """One epoll with its handlers, and an eventfd that wakes it."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._waking = threading.Lock()
        self._closed = False
        self._handlers: dict[int, Callable[[], object]] = {}
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._wake_fd, lambda: os.eventfd_read(self._wake_fd))

    def watch(self, fd: int, ready: Callable[[], object]) -> None:
        self._handlers[fd] = ready
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def wake(self) -> None:
        with self._waking:
            # After `close`, the number of this descriptor may belong to another file.
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)

    def fileno(self) -> int:
        """Readable while `run` would not block: an epoll descriptor can itself be polled."""
        return self._epoll.fileno()

    def run(self, timeout_s: float) -> None:
        """Wait once, then call the handlers of ready descriptors. A negative time-out waits without limit."""
        for fd, _ in self._epoll.poll(timeout_s):
            # An earlier handler may have unwatched this one.
            ready = self._handlers.get(fd)
            if ready is not None:
                ready()

    def close(self) -> None:
        with self._waking:
            self._closed = True
            self._epoll.close()
            os.close(self._wake_fd)
