"""Reads segment files of a log: whole, by range, or single records; unreadable sectors become damage, not signals."""

from __future__ import annotations

import errno
import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from chaplain.errors import Malformed
from chaplain.journal.consensus.events import LogRead, ReadLog
from chaplain.segment import salvage
from chaplain.segment.files import OpenSegment, SegmentFile, list_segments
from chaplain.segment.layout import Bytes
from chaplain.segment.record import Record

COPIED_BYTES_MAX = 256 << 20
"""So much of a log is copied when it is read at start; what is beyond that is mapped."""


UNREADABLE = b"cannot be read"
"""Stands for the content of a small file that the disk cannot read. It is no valid content of any."""


def segments_of(folder: Path, log: str) -> Iterator[tuple[int, Bytes]]:
    """The content of each segment, by sequence, with zeros where the disk cannot read.

    Recovery keeps views of these octets, so all of them stay in memory meanwhile. The first
    `COPIED_BYTES_MAX` are copied. Files beyond that are mapped, after every octet of them was read once: an unreadable
    sector would otherwise end the process with a signal, at every start. One that fails between the two does so once.
    """
    room_bytes = COPIED_BYTES_MAX
    for segment in list_segments(folder, log):
        with segment.path.open("rb", buffering=0) as file:
            extents = list(_extents(file.fileno()))
            size_bytes = sum(end - start for start, end in extents)
            readable = size_bytes > room_bytes and all(salvage.is_readable(file.fileno(), *one) for one in extents)
            if not readable:
                room_bytes -= size_bytes
            yield segment.sequence, _mapped(file.fileno()) if readable else _copied(file.fileno(), extents)


def _extents(descriptor: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that hold data. A segment is as large as it may become, and most of the last is a hole."""
    end, size_bytes = 0, os.fstat(descriptor).st_size
    while end < size_bytes:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # nothing but a hole is left
        end = min(os.lseek(descriptor, start, os.SEEK_HOLE), size_bytes)
        yield start, end


def _copied(descriptor: int, extents: Iterable[tuple[int, int]]) -> Bytes:
    size_bytes = os.fstat(descriptor).st_size
    if not size_bytes:
        return b""
    copy = memoryview(mmap.mmap(-1, size_bytes))  # its holes take no memory
    for start, end in extents:
        salvage.read_into(descriptor, copy[start:end], start)
    return copy


def read_log(folder: Path, log: str, wanted: ReadLog) -> LogRead:
    """What stands between two positions. A file that was dropped or recycled meanwhile shows as nothing."""
    records: list[Record] = []
    for segment in between(list_segments(folder, log), wanted.start, wanted.end):
        with suppress(FileNotFoundError, Malformed), OpenSegment(segment.path) as file:
            records += file.records(wanted.start, wanted.end)
    return LogRead(wanted.token, tuple(records))


def bodies_at(folder: Path, log: str, positions: Iterable[int]) -> dict[int, memoryview]:
    """The bodies of the records at these positions; of one that cannot be read nothing is there."""
    bodies: dict[int, memoryview] = {}
    segments = list_segments(folder, log)
    for position in positions:
        for segment in between(segments, position, position + 1):
            with suppress(FileNotFoundError, Malformed), OpenSegment(segment.path) as file:
                bodies[position] = file.body_at(position)
    return bodies


def between(segments: list[SegmentFile], start: int, end: int) -> list[SegmentFile]:
    """Those that hold something between two positions: a log may have thousands, each further on than the one before.

    If one cannot say where it begins, all of them: who reads them looks for itself.
    """
    try:
        first = max(0, bisect_right(segments, start, key=_base) - 1)
        return segments[first : bisect_left(segments, end, first, key=_base)]
    except Malformed:
        return segments


def _base(segment: SegmentFile) -> int:
    try:
        with OpenSegment(segment.path) as file:
            return file.header.base
    except FileNotFoundError:
        return 0  # segments go from the front


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _mapped(descriptor: int) -> Bytes:
    return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))


def content(file: Path) -> bytes | None:
    """What a file holds, if it is there. One that cannot be read counts as damaged, not as absent."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in salvage.UNREADABLE:
            raise
        return UNREADABLE
