"""Segment files for readers: Spark tasks, the command line, checks. Never writes.

A node may recycle a file while it is read here. The bytes are therefore copied, and the header is read again
afterwards: the writer overwrites the header before anything else, so if the identity is unchanged then, the copy is of
one life.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from chaplain.core import Frozen
from chaplain.errors import Malformed, StorageError
from chaplain.segment.header import Headers, SegmentHeader, read_headers
from chaplain.segment.layout import HEADER_BYTES, HEADER_COPIES, RECORDS_START, parse_name
from chaplain.segment.read import Agreement
from chaplain.segment.record import HEAD_BYTES, STREAM_BYTES_MAX, Kind, Record, decode_head
from chaplain.segment.scan import Finding, Scan, Tail, Verdict, scan
from chaplain.segment.survey import Survey, Surveyor

READ_BYTES_MAX = 1 << 24


class Recycled(StorageError):
    """The file was given a new life while it was read. What it held is no longer here: list the folder again."""


class SegmentFile(Frozen, frozen=True):
    path: Path
    log: str
    sequence: int


def list_segments(folder: Path | str, log: str | None = None) -> list[SegmentFile]:
    """The segments in a folder, by log and sequence. Other files, and free ones, are passed over."""
    found = []
    for path in Path(folder).iterdir():
        try:
            name, sequence, free = parse_name(path.name)
        except Malformed:
            continue
        if not free and log in (None, name):
            found.append(SegmentFile(path, name, sequence))
    return sorted(found, key=lambda file: (file.log, file.sequence))


def list_free(folder: Path | str, log: str, size_bytes: int) -> list[str]:
    """Names of files that wait to be recycled and have the wanted size."""
    names = []
    for path in Path(folder).glob("*.free"):
        if parse_name(path.name)[0] == log and path.stat().st_size == size_bytes:
            names.append(path.name)
    return sorted(names)


def read_segment(path: Path | str) -> tuple[bytes, SegmentHeader]:
    """A copy of the whole file, all of one life, and its header.

    Raises `Recycled` if the file changed lives meanwhile, `Malformed` if it has no valid header.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        before = _headers(descriptor)
        data = _read_all(descriptor)
        after = _headers(descriptor)
    finally:
        os.close(descriptor)
    if before.header is None:
        raise Malformed(f"{path}: neither copy of the segment's header is valid")
    if before.header != after.header or before.stale or after.stale:
        raise Recycled(f"{path} was recycled while it was read")
    return data, before.header


def _headers(descriptor: int) -> Headers:
    pages = b"".join(
        os.pread(descriptor, HEADER_BYTES, place).ljust(HEADER_COPIES[1], b"\0") for place in HEADER_COPIES
    )
    return read_headers(pages)


def _read_all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    pieces = []
    position = 0
    while position < size:
        piece = os.pread(descriptor, min(READ_BYTES_MAX, size - position), position)
        if not piece:
            break
        pieces.append(piece)
        position += len(piece)
    return b"".join(pieces)


def scan_file(path: Path | str, search: bool = True) -> Scan:
    data, header = read_segment(path)
    return scan(data, header, search=search)


def survey_folder(folder: Path | str, log: str) -> Survey:
    """Look at all of a log while nobody writes to it."""
    surveyor = Surveyor(log)
    for file in list_segments(folder, log):
        surveyor.add(file.sequence, file.path.read_bytes())
    return surveyor.finish()


class LogReader:
    """Reads the agreed records of one log, segment by segment, and goes on where it stopped when asked again.

    `findings` collects what was found wrong in segments that are written to no more; at the live end a record may be
    half written. A stretch that cannot be read is passed over; its chain keeps what follows from standing in for it.
    """

    def __init__(self, folder: Path | str, log: str) -> None:
        self._folder = Path(folder)
        self._log = log
        self._header: SegmentHeader | None = None
        self._position = 0
        self._sealed = False
        self.agreement = Agreement()
        self.findings: list[Finding] = []

    def poll(self) -> Iterator[Record]:
        """All records that have become visible since the last call."""
        files = list_segments(self._folder, self._log)
        for number, file in enumerate(files):
            if self._header is not None and file.sequence < self._header.sequence + self._sealed:
                continue
            # A record in a later segment is written after the ROLL of this one: asked first, it makes this one final.
            final = any(_begun(later) for later in files[number + 1 :][:2])
            yield from self._read(file, final)
            if not (self._sealed or final):
                return

    def _read(self, file: SegmentFile, final: bool) -> Iterator[Record]:
        self._sealed = False
        try:
            data, header = read_segment(file.path)
        except (FileNotFoundError, Malformed):
            if final:
                raise
            return  # the next segment is being begun, or was dropped since the folder was listed
        if header.sequence != file.sequence:
            if final:
                raise Recycled(f"{file.path} holds segment {header.sequence}")
            return
        self._note_gap(header)
        start = self._position if header == self._header else header.records_start
        found = scan(data, header, start, search=final)
        self._header, self._sealed = header, found.tail is Tail.SEALED
        self._position = found.records[-1][0].end if found.records else start
        if final or self._sealed:
            self.findings += found.findings
        for _, record in found.records:
            yield from self.agreement.feed(record)

    def _note_gap(self, header: SegmentHeader) -> None:
        last = self._header
        if last is None or last == header or (header.previous, header.base) == (last.identity, last.end):
            return
        self.findings.append(Finding(Verdict.DAMAGED, last.end, header.base, "segments between are missing"))


def _begun(file: SegmentFile) -> bool:
    """Whether a record has been written to the segment."""
    try:
        with file.path.open("rb") as stream:
            data = stream.read(RECORDS_START + HEAD_BYTES + STREAM_BYTES_MAX + 1)
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
