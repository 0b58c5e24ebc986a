"""Where the agreed messages of a log are, and which of its segments hold nothing further on than a given message.

Decides what can be read and what would go with a segment. Refuses to decide what may go: `retention` does.

Invariants: segments go from the front and never the one that is written to; a message of which anything went counts as
gone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from chaplain.segment.header import SegmentHeader


class SegmentSpan:
    """One segment."""

    def __init__(self, sequence: int, base: int, end: int, last: int = 0, newest_ns: int = 0) -> None:
        self.sequence = sequence
        self.base = base
        self.end = end
        self.last = last
        """The furthest message of which anything is here."""
        self.newest_ns = newest_ns
        """Cluster time of the latest message here."""

    @property
    def size_bytes(self) -> int:
        return self.end - self.base


class SegmentIndex:
    def __init__(self, first: int = 1, begins: int = 0) -> None:
        self.first = first
        """No message before this one can be read."""
        self.in_order_from = begins or first
        """From this one on messages lie in their order; those before it, if there are any, were put back later."""
        self.segments: list[SegmentSpan] = []
        self._origin = first
        self._starts, self._ends = array("Q"), array("Q")

    def add_segment(self, header: SegmentHeader) -> None:
        """The log has come to this segment."""
        known = self.segments[-1] if self.segments else None
        if known is None or known.sequence + 1 == header.sequence:
            self.segments.append(SegmentSpan(header.sequence, header.base, header.end))
        elif known.sequence < header.sequence:
            # A long message went through the ones between.
            share = (header.base - known.end) // (header.sequence - known.sequence - 1)
            for place in range(header.sequence - known.sequence - 1):
                base = known.end + place * share
                self.segments.append(SegmentSpan(known.sequence + 1 + place, base, base + share))
            self.segments.append(SegmentSpan(header.sequence, header.base, header.end))

    def extend_segments(self, index: int, start: int, end: int, timestamp_ns: int = 0) -> None:
        """Something of a message is there: it goes with any of these segments."""
        for segment in reversed(self.segments):
            if segment.end <= start:
                break
            if segment.base < end:
                segment.last = max(segment.last, index)
                segment.newest_ns = max(segment.newest_ns, timestamp_ns)

    def set_position(self, index: int, start: int, end: int, timestamp_ns: int = 0) -> None:
        """The newest copy of a message is there."""
        self.extend_segments(index, start, end, timestamp_ns)
        place = index - self._origin
        if place < 0:
            return
        if place >= len(self._starts):
            more = [0] * (place + 1 - len(self._starts))
            self._starts.extend(more)
            self._ends.extend(more)
        self._starts[place], self._ends[place] = start, end

    def prepend(self, spans: Sequence[tuple[int, int]]) -> None:
        """The messages right before the first are there, one after the other."""
        self._starts[:0] = array("Q", [start for start, _ in spans])
        self._ends[:0] = array("Q", [end for _, end in spans])
        self.first = self._origin = self.first - len(spans)

    def span(self, index: int, through: int, bytes_max: int) -> tuple[int, int] | None:
        """Positions of messages from this index on, one after the other; None if the first is not here."""
        if not self.first <= index <= through or index - self._origin >= len(self._starts):
            return None
        place = index - self._origin
        start, end = self._starts[place], self._ends[place]
        for at in range(place + 1, min(through - self._origin + 1, len(self._starts))):
            if self._starts[at] < end or self._ends[at] - start > bytes_max:
                break
            end = self._ends[at]
        return start, end

    def span_back(self, index: int, through: int, bytes_max: int, count_max: int) -> tuple[int, int] | None:
        """Positions of this message and those before it, one after the other; None if it is not here."""
        span = self.span(index, min(index, through), bytes_max)
        if span is None:
            return None
        start, end = span
        place, bottom = index - self._origin, self.first - self._origin
        for at in range(place - 1, max(bottom, place + 1 - count_max) - 1, -1):
            if not 0 < self._ends[at] <= start or end - self._starts[at] > bytes_max:
                break
            start = self._starts[at]
        return start, end

    def droppable(self, limit: int) -> list[SegmentSpan]:
        """The segments from the front that hold nothing behind this message."""
        found: list[SegmentSpan] = []
        for segment in self.segments[:-1]:
            if segment.last > limit:
                break
            found.append(segment)
        return found

    def drop(self, segment: SegmentSpan) -> None:
        """The first segment goes, and every message of which something was in it."""
        assert self.segments[0] is segment, "segments go from the front"
        assert len(self.segments) > 1, "the segment that is written to stays"
        del self.segments[0]
        self.first = max(self.first, segment.last + 1)
        self.in_order_from = max(self.in_order_from, self.first)
        spare = self.first - self._origin
        if spare > 0:
            del self._starts[:spare], self._ends[:spare]
            self._origin = self.first
