"""Items that were yielded and not yet taken, with a bound.

At the bound the newest item is dropped and counted; the next one that fits says how many. Dropping the newest keeps
what a slow listener already has in one piece, and the count stands where the hole is. The lock makes it fit for one
thread that puts and others that take.
"""

from __future__ import annotations

from collections import deque
from threading import Lock

from msgspec.structs import replace

from chaplain.client.types.results import Heard, size_bytes

ITEMS_MAX = 10_000
BYTES_MAX = 64 * 1024 * 1024


class Inbox:
    def __init__(self, items_max: int = ITEMS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._items: deque[Heard] = deque()
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._dropped = 0
        self._dropped_moved = False
        self._lock = Lock()

    @property
    def missed(self) -> int:
        """Items dropped here that no item has told of yet."""
        return self._dropped

    def put(self, item: Heard) -> None:
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

    def take(self) -> Heard | None:
        with self._lock:
            if not self._items:
                return None
            item = self._items.popleft()
            self._held_bytes -= size_bytes(item)
            return item
