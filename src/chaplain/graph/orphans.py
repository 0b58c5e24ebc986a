"""Orphans: events whose parents have not arrived, bounded per author and in total.

At a bound the oldest orphan of the same author is dropped first, so one author's flood does not displace the events of
others. A later sync delivers dropped events again. Invariant: each orphan waits for at least one missing id.
"""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.graph.messages.event import SignedEvent


class Orphan(Frozen, frozen=True):
    event: SignedEvent
    sender: bytes
    """Instance of the peer that sent it; empty: recovered from our own disk."""
    confirmations: tuple[tuple[bytes, bytes], ...]


class Orphans:
    def __init__(self, count_max: int, per_author: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._per_author = per_author
        self._bytes_max = bytes_max
        self._orphans: dict[bytes, Orphan] = {}
        self._waiting: dict[bytes, dict[bytes, None]] = {}
        """By missing parent: the orphans that wait for it."""
        self._by_author: dict[bytes, dict[bytes, None]] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._orphans)

    def __contains__(self, event_id: bytes) -> bool:
        return event_id in self._orphans

    def add(self, orphan: Orphan, missing: list[bytes]) -> int:
        """Keep the orphan until its `missing` parents arrive. Return the number of orphans dropped to make room."""
        event = orphan.event
        assert missing
        assert event.id not in self._orphans
        self._orphans[event.id] = orphan
        self.size_bytes += len(event.raw)
        self._by_author.setdefault(event.author, {})[event.id] = None
        for parent in missing:
            self._waiting.setdefault(parent, {})[event.id] = None
        return self._shrink(event.author)

    def _shrink(self, author: bytes) -> int:
        dropped = 0
        mine = self._by_author[author]
        while len(mine) > self._per_author:
            self._drop(next(iter(mine)))
            dropped += 1
        while len(self._orphans) > self._count_max or self.size_bytes > self._bytes_max:
            self._drop(self._oldest_of_largest_author())
            dropped += 1
        return dropped

    def _oldest_of_largest_author(self) -> bytes:
        """The oldest orphan of the author with the most orphans."""
        most = max(self._by_author, key=lambda author: len(self._by_author[author]))
        return next(iter(self._by_author[most]))

    def _drop(self, event_id: bytes) -> Orphan:
        orphan = self._orphans.pop(event_id)
        self.size_bytes -= len(orphan.event.raw)
        mine = self._by_author[orphan.event.author]
        del mine[event_id]
        if not mine:
            del self._by_author[orphan.event.author]
        for link in orphan.event.links:
            waiting = self._waiting.get(link.id)
            if waiting is not None:
                waiting.pop(event_id, None)
                if not waiting:
                    del self._waiting[link.id]
        return orphan

    def take_stream(self, stream: str) -> list[Orphan]:
        """Remove and return all orphans of one stream."""
        mine = [event_id for event_id, orphan in self._orphans.items() if orphan.event.stream == stream]
        return [self._drop(event_id) for event_id in mine]

    def take_children(self, parent: bytes) -> list[Orphan]:
        """Remove and return the orphans that wait for this parent. They may still lack another parent."""
        return [self._drop(event_id) for event_id in list(self._waiting.get(parent, ()))]
