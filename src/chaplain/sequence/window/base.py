"""The foot of the window: what held before the oldest entry that is kept. Who joins starts from it.

It refuses to know entries, ballots and hashes of the log, which are the base's there.

Invariant: it stands where the log's base stands. So whoever starts from it and takes the entries behind it can show
its readers all that this node can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from chaplain.sequence.window.entries import HeldEntry
from chaplain.sequence.window.log import set_behind
from chaplain.sequence.work_set import WorkSet

End = tuple[int, bytes]
"""A stream's last number, and its hash."""


class WindowBase:
    def __init__(self, members: WorkSet = (), streams: Mapping[str, End] | None = None) -> None:
        self.members = members
        self.streams: dict[str, End] = dict(streams or {})
        self._ends: deque[tuple[int, str, End]] = deque()
        """Where streams ended behind each run that is kept, by the index of its entry: no hash is worked out twice."""

    def note(self, index: int, stream: str, end: End) -> None:
        self._ends.append((index, stream, end))

    def rise(self, forgotten: Iterable[HeldEntry]) -> None:
        """The oldest entries were forgotten."""
        for held in forgotten:
            self.members = set_behind(self.members, held.entry)
            while self._ends and self._ends[0][0] <= held.index:
                _, stream, end = self._ends.popleft()
                self.streams[stream] = end
