"""Deduplication of messages in bounded memory, and the most recent messages for repair.

Each origin counts its messages within a run (`epoch`). So a window of bits behind its newest counter records them
exactly. A message behind the window, or of an earlier run, counts as old and is never accepted: forgetting never makes
a message new again. Only messages with a verified signature may be recorded. Otherwise a forged message could cause a
genuine one to be dropped.

Invariants:
- a message is fresh at most once while its origin is a member;
- there are windows for members and at most `strangers_max` others.
"""

from __future__ import annotations

from collections.abc import Callable

from chaplain.gossip.events import EventId
from chaplain.gossip.settings import GossipSettings


class Window:
    """The messages that were seen of one origin."""

    __slots__ = ("epoch", "mask", "newest")

    def __init__(self, epoch: int, newest: int) -> None:
        self.epoch = epoch
        self.newest = newest
        self.mask = 1
        """Bit i: the message `newest - i` was seen."""


class SeenMessages:
    def __init__(self, settings: GossipSettings, is_member: Callable[[int], bool]) -> None:
        self._settings = settings
        self._full = (1 << settings.window) - 1
        self._is_member = is_member
        self._windows: dict[int, Window] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def is_fresh(self, event_id: EventId) -> bool:
        """True if the message is certainly new. A message behind the window may have been seen, so it does not count as
        new.
        """
        window = self._windows.get(event_id.origin)
        if window is None or event_id.epoch > window.epoch:
            return True
        if event_id.epoch < window.epoch:
            return False
        behind = window.newest - event_id.counter
        if behind < 0:
            return True
        return behind < self._settings.window and not window.mask >> behind & 1

    def add(self, event_id: EventId, members: int) -> None:
        """Record a fresh and genuine message; `members` is the number of present members."""
        assert self.is_fresh(event_id)
        window = self._windows.pop(event_id.origin, None)
        if window is None or event_id.epoch > window.epoch:
            window = Window(event_id.epoch, event_id.counter)
        else:
            self._mark(window, event_id.counter)
        self._windows[event_id.origin] = window
        self._trim(members + self._settings.strangers_max)

    def _mark(self, window: Window, counter: int) -> None:
        ahead = counter - window.newest
        if ahead <= 0:
            window.mask |= 1 << -ahead
        elif ahead >= self._settings.window:
            window.newest, window.mask = counter, 1
        else:
            window.newest, window.mask = counter, (window.mask << ahead | 1) & self._full

    def _trim(self, limit: int) -> None:
        """Forget the non-members that were silent longest. A member at the head of the queue moves to its end."""
        while len(self._windows) > limit:
            origin = next(iter(self._windows))
            window = self._windows.pop(origin)
            if self._is_member(origin):
                self._windows[origin] = window


class RecentMessages:
    """The newest messages in their encoded form, for repair."""

    def __init__(self, settings: GossipSettings) -> None:
        self._settings = settings
        self._bodies: dict[EventId, tuple[int, bytes]] = {}
        self._size = 0

    def add(self, event_id: EventId, body: bytes, now_ns: int) -> None:
        self._bodies[event_id] = (now_ns, body)
        self._size += len(body)
        while len(self._bodies) > self._settings.recent_max or self._size > self._settings.recent_bytes_max:
            self._drop_oldest()

    def get(self, event_id: EventId) -> bytes | None:
        held = self._bodies.get(event_id)
        return None if held is None else held[1]

    def newest(self, count: int, now_ns: int) -> tuple[EventId, ...]:
        """The last `count` messages that are recent enough for repair."""
        while self._bodies and now_ns - next(iter(self._bodies.values()))[0] > self._settings.recent_age_ns:
            self._drop_oldest()
        return tuple(list(self._bodies)[-count:])

    def _drop_oldest(self) -> None:
        _, body = self._bodies.pop(next(iter(self._bodies)))
        self._size -= len(body)
