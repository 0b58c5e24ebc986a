"""Sockets that a program's own loop watches: their owner does not wait in them, but is called when something comes."""

from __future__ import annotations

from chaplain.link.sockets import Sockets


class WatchedSockets(Sockets):
    def fileno(self) -> int:
        """Can be read whenever `wait` would not wait: an epoll may itself be watched."""
        return self._poll._epoll.fileno()

    def left_alone_s(self, timeout_ns: int | None) -> float | None:
        """For how long `wait` need not be called while that descriptor is silent; None: for as long as it is."""
        left_s = self._timeout_s(timeout_ns)
        return None if left_s < 0 else left_s
