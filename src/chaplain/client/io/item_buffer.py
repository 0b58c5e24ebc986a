"""A bounded buffer of items that a listener has not taken yet.

At the bound the newest item is dropped and counted. The next item that fits reports the count in `missed`. Dropping the
newest keeps the items that a slow listener already has contiguous, and the count marks the position of the gap. One
thread may put items while other threads take them.
"""

from __future__ import annotations

from collections import deque
from threading import Lock

from msgspec.structs import replace

from chaplain.client.types.results import ListenerItem, size_bytes

ITEMS_MAX = 10_000
BYTES_MAX = 64 * 1024 * 1024


class Inbox:
    """A bounded queue of items."""

    def __init__(self, items_max: int = ITEMS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._items: deque[ListenerItem] = deque()
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._dropped = 0
        self._dropped_moved = False
        self._lock = Lock()

    @property
    def missed(self) -> int:
        """Dropped items that no later item has reported yet."""
        return self._dropped

    def put(self, item: ListenerItem) -> None:
        size = size_bytes(item)
        with self._lock:
            if len(self._items) >= self._items_max or self._held_bytes + size > self._bytes_max:
                self._dropped += 1 + item.missed
                self._dropped_moved |= item.moved
                return
            if self._dropped:
                item = replace(item, missed=item.missed + self._dropped, moved=item.moved or self._dropped_moved)
                self._dropped, self._dropped_moved = 0, False
            self._items.append(item)
            self._held_bytes += size

    def take(self) -> ListenerItem | None:
        with self._lock:
            if not self._items:
                return None
            item = self._items.popleft()
            self._held_bytes -= size_bytes(item)
            return item
