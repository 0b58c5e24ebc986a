"""Waits on file descriptors and calls their handlers. Any thread may wake it. Nodes use epoll."""

from __future__ import annotations

import os
import select
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from chaplain.errors import ConfigError

HAS_EPOLL = hasattr(select, "epoll") and hasattr(os, "eventfd")
"""False outside of Linux, where only clients run."""


class Poller(Protocol):
    """The interface that the sockets of a node or a client use."""

    def watch(self, fd: int, ready: Callable[[], object]) -> None:
        """Let `run` call a function whenever this descriptor is readable."""

    def unwatch(self, fd: int) -> None: ...

    def wake(self) -> None:
        """Make `run` return soon. Any thread may call it."""

    def fileno(self) -> int:
        """A descriptor that is readable while `run` would not block."""

    def run(self, timeout_s: float) -> None:
        """Wait once, then call the handlers of ready descriptors. A negative time-out waits without limit."""

    def close(self) -> None: ...


def make_poll() -> Poller:
    return Poll() if HAS_EPOLL else PortablePoll()


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


class PortablePoll:
    """The same with what every system has, for clients outside of Linux: a selector, and a pair of sockets."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._waking = threading.Lock()
        self._closed = False
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self.watch(self._woken.fileno(), lambda: self._woken.recv(4096))

    def watch(self, fd: int, ready: Callable[[], object]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)

    def wake(self) -> None:
        with self._waking:
            if not self._closed:
                try:
                    self._wake.send(b"w")
                except BlockingIOError:
                    return  # enough octets wait already

    def fileno(self) -> int:
        """Only kqueue has such a descriptor: without one, use the blocking client."""
        found = getattr(self._selector, "fileno", None)
        if found is None:
            raise ConfigError("AsyncClient needs epoll or kqueue, which this system lacks: use Client")
        number: int = found()
        return number

    def run(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(None if timeout_s < 0 else timeout_s):
            # An earlier handler may have unwatched this one.
            if self._selector.get_map().get(key.fd) is not None:
                key.data()

    def close(self) -> None:
        with self._waking:
            self._closed = True
            self._selector.close()
            self._woken.close()
            self._wake.close()
