"""Segment files for readers: Spark tasks, the command line, checks. Never writes.

A node may recycle a file while this module reads it. So a reader copies the bytes and reads the header again
afterwards. The writer overwrites the header before anything else; if the identity is unchanged, all copied bytes belong
to the same use of the file. Unreadable sectors are zeros here, and become findings like any other damage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from chaplain.core import Frozen
from chaplain.errors import Malformed, StorageError
from chaplain.segment import salvage
from chaplain.segment.header import VERSION, SegmentHeader, other_version, read_headers
from chaplain.segment.layout import HEADER_BYTES, HEADER_COPIES, PAGE_BYTES, RECORDS_START, parse_name
from chaplain.segment.read import Agreement
from chaplain.segment.record import HEAD_BYTES, STREAM_BYTES_MAX, Kind, Record, decode_body, decode_head
from chaplain.segment.scan import Scan, ScanFinding, ScanTail, ScanVerdict, scan
from chaplain.segment.survey import Survey, Surveyor
from chaplain.segment.verdicts import Joiner

WINDOW_BYTES = 1 << 20
HEAD_BYTES_MAX = HEAD_BYTES + STREAM_BYTES_MAX + 1
"""The size of the longest head."""


class Recycled(StorageError):
    """The file was recycled while it was read. Its old content is gone: list the folder again."""


class SegmentFile(Frozen, frozen=True):
    path: Path
    log: str
    sequence: int


def list_segments(folder: Path | str, log: str | None = None) -> list[SegmentFile]:
    """The segments in a folder, by log and sequence, without other files and free ones."""
    found = []
    for path in Path(folder).iterdir():
        try:
            name, sequence, free = parse_name(path.name)
        except Malformed:
            continue
        if not free and log in (None, name):
            found.append(SegmentFile(path, name, sequence))
    return sorted(found, key=lambda file: (file.log, file.sequence))


def refuse_other_versions(folder: Path | str) -> None:
    """Raise if another version wrote a segment: its data is intact, and must not be repaired as damage."""
    for file in list_segments(folder) if Path(folder).is_dir() else ():
        version = other_version(_read_start(file.path, RECORDS_START))
        if version is not None:
            raise StorageError(
                f"{file.path} has format {version}, and this program reads and writes format {VERSION}: use the "
                "version of chaplain that wrote it; nothing was changed"
            )


def list_free(folder: Path | str, log: str, size_bytes: int) -> list[str]:
    """Names of files of this size that wait to be recycled."""
    names = []
    for path in Path(folder).glob("*.free"):
        if parse_name(path.name)[0] == log and path.stat().st_size == size_bytes:
            names.append(path.name)
    return sorted(names)


def read_segment(path: Path | str) -> tuple[bytes, SegmentHeader]:
    """A copy of the whole file, checked against recycling, and its header."""
    with OpenSegment(path) as segment:
        return segment.read(segment.header.base, segment.header.size_bytes), segment.header


def scan_file(path: Path | str) -> Scan:
    data, header = read_segment(path)
    return scan(data, header)


class OpenSegment:
    """One segment file, open for reading. Raises `Malformed` if it has no valid header."""

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        try:
            self.header = self._read_header()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read(self, position: int, size_bytes: int) -> bytes:
        """A copy of these octets; fewer at the end of the file. Raises `Recycled` if the file was recycled."""
        data = self.peek(position, size_bytes)
        self.check_not_recycled()
        return data

    def peek(self, position: int, size_bytes: int) -> bytes:
        """The same, for a caller that calls `check_not_recycled` after many reads and before it uses any."""
        return salvage.read(self._descriptor, size_bytes, position - self.header.base)

    def records(self, start: int, end: int) -> tuple[Record, ...]:
        """The records between two positions, up to the first invalid one. A record must begin at `start`."""
        start = max(start, self.header.records_start)
        size_bytes = min(end, self.header.end) - start
        if size_bytes <= 0:
            return ()
        found = scan(self.peek(start, size_bytes), self.header, start, search=False, data_at=start)
        return tuple(record for _, record in found.records)

    def body_at(self, position: int) -> memoryview:
        """The body of the record at this position. Raises `Malformed` if there is none."""
        head = decode_head(self.peek(position, HEAD_BYTES_MAX), self.header.identity, position)
        return decode_body(self.peek(position, head.end - position), head)

    def check_not_recycled(self) -> None:
        """Raise `Recycled` if the header differs from that at opening."""
        try:
            same = self._read_header() == self.header
        except Malformed:
            same = False
        if not same:
            raise Recycled(f"{self._path} was recycled while it was read")

    def scans(self, start: int, final: bool) -> Iterator[Scan]:
        """Scan the segment from position `start`, in windows that fit the processor's cache.

        If the file is `final`, it is no longer written to, and the first invalid place is judged with the whole
        segment.
        Otherwise the scan ends there: the record may be half written.
        """
        window_bytes = WINDOW_BYTES
        while True:
            data = self.read(start, window_bytes)
            found = _before_first_finding(scan(data, self.header, start, search=False, data_at=start))
            if found.tail is not ScanTail.BROKEN or found.records:
                yield found
                if found.tail is not ScanTail.BROKEN:
                    return
                start = found.end
            elif len(data) == window_bytes:
                window_bytes *= 2
            else:
                break
        if final:
            whole = self.read(self.header.base, self.header.size_bytes)
            yield scan(whole, self.header, start)

    def _read_header(self) -> SegmentHeader:
        pages = b"".join(
            salvage.read(self._descriptor, HEADER_BYTES, copy_at).ljust(PAGE_BYTES, b"\0") for copy_at in HEADER_COPIES
        )
        header = read_headers(pages).header
        if header is None:
            raise Malformed(f"{self._path}: neither copy of the segment's header is valid")
        return header


def _before_first_finding(found: Scan) -> Scan:
    """The part of a window before its first finding, which may only be where the window cuts a record."""
    if not found.findings:
        return found
    end = found.findings[0].position
    records = tuple(pair for pair in found.records if pair[0].position < end)
    return Scan(found.header, records, (), ScanTail.BROKEN, end, found.proven)


def survey_folder(folder: Path | str, log: str) -> Survey:
    """Survey a whole log while no process writes to it."""
    surveyor = Surveyor(log)
    for file in list_segments(folder, log):
        surveyor.add(file.sequence, _read_start(file.path, file.path.stat().st_size))
    return surveyor.finish()


def _read_start(path: Path, size_bytes: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return salvage.read(descriptor, size_bytes, 0)
    finally:
        os.close(descriptor)


class LogReader:
    """Reads the agreed records of one log, segment by segment, and continues where it stopped at the last call.

    `findings` collects the damage of segments that are complete. In the segment that the node still writes, an invalid
    record counts as no damage, because it may be half written. An unreadable stretch is skipped. The hash chain
    prevents later records from replacing the missing ones.
    """

    def __init__(self, folder: Path | str, log: str) -> None:
        self._folder = Path(folder)
        self._log = log
        self._header: SegmentHeader | None = None
        self._position = 0
        self._sealed = False
        self.agreement = Agreement()
        self._joiner = Joiner()
        self.findings: list[ScanFinding] = []

    def poll(self) -> Iterator[Record]:
        """All records that became visible since the last call."""
        files = list_segments(self._folder, self._log)
        for number, file in enumerate(files):
            if self._header is not None and file.sequence < self._header.sequence + self._sealed:
                continue
            # A record in a later segment is written after the ROLL of this one. So a record there makes this segment
            # final, if it is checked before this segment is read.
            final = any(_has_records(later) for later in files[number + 1 :][:2])
            yield from self._read(file, final)
            if not (self._sealed or final):
                return

    def _read(self, file: SegmentFile, final: bool) -> Iterator[Record]:
        self._sealed = False
        try:
            segment = OpenSegment(file.path)
        except (FileNotFoundError, Malformed):
            if final:
                raise
            return  # the writer is creating this segment, or deleted it since the folder was listed
        with segment:
            header = segment.header
            if header.sequence != file.sequence:
                if final:
                    raise Recycled(f"{file.path} holds segment {header.sequence}")
                return
            self._report_gap(header)
            if header != self._header:
                self._header, self._position = header, header.records_start
            for found in segment.scans(self._position, final):
                self._sealed = found.tail is ScanTail.SEALED
                self._position = found.end
                self.findings += found.findings
                for _, record in found.records:
                    yield from self._joiner.feed(self.agreement.feed(record))

    def _report_gap(self, header: SegmentHeader) -> None:
        last = self._header
        if last is None or last == header or (header.previous, header.base) == (last.identity, last.end):
            return
        self.findings.append(ScanFinding(ScanVerdict.DAMAGED, last.end, header.base, "segments between are missing"))


def _has_records(file: SegmentFile) -> bool:
    """Whether a record has been written to the segment."""
    try:
        data = _read_start(file.path, RECORDS_START + HEAD_BYTES_MAX)
        header = read_headers(data).header
        if header is None or header.sequence != file.sequence:
            return False
        head = decode_head(data[RECORDS_START:], header.identity, header.records_start)
    except (FileNotFoundError, Malformed):
        return False
    return head.record.kind != Kind.END


def read_log(folder: Path | str, log: str) -> Iterator[Record]:
    """The agreed records of a log as it is now."""
    return LogReader(folder, log).poll()
