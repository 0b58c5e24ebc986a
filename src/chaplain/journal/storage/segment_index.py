"""Positions of the agreed messages of a log, and which segments contain only messages up to a given one.

Decides which messages can be read, and which ones become unreadable when a segment is deleted. Refuses to decide which
segments may be deleted: `snapshots.retention` does.

Invariants: segments are deleted from the front, and never the current one. A message counts as deleted if any part of
it was in a deleted segment.
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
        """The highest message of which this segment contains a part."""
        self.newest_ns = newest_ns
        """Cluster time of the latest message in this segment."""

    @property
    def size_bytes(self) -> int:
        return self.end - self.base


class SegmentIndex:
    """All segments of a log, and the start and end position of each message."""

    def __init__(self, first: int = 1, begins: int = 0) -> None:
        self.first = first
        """The first message that can be read."""
        self.in_order_from = begins or first
        """From this message on, messages are stored in the order of their indexes. Earlier ones were
        backfilled later.
        """
        self.segments: list[SegmentSpan] = []
        self._origin = first
        self._starts, self._ends = array("Q"), array("Q")

    def add_segment(self, header: SegmentHeader) -> None:
        """Record that the log now writes to this segment."""
        known = self.segments[-1] if self.segments else None
        if known is None or known.sequence + 1 == header.sequence:
            self.segments.append(SegmentSpan(header.sequence, header.base, header.end))
        elif known.sequence < header.sequence:
            # One long message filled the segments in between, so no header of them was reported.
            share = (header.base - known.end) // (header.sequence - known.sequence - 1)
            for number in range(header.sequence - known.sequence - 1):
                base = known.end + number * share
                self.segments.append(SegmentSpan(known.sequence + 1 + number, base, base + share))
            self.segments.append(SegmentSpan(header.sequence, header.base, header.end))

    def extend_segments(self, index: int, start: int, end: int, timestamp_ns: int = 0) -> None:
        """Record that these positions contain a part of the message: it becomes unreadable when one of their segments
        is deleted.
        """
        for segment in reversed(self.segments):
            if segment.end <= start:
                break
            if segment.base < end:
                segment.last = max(segment.last, index)
                segment.newest_ns = max(segment.newest_ns, timestamp_ns)

    def set_position(self, index: int, start: int, end: int, timestamp_ns: int = 0) -> None:
        """Record the position of the newest copy of a message."""
        self.extend_segments(index, start, end, timestamp_ns)
        slot = index - self._origin
        if slot < 0:
            return
        more = slot - len(self._starts)
        if more > 0:
            self._starts.extend([0] * more)
            self._ends.extend([0] * more)
        if more >= 0:
            self._starts.append(start)
            self._ends.append(end)
        else:
            self._starts[slot], self._ends[slot] = start, end

    def extend_position(self, index: int, end: int) -> None:
        """Record that the verdict of a message ends at this position, behind its other records."""
        slot = index - self._origin
        if 0 <= slot < len(self._ends) and self._starts[slot] < end:
            self._ends[slot] = end

    def prepend(self, spans: Sequence[tuple[int, int]]) -> None:
        """Record the spans of the messages directly before the first one."""
        self._starts[:0] = array("Q", [start for start, _ in spans])
        self._ends[:0] = array("Q", [end for _, end in spans])
        self.first = self._origin = self.first - len(spans)

    def span(self, index: int, through: int, bytes_max: int) -> tuple[int, int] | None:
        """Start and end position of consecutive messages from this index on; None if the first one is not here."""
        if not self.first <= index <= through or index - self._origin >= len(self._starts):
            return None
        slot = index - self._origin
        start, end = self._starts[slot], self._ends[slot]
        for at in range(slot + 1, min(through - self._origin + 1, len(self._starts))):
            if self._starts[at] < end or self._ends[at] - start > bytes_max:
                break
            end = self._ends[at]
        return start, end

    def span_back(self, index: int, through: int, bytes_max: int, count_max: int) -> tuple[int, int] | None:
        """Start and end position of this message and consecutive ones before it; None if it is not here."""
        span = self.span(index, min(index, through), bytes_max)
        if span is None:
            return None
        start, end = span
        slot, bottom = index - self._origin, self.first - self._origin
        for at in range(slot - 1, max(bottom, slot + 1 - count_max) - 1, -1):
            if not 0 < self._ends[at] <= start or end - self._starts[at] > bytes_max:
                break
            start = self._starts[at]
        return start, end

    def droppable(self, limit: int) -> list[SegmentSpan]:
        """The segments from the front that contain no message above `limit`."""
        found: list[SegmentSpan] = []
        for segment in self.segments[:-1]:
            if segment.last > limit:
                break
            found.append(segment)
        return found

    def drop(self, segment: SegmentSpan) -> None:
        """Remove the first segment, and every message of which it contained a part."""
        assert self.segments[0] is segment, "segments are deleted from the front"
        assert len(self.segments) > 1, "the current segment is never deleted"
        del self.segments[0]
        self.first = max(self.first, segment.last + 1)
        self.in_order_from = max(self.in_order_from, self.first)
        spare = self.first - self._origin
        if spare > 0:
            del self._starts[:spare], self._ends[:spare]
            self._origin = self.first
