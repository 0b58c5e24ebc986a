"""The window base: the state before the oldest entry in the window. A joining node starts from it.

It contains the work set and the ends of the streams. The log's own base contains index, ballot and hash.

Invariant: the window base and the log's base are at the same index. So a node that starts from it and applies the
entries after it can serve the same reads as this node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from chaplain.sequence.window.entries import HeldEntry
from chaplain.sequence.window.log import set_after
from chaplain.sequence.work_set import WorkSet

StreamEnd = tuple[int, bytes]
"""A stream's last number, and its hash."""


class WindowBase:
    def __init__(self, members: WorkSet = (), streams: Mapping[str, StreamEnd] | None = None) -> None:
        self.members = members
        self.streams: dict[str, StreamEnd] = dict(streams or {})
        self._ends: deque[tuple[int, str, StreamEnd]] = deque()
        """The stream end after each run that is kept, by entry index, so that no hash is computed twice."""

    def record_end(self, index: int, stream: str, end: StreamEnd) -> None:
        """Record the stream's end after an entry."""
        self._ends.append((index, stream, end))

    def advance(self, forgotten: Iterable[HeldEntry]) -> None:
        """Move the base past these entries, which have left the window."""
        for held in forgotten:
            self.members = set_after(self.members, held.entry)
            while self._ends and self._ends[0][0] <= held.index:
                _, stream, end = self._ends.popleft()
                self.streams[stream] = end
