"""Turns records into file operations: the only code that writes to segments.

It decides positions, when to roll, how large a segment is, and which file to recycle. It does not know when data is
synced: the layer passes the operations to its host in a `Persist`, and calls `synced` after `Persisted`.

A record that does not fit in a segment of the configured size gets a larger segment. Nodes of one cluster may have
different sizes, and each must be able to store every agreed message.

Invariants: written ≥ proven; the proven position of a record is one that `synced` confirmed; a segment always has room
for the ROLL that ends it; after a cut, the same identity is never used again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from chaplain.core import Operation, Remove, Rename, WriteAt
from chaplain.errors import StorageError
from chaplain.segment.header import NO_IDENTITY, SegmentHeader, encode_pages
from chaplain.segment.layout import (
    IDENTITY_BYTES,
    PAGE_BYTES,
    RECORDS_START,
    SEGMENT_BYTES_MAX,
    check_log_name,
    check_segment_bytes,
    checksum,
    free_name,
    segment_name,
)
from chaplain.segment.record import ROLL_BYTES, Kind, Record, encode, pieces_of, size_of
from chaplain.segment.scan import ScanVerdict
from chaplain.segment.settings import LogSettings
from chaplain.segment.survey import SegmentEnd, Survey

EMPTY_SURVEY = Survey((), (), 0, ())
_END = Record(Kind.END)
RECORD_BYTES_MAX = SEGMENT_BYTES_MAX - RECORDS_START - ROLL_BYTES


class SegmentWriter:
    """Appends records to one log.

    `free` are files ready for recycling, of the configured size. `survey` is the state of the log at start; the writer
    continues at its end. If the end is in doubt it refuses, unless `cut_doubt` says that a quorum has resolved the
    doubt.
    """

    def __init__(
        self,
        settings: LogSettings,
        chance: random.Random,
        survey: Survey = EMPTY_SURVEY,
        free: Sequence[str] = (),
        cut_doubt: bool = False,
    ) -> None:
        check_log_name(settings.log)
        check_segment_bytes(settings.segment_bytes)
        self._settings = settings
        self._chance = chance
        self._free = list(free)
        self._header: SegmentHeader | None = None
        self._file = ""
        """The file of the current segment."""
        self._identity_crc = 0
        """The checksum of its identity."""
        self._must_roll = False
        self._reusable: set[int] = set(survey.unused)
        """Sequences of existing files after the end of the log, whose content is not part of it."""
        self.written = 0
        """Position after the last record: where the next one goes, unless it rolls."""
        self.proven = survey.proven
        """Everything before this position is known to be on disk."""
        self.ends: list[int] = []
        """The end position of each record of the last append."""
        self._resume(survey, cut_doubt)

    @property
    def header(self) -> SegmentHeader:
        """The header of the current segment."""
        assert self._header is not None, "nothing was written yet"
        return self._header

    def append(self, records: Iterable[Record]) -> tuple[Operation, ...]:
        """Return the operations that append these records. One sync makes them durable together."""
        operations: list[Operation] = []
        waiting: list[bytes] = []
        start = self.written
        header = self._header
        self.ends = []
        for record in records:
            size = size_of(record)
            if size > RECORD_BYTES_MAX:
                raise ValueError(f"a record has at most {RECORD_BYTES_MAX} octets, not {size}")
            # The header's size counts, which may differ from the current setting: readers stop at the header's end.
            if header is None or self._must_roll or self.written + size + ROLL_BYTES > header.end:
                operations += self._roll(start, waiting, size)
                start, waiting, header = self.written, [], self.header
            waiting += pieces_of(record, header.identity, self.written, self.proven, self._identity_crc)
            self.written += size
            self.ends.append(self.written)
        if waiting:
            assert header is not None
            waiting += pieces_of(_END, header.identity, self.written, self.proven, self._identity_crc)
            operations.append(self._write(start, waiting))
        return tuple(operations)

    def synced(self, position: int) -> None:
        """Everything before `position`, an earlier value of `written`, is on disk."""
        assert position <= self.written, "a synced position is at most the written one"
        self.proven = max(self.proven, position)

    def release(self, sequence: int) -> tuple[Operation, ...]:
        """Release a segment that is no longer needed; its file waits to be recycled."""
        if self._header is not None and sequence >= self._header.sequence:
            raise ValueError(f"segment {sequence} is still written to")
        file = self._path(segment_name(self._settings.log, sequence))
        if len(self._free) >= self._settings.free_max:
            return (Remove(file),)
        free = self._path(free_name(self._settings.log, sequence))
        self._free.append(free)
        return (Rename(file, free),)

    def _resume(self, survey: Survey, cut_doubt: bool) -> None:
        cut = survey.cut
        if cut is not None and cut.verdict is ScanVerdict.IN_DOUBT and not cut_doubt:
            raise StorageError(
                f"log {self._settings.log} is in doubt at position {cut.position} ({cut.reason}):"
                " catch up from a majority of other nodes, then cut there"
            )
        if cut is not None:
            self._cut(survey.endings, cut.position)
        elif survey.endings:
            self._continue_in(survey.endings[-1].header)
            self.written = survey.endings[-1].end

    def _continue_in(self, header: SegmentHeader) -> None:
        self._header = header
        self._file = self._path(segment_name(header.log, header.sequence))
        self._identity_crc = checksum(header.identity)

    def _cut(self, endings: tuple[SegmentEnd, ...], position: int) -> None:
        """Find the segment in which the log is cut, and the position of its ROLL. Later segments are overwritten.

        If the first segment is lost and no record proves the content of the others, the whole log starts anew.
        """
        within = [ending for ending in endings if ending.header.records_start <= position]
        self._reusable |= {ending.header.sequence for ending in endings[len(within) :]}
        if within:
            self._continue_in(within[-1].header)
            self.written = min(within[-1].end, position)
        self._must_roll = True
        self.proven = min(self.proven, self.written)

    def _roll(self, start: int, waiting: list[bytes], record_bytes: int) -> list[Operation]:
        """Create the next segment, in which a record of this size fits.

        Then end the current one with its waiting records and ROLL.

        In this order, a process that is killed between the writes leaves a log that still ends cleanly.
        """
        old = self._header
        new = self._next_header(old, record_bytes)
        operations = self._drop_leftovers(new.sequence) + self._obtain_file(new)
        operations.append(
            WriteAt(
                self._path(segment_name(new.log, new.sequence)),
                0,
                encode_pages(new) + encode(_END, new.identity, new.records_start, self.proven),
            )
        )
        if old is not None:
            roll = Record(Kind.ROLL, new.identity, index=new.sequence)
            operations.append(self._write(start, [*waiting, encode(roll, old.identity, self.written, self.proven)]))
        self._continue_in(new)
        self.written, self._must_roll = new.records_start, False
        return operations

    def _next_header(self, old: SegmentHeader | None, record_bytes: int) -> SegmentHeader:
        needed_bytes = RECORDS_START + record_bytes + ROLL_BYTES
        return SegmentHeader(
            log=self._settings.log,
            log_kind=self._settings.log_kind,
            identity=self._chance.randbytes(IDENTITY_BYTES),
            sequence=old.sequence + 1 if old else 0,
            base=old.end if old else 0,
            size_bytes=max(self._settings.segment_bytes, needed_bytes + -needed_bytes % PAGE_BYTES),
            previous=old.identity if old else NO_IDENTITY,
        )

    def _drop_leftovers(self, sequence: int) -> list[Operation]:
        """Delete files after a cut that are not overwritten now: they would look like foreign segments later."""
        leftovers = sorted(reusable for reusable in self._reusable if reusable > sequence)
        self._reusable.difference_update(leftovers)
        return [Remove(self._path(segment_name(self._settings.log, leftover))) for leftover in leftovers]

    def _obtain_file(self, header: SegmentHeader) -> list[Operation]:
        """Reuse a file if possible. Free files have the configured size, so a larger segment gets a new file."""
        file = self._path(segment_name(header.log, header.sequence))
        if header.sequence in self._reusable:
            self._reusable.remove(header.sequence)
        elif self._free and header.size_bytes == self._settings.segment_bytes:
            return [Rename(self._free.pop(0), file)]
        return [WriteAt(file, header.size_bytes - 8, bytes(8))]

    def _write(self, position: int, pieces: list[bytes]) -> WriteAt:
        assert self._header is not None
        return WriteAt(self._file, position - self._header.base, b"".join(pieces))

    def _path(self, name: str) -> str:
        return self._settings.folder + name


def mend_header(header: SegmentHeader, folder: str = "") -> WriteAt:
    """Write both copies of the header again, after one of them was found bad."""
    return WriteAt(folder + segment_name(header.log, header.sequence), 0, encode_pages(header))


def refill(header: SegmentHeader, start: int, end: int, records: Sequence[Record], folder: str = "") -> WriteAt:
    """Repair in place: write records fetched from another node over a damaged stretch, which they must fill exactly."""
    pieces: list[bytes] = []
    position = start
    for record in records:
        pieces.append(encode(record, header.identity, position, 0))
        position += len(pieces[-1])
    if position != end:
        raise ValueError(f"the damaged stretch has {end - start} octets, the records {position - start}")
    return WriteAt(folder + segment_name(header.log, header.sequence), start - header.base, b"".join(pieces))
