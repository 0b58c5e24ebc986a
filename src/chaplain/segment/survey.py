"""Surveys the segments of one log in order: finds the end of the log and its damage.

A segment alone does not show the state of its successor, which may be missing, foreign, or created and never used. It
also does not show whether a record of a later segment proves its content. Segments are added one by one, so that a
survey needs the memory of one segment.

Invariant: records of a segment count only if identity and base chain it to the segment before.
"""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.segment.header import Headers, SegmentHeader, read_headers
from chaplain.segment.layout import HEADER_BYTES, PAGE_BYTES, Bytes, octets
from chaplain.segment.scan import Scan, ScanFinding, ScanTail, ScanVerdict, apply_proof, scan


class SegmentEnd(Frozen, frozen=True):
    """One segment, as far as a writer needs it."""

    header: SegmentHeader
    end: int
    sealed: bool


class Survey(Frozen, frozen=True):
    endings: tuple[SegmentEnd, ...]
    findings: tuple[ScanFinding, ...]
    proven: int
    unused: tuple[int, ...]
    """Sequences of files after the end of the log that contain nothing of it and may be overwritten."""

    @property
    def clean(self) -> bool:
        return not self.findings

    @property
    def cut(self) -> ScanFinding | None:
        """The first finding that is not proven damage. A writer can continue only by cutting the log there."""
        unproven = [finding for finding in self.findings if finding.verdict is not ScanVerdict.DAMAGED]
        return min(unproven, key=lambda finding: finding.position, default=None)


class Surveyor:
    def __init__(self, log: str) -> None:
        self._log = log
        self._last: Scan | None = None
        self._endings: list[SegmentEnd] = []
        self._findings: list[ScanFinding] = []
        self._unused: list[int] = []
        self._proven = 0

    def add(self, sequence: int, data: Bytes) -> Scan | None:
        """Add the next file by sequence. Returns its scan if it is part of the log."""
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
        self._report_bad_copies(headers, header)
        self._add_scan(found)
        return found

    def _header(self, sequence: int, headers: Headers, size_bytes: int) -> SegmentHeader | None:
        """The file's header, or the header that it must have according to the segment before."""
        header = headers.header
        if header is not None and header.sequence == sequence and header.log == self._log:
            return header
        never_written = header is not None or headers.blank
        last = self._last
        if last is None or last.next_identity is None:
            if not never_written or (last is None and sequence):
                self._add_doubt(last.header.end if last else 0, "header: no copy can be read")
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
        if never_written:
            # The file has no header, or that of its previous use. A synced new header would be there.
            self._findings.append(ScanFinding(ScanVerdict.TORN, expected.base, expected.base, "header: never written"))
            return None
        self._add_doubt(expected.base, "header: both copies are bad")
        return expected if expected.sequence == sequence else None

    def _follows(self, header: SegmentHeader) -> bool:
        last = self._last
        if last is None:
            return True
        if header.sequence != last.header.sequence + 1:
            self._add_doubt(last.header.end, f"segment {last.header.sequence + 1} is missing")
            return False
        # A sealed segment names its successor's identity in its ROLL, so a file of another log or use cannot take its
        # place.
        expected = last.next_identity or header.identity
        if (header.base, header.previous, header.identity) != (last.header.end, last.header.identity, expected):
            self._add_doubt(last.header.end, f"segment {header.sequence} is foreign")
            return False
        return True

    def _opens_after_end(self, found: Scan) -> bool:
        """Whether a segment counts although the one before still ends in END: only if it contains records."""
        last = self._last
        assert last is not None
        if not found.records and not found.findings:
            return False  # the roll was started, and the log still continues in the segment before
        self._findings.append(ScanFinding(ScanVerdict.TORN, last.end, last.end, "a roll was here"))
        return True

    def _report_bad_copies(self, headers: Headers, header: SegmentHeader) -> None:
        """A bad or old copy of the header is repaired from the other one. It is never a reason to cut the log."""
        for copy_at in headers.bad + headers.stale if headers.header else ():
            at = header.base + copy_at
            self._findings.append(ScanFinding(ScanVerdict.DAMAGED, at, at + HEADER_BYTES, "header: one copy is bad"))

    def _add_scan(self, found: Scan) -> None:
        self._last = found
        self._endings.append(SegmentEnd(found.header, found.end, found.tail is ScanTail.SEALED))
        self._findings += found.findings
        self._proven = max(self._proven, found.proven)

    def _add_doubt(self, position: int, reason: str) -> None:
        self._findings.append(ScanFinding(ScanVerdict.IN_DOUBT, position, position, reason))

    def finish(self) -> Survey:
        last = self._last
        gap_after_last = last is not None and any(finding.position >= last.header.end for finding in self._findings)
        if last is not None and last.tail is ScanTail.SEALED and not gap_after_last:
            self._add_doubt(last.header.end, f"segment {last.header.sequence + 1} is missing")
        return Survey(
            endings=tuple(self._endings),
            findings=apply_proof(self._findings, self._proven),
            proven=self._proven,
            unused=tuple(self._unused),
        )
