"""The delivered events that readers can fetch: those in the window, which a joining node can copy, too.

Invariant: the kept events of a stream have no gaps and end at its head.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from chaplain.sequence.events import Delivered, HistoryBegan
from chaplain.sequence.messages.client import PageRun, SequencePage
from chaplain.sequence.messages.entry import event_hashes


class DeliveredWindow:
    def __init__(self) -> None:
        self.history = 0
        self._heads: dict[str, int] = {}
        self._runs: dict[str, deque[Delivered]] = {}
        self._by_age: deque[Delivered] = deque()
        """All kept runs, oldest first."""
        self._hashed: tuple[Delivered, list[bytes]] | None = None
        """The run that `hash_of` was last asked about, and the hashes of its events."""

    def restart(self, began: HistoryBegan) -> None:
        """Start anew with another history."""
        self.history = began.history
        self._heads = {stream: number for stream, (number, _) in began.streams.items()}
        self._runs.clear()
        self._by_age.clear()
        self._hashed = None

    def add(self, delivered: Delivered) -> None:
        stream = delivered.run.stream
        assert delivered.first == self._heads.get(stream, 0) + 1, "deliveries have no gaps"
        self._heads[stream] = delivered.first + len(delivered.run.lengths) - 1
        self._runs.setdefault(stream, deque()).append(delivered)
        self._by_age.append(delivered)

    def drop_through(self, index: int) -> None:
        """Drop everything up to this entry."""
        while self._by_age and self._by_age[0].index <= index:
            oldest = self._by_age.popleft()
            runs = self._runs[oldest.run.stream]
            runs.popleft()
            if not runs:
                del self._runs[oldest.run.stream]

    def heads(self) -> dict[str, int]:
        return self._heads

    def head(self, stream: str) -> int:
        return self._heads.get(stream, 0)

    def first(self, stream: str) -> int:
        runs = self._runs.get(stream)
        return runs[0].first if runs else self.head(stream) + 1

    def hash_of(self, stream: str, number: int) -> bytes:
        """The hash of a kept event. The events of one run are hashed once, if they are asked about one after the
        other.
        """
        runs = self._runs[stream]
        run = runs[bisect_right(runs, number, key=lambda run: run.first) - 1]
        if self._hashed is None or self._hashed[0] is not run:
            self._hashed = run, list(event_hashes(run.before, run.first, run.run.values()))
        return self._hashed[1][number - run.first]

    def page(self, stream: str, start: int, bytes_max: int, *, whole: bool = False) -> SequencePage:
        """Events from this number on: at least one run, if there is one. With `whole`, the page begins with the first
        event of a run.
        """
        runs = self._runs.get(stream) or deque()
        place = max(0, bisect_right(runs, start, key=lambda run: run.first) - 1)
        chosen: list[PageRun] = []
        size = 0
        while place < len(runs) and (not chosen or size < bytes_max):
            skip = max(0, start - runs[place].first)
            if whole and skip < len(runs[place].run.lengths):
                skip = 0
            if skip < len(runs[place].run.lengths):
                chosen.append(_show(runs[place], skip))
                size += _size(runs[place])
            place += 1
        return SequencePage(self.history, self.first(stream), self.head(stream), chosen)


def _show(delivered: Delivered, skip: int) -> PageRun:
    values = list(delivered.run.values())
    before = delivered.before
    for hash_ in event_hashes(before, delivered.first, values[:skip]):
        before = hash_
    return PageRun(delivered.first + skip, delivered.run.publisher, before, values[skip:])


def _size(delivered: Delivered) -> int:
    return delivered.run.end - delivered.run.at + 4 * len(delivered.run.lengths) + 64
