"""Looks at the segments of one log in order and says where the log ends and what is wrong with it.

A segment alone cannot know that its successor is missing, foreign, or was begun and never used; nor that something in
it was proven by a record of a later one. Segments are given one by one: any log is surveyed in the memory of one.

Invariant: records of a segment count only if it is chained to the one before by identity and base.
"""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.segment.header import Headers, SegmentHeader, read_headers
from chaplain.segment.layout import HEADER_BYTES, PAGE_BYTES, Bytes, octets
from chaplain.segment.scan import Scan, ScanFinding, ScanTail, ScanVerdict, judge, scan


class SegmentEnd(Frozen, frozen=True):
    """One segment as a writer needs to know it."""

    header: SegmentHeader
    end: int
    sealed: bool


class Survey(Frozen, frozen=True):
    endings: tuple[SegmentEnd, ...]
    findings: tuple[ScanFinding, ...]
    proven: int
    unused: tuple[int, ...]
    """Sequences of files behind the log's end that hold nothing of it and may be begun anew."""

    @property
    def clean(self) -> bool:
        return not self.findings

    @property
    def cut(self) -> ScanFinding | None:
        """The first finding that is not proven damage: what a writer may go on from only by cutting there."""
        doubtful = [finding for finding in self.findings if finding.verdict is not ScanVerdict.DAMAGED]
        return min(doubtful, key=lambda finding: finding.position, default=None)


class Surveyor:
    def __init__(self, log: str) -> None:
        self._log = log
        self._last: Scan | None = None
        self._endings: list[SegmentEnd] = []
        self._findings: list[ScanFinding] = []
        self._unused: list[int] = []
        self._proven = 0

    def add(self, sequence: int, data: Bytes) -> Scan | None:
        """Take the next file by sequence. Returns its scan if it is part of the log."""
        view = octets(data)
        headers = read_headers(view)
        header = self._header(sequence, headers, len(view))
        if header is None or not self._follows(header):
            self._unused.append(sequence)
            return None
        found = scan(view, header)
        if self._last is not None and self._last.tail is ScanTail.OPEN and not self._opens_after_end(found):
            self._unused.append(sequence)
            return None
        self._note_copies(headers, header)
        self._take(found)
        return found

    def _header(self, sequence: int, headers: Headers, size_bytes: int) -> SegmentHeader | None:
        """The file's header, or what the segment before says it must have been."""
        header = headers.header
        if header is not None and header.sequence == sequence and header.log == self._log:
            return header
        begun = header is not None or headers.blank
        last = self._last
        if last is None or last.next_identity is None:
            if not begun or (last is None and sequence):
                self._doubt(last.header.end if last else 0, "header: no copy can be read")
            return None
        expected = SegmentHeader(
            log=self._log,
            log_kind=last.header.log_kind,
            identity=last.next_identity,
            sequence=last.header.sequence + 1,
            base=last.header.end,
            size_bytes=max(last.header.size_bytes, size_bytes - size_bytes % PAGE_BYTES),
            previous=last.header.identity,
        )
        if begun:
            # The old life's header, or none at all, still stands: had the new one been synced, it would be there.
            self._findings.append(ScanFinding(ScanVerdict.TORN, expected.base, expected.base, "header: never written"))
            return None
        self._doubt(expected.base, "header: both copies are bad")
        return expected if expected.sequence == sequence else None

    def _follows(self, header: SegmentHeader) -> bool:
        last = self._last
        if last is None:
            return True
        if header.sequence != last.header.sequence + 1:
            self._doubt(last.header.end, f"segment {last.header.sequence + 1} is missing")
            return False
        expected = last.next_identity or header.identity
        if (header.base, header.previous, header.identity) != (last.header.end, last.header.identity, expected):
            self._doubt(last.header.end, f"segment {header.sequence} is foreign")
            return False
        return True

    def _opens_after_end(self, found: Scan) -> bool:
        """Whether a segment counts though the one before still ends in END: only if something was written to it."""
        last = self._last
        assert last is not None
        if not found.records and not found.findings:
            return False  # the roll was begun, and the log still goes on in the segment before
        self._findings.append(ScanFinding(ScanVerdict.TORN, last.end, last.end, "a roll was here"))
        return True

    def _note_copies(self, headers: Headers, header: SegmentHeader) -> None:
        """A copy that is bad or old is mended from the other, whatever befell it: never a reason to cut."""
        for place in headers.bad + headers.stale if headers.header else ():
            at = header.base + place
            self._findings.append(ScanFinding(ScanVerdict.DAMAGED, at, at + HEADER_BYTES, "header: one copy is bad"))

    def _take(self, found: Scan) -> None:
        self._last = found
        self._endings.append(SegmentEnd(found.header, found.end, found.tail is ScanTail.SEALED))
        self._findings += found.findings
        self._proven = max(self._proven, found.proven)

    def _doubt(self, position: int, reason: str) -> None:
        self._findings.append(ScanFinding(ScanVerdict.IN_DOUBT, position, position, reason))

    def finish(self) -> Survey:
        last = self._last
        behind = last is not None and any(finding.position >= last.header.end for finding in self._findings)
        if last is not None and last.tail is ScanTail.SEALED and not behind:
            self._doubt(last.header.end, f"segment {last.header.sequence + 1} is missing")
        return Survey(
            endings=tuple(self._endings),
            findings=judge(self._findings, self._proven),
            proven=self._proven,
            unused=tuple(self._unused),
        )
