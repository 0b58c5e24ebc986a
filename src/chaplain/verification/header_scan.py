"""Scans the record headers of a log, file by file, and reports where no header can be read.

The scan does not read bodies. It reports a record as a `ScannedRecord` and an unreadable range as a `Gap`, and judges
neither. It does not know which records form a message. A file that cannot be opened is not a gap: the scan ends with an
error, because nothing is known about the content of the file (see `access`).

Invariants: records are reported in the order of the files; any octets between two records that are not a record are
reported as a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.segment.files import OpenSegment, SegmentFile, list_segments
from chaplain.segment.layout import checksum
from chaplain.segment.record import HEAD_BYTES, STREAM_BYTES_MAX, Head, Kind, decode_head
from chaplain.segment.scan import scan
from chaplain.verification.access import open_segment

LOG = "journal"
HEAD_MOST = HEAD_BYTES + STREAM_BYTES_MAX + 1


class ScannedRecord(Frozen, frozen=True):
    """The header of one record, and where the record is."""

    path: str
    sequence: int
    position: int
    size_bytes: int
    kind: int
    index: int
    part: int
    parts: int
    previous: bytes
    chain: bytes


class Gap(Frozen, frozen=True):
    """A place without a valid record, or a missing file, although the log continues after it."""

    reason: str
    file: str = ""


class ScanEnd(Frozen, frozen=True):
    """Where the scan ended."""

    position: int
    sealed: bool
    """Whether the last record states that the log continues in another file, which does not exist."""


class ScanStart(Frozen, frozen=True):
    """A position at which a scan can resume: where the last message of an earlier scan begins."""

    sequence: int
    identity: bytes
    position: int


Step: TypeAlias = ScannedRecord | Gap | ScanEnd


def scan_headers(folder: Path | str, log: str = LOG, start: ScanStart | None = None) -> Iterator[Step]:
    """Scan the log from its beginning, or from `start`, which must still be valid (see `begins_at`)."""
    ending, expected, position = ScanEnd(0, sealed=False), None, None
    files = list_segments(folder, log)
    if start is not None:
        expected, position = start.sequence, start.position
        files = [file for file in files if file.sequence >= start.sequence]
    while files:
        for number, file in enumerate(files):
            if file.sequence != (file.sequence if expected is None else expected):
                yield Gap(_absent(expected or 0, file.sequence))
            expected = file.sequence + 1
            scanner = _FileScanner(file, last=number + 1 == len(files))
            yield from scanner.scan(position)
            ending, position = scanner.ending or ending, None
        # The last record announces another file: either it was created after the files were listed, or it is missing.
        files = [file for file in list_segments(folder, log) if ending.sealed and file.sequence >= (expected or 0)]
    yield ending


def _absent(first: int, behind: int) -> str:
    names = f"segment {first}" if behind - first == 1 else f"segments {first} to {behind - 1}"
    return f"{names} is gone" if behind - first == 1 else f"{names} are gone"


def begins_at(folder: Path | str, start: ScanStart, index: int, chain: bytes, log: str = LOG) -> bool:
    """Whether the message with this index and chain hash still begins at `start`."""
    for file in list_segments(folder, log):
        if file.sequence == start.sequence:
            try:
                with OpenSegment(file.path) as segment:
                    data = segment.read(start.position, HEAD_MOST)
                    record = decode_head(data, start.identity, start.position).record
                    return (segment.header.identity, record.index, record.chain_hash) == (start.identity, index, chain)
            except (Malformed, FileNotFoundError):
                return False
    return False


class _FileScanner:
    """Scans one file."""

    def __init__(self, file: SegmentFile, last: bool) -> None:
        self._file = file
        self._name = file.path.name
        self._last = last
        self.ending: ScanEnd | None = None

    def scan(self, position: int | None) -> Iterator[Step]:
        try:
            segment = open_segment(self._file.path)
        except Malformed:
            if not self._last:  # the node may be creating the last file right now
                yield self._gap(f"{self._name} has no valid header")
            return
        with segment:
            if segment.header.sequence != self._file.sequence:
                if not self._last:
                    yield self._gap(f"{self._name} holds segment {segment.header.sequence}")
                return
            yield from self._heads(segment, segment.header.records_start if position is None else position)
            segment.check_not_recycled()

    def _heads(self, segment: OpenSegment, position: int) -> Iterator[Step]:
        identity, crc = segment.header.identity, checksum(segment.header.identity)
        while True:
            try:
                head = decode_head(segment.peek(position, HEAD_MOST), identity, position, crc)
            except Malformed as error:
                later = self._next_valid(segment, position)
                if later is None:
                    if not self._last:
                        yield self._gap(f"nothing valid in {self._name} from position {position} on: {error}")
                    self.ending = ScanEnd(position, sealed=False)
                    return
                yield self._gap(f"nothing valid in {self._name} at position {position}: {error}")
                position = later
                continue
            if head.record.kind in (Kind.END, Kind.ROLL):
                self.ending = ScanEnd(position, sealed=head.record.kind == Kind.ROLL)
                return
            yield self._scanned(head)
            position = head.end

    def _next_valid(self, segment: OpenSegment, position: int) -> int | None:
        """Return the position of the next valid record after an unreadable range; None if there is none."""
        whole = segment.read(segment.header.base, segment.header.size_bytes)
        found = scan(whole, segment.header, position)
        gap = next((one for one in found.findings if one.position == position), None)
        return gap.end if gap is not None and gap.end > position else None

    def _gap(self, reason: str) -> Gap:
        return Gap(reason, self._name)

    def _scanned(self, head: Head) -> ScannedRecord:
        record = head.record
        return ScannedRecord(
            str(self._file.path),
            self._file.sequence,
            head.position,
            head.end - head.position,
            record.kind,
            record.index,
            record.part,
            record.parts,
            record.previous_hash,
            record.chain_hash,
        )
