"""Reads the segment files of a log: all of them at start, a range, or single records.

Sectors that the disk cannot read count as damaged data. They never end the process with SIGBUS.
"""

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
"""At start, the first segments up to this total size are copied into memory; the others are memory-mapped."""
UNREADABLE = b"cannot be read"
"""Stands for the content of a small file that the disk cannot read. No valid file has this content."""


def segments_of(folder: Path, log: str) -> Iterator[tuple[int, Bytes]]:
    """Yield the sequence number and content of each segment, with zeros in place of unreadable sectors.

    Recovery keeps views of the content, so all of it stays in memory until recovery ends. The first `COPIED_BYTES_MAX`
    are copied. The files after that are memory-mapped. Before that, every octet is read once, because an access to an
    unreadable sector of a mapped file raises SIGBUS, and the node would die at every start. If a sector fails between
    this check and the access, the process still dies, but only once: the next start finds the sector by the check.
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
    """Yield the ranges of a file that contain data.

    Segments are created with their full size, so most of the last one is a hole.
    """
    end, size_bytes = 0, os.fstat(descriptor).st_size
    while end < size_bytes:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # the rest of the file is a hole
        end = min(os.lseek(descriptor, start, os.SEEK_HOLE), size_bytes)
        yield start, end


def _copied(descriptor: int, extents: Iterable[tuple[int, int]]) -> Bytes:
    size_bytes = os.fstat(descriptor).st_size
    if not size_bytes:
        return b""
    copy = memoryview(mmap.mmap(-1, size_bytes))  # anonymous memory: pages of holes are never allocated
    for start, end in extents:
        salvage.read_into(descriptor, copy[start:end], start)
    return copy


def read_log(folder: Path, log: str, wanted: ReadLog) -> LogRead:
    """Read the records between two positions. Files that were dropped or recycled in the meantime are skipped."""
    records: list[Record] = []
    for segment in segments_between(list_segments(folder, log), wanted.start, wanted.end):
        with suppress(FileNotFoundError, Malformed), OpenSegment(segment.path) as file:
            records += file.records(wanted.start, wanted.end)
    return LogRead(wanted.token, tuple(records))


def bodies_at(folder: Path, log: str, positions: Iterable[int]) -> dict[int, memoryview]:
    """Read the bodies of the records at these positions. The result omits records that cannot be read."""
    bodies: dict[int, memoryview] = {}
    segments = list_segments(folder, log)
    for position in positions:
        for segment in segments_between(segments, position, position + 1):
            with suppress(FileNotFoundError, Malformed), OpenSegment(segment.path) as file:
                bodies[position] = file.body_at(position)
    return bodies


def segments_between(segments: list[SegmentFile], start: int, end: int) -> list[SegmentFile]:
    """Return the segments that overlap a range of positions, by binary search: a log may have thousands of segments.

    If a header cannot be read, return all segments; the caller checks the positions of the records anyway.
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
        return 0  # retention deletes the oldest segments first, so this one lies before all others


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _mapped(descriptor: int) -> Bytes:
    return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))


def read_if_exists(file: Path) -> bytes | None:
    """Return the content of a file, None if it does not exist, or `UNREADABLE` if the disk cannot read it.

    An unreadable file counts as damaged, not as absent.
    """
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in salvage.UNREADABLE:
            raise
        return UNREADABLE
