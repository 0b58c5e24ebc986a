"""In-memory index from stream and offset to the cluster message that contains it."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence

from chaplain.journal.model.results import AppliedMessage


class StreamIndex:
    """For each stream: the cluster messages that wrote to it, and the first offset of each."""

    def __init__(self) -> None:
        self._firsts: dict[str, array[int]] = {}
        self._indexes: dict[str, array[int]] = {}
        self._nexts: dict[str, int] = {}
        self.names: list[str] = []
        """Names of all streams, sorted, so that they can be listed page by page."""
        self.messages = 0
        """Number of messages in all streams."""

    def load_heads(self, nexts: Mapping[str, int]) -> None:
        """Set the next offset of each stream from a checkpoint."""
        self._nexts = dict(nexts)
        self.names = sorted(nexts)
        self.messages = sum(nexts.values())

    def drop_before(self, first: int) -> None:
        """Remove the entries of cluster messages before this one: the log no longer contains them."""
        for stream, indexes in self._indexes.items():
            gone = bisect_left(indexes, first)
            del indexes[:gone], self._firsts[stream][:gone]

    def prepend(self, earlier: Sequence[AppliedMessage]) -> None:
        """Add messages that precede all others in this index, in their order."""
        before = StreamIndex()
        for executed in earlier:
            before.add(executed)
        for stream, firsts in before._firsts.items():
            self._firsts[stream] = firsts + self._firsts.get(stream, array("Q"))
            self._indexes[stream] = before._indexes[stream] + self._indexes.get(stream, array("Q"))

    def first_offset(self, stream: str) -> int:
        """The first offset that can be read; the next offset if the log contains no message of the stream."""
        firsts = self._firsts.get(stream)
        return firsts[0] if firsts else self.next_offset(stream)

    def add(self, executed: AppliedMessage) -> None:
        for written in executed.verdict.streams:
            if written.stream not in self._firsts:
                self._firsts[written.stream], self._indexes[written.stream] = array("Q"), array("Q")
            self._firsts[written.stream].append(written.first_offset)
            self._indexes[written.stream].append(executed.position.index)
            self._advance(written.stream, written.first_offset + written.count)

    def _advance(self, stream: str, next_offset: int) -> None:
        before = self._nexts.get(stream)
        if before is None:
            insort(self.names, stream)
        elif next_offset <= before:
            return
        self._nexts[stream] = next_offset
        self.messages += next_offset - (before or 0)

    def next_offset(self, stream: str) -> int:
        return self._nexts.get(stream, 0)

    def find(self, stream: str, offset: int) -> int:
        """The cluster message that wrote this offset. The offset must be written and still be in the log."""
        assert self.first_offset(stream) <= offset < self.next_offset(stream)
        return self._indexes[stream][bisect_right(self._firsts[stream], offset) - 1]
