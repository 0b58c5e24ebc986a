"""Scans one segment: returns its records and its damage.

Wherever there is no valid record it decides whether that is a clean end, a torn write, damage, or unknown;
docs/data-on-disk.md has the table. It does not know which findings a quorum can repair.

Invariants: a record is returned only if both its checksums match; everything invalid before the end becomes a finding;
every cut is reported.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.segment.header import SegmentHeader
from chaplain.segment.layout import (
    ALIGNMENT,
    IDENTITY_BYTES,
    RECORDS_START,
    TAG_BYTES,
    Bytes,
    Octets,
    checksum,
    octets,
)
from chaplain.segment.record import Head, Kind, Record, decode_body, decode_head

Found: TypeAlias = tuple[Head, Record]


class ScanVerdict(StrEnum):
    TORN = "torn"
    """An unfinished write that was never synced. Nothing was promised about it."""
    IN_DOUBT = "in doubt"
    """A torn write, or damage of an acknowledged record: local evidence cannot distinguish the two."""
    DAMAGED = "damaged"
    """It was synced, and has changed since."""


class ScanTail(StrEnum):
    """The end of a scan."""

    OPEN = "open"
    SEALED = "sealed"
    BROKEN = "broken"


class ScanFinding(Frozen, frozen=True):
    verdict: ScanVerdict
    position: int
    end: int
    """The end of the bad stretch, where the next valid record is; `position` itself if nothing valid follows."""
    reason: str
    head: Head | None = None
    """The head of a record whose body alone is bad."""


class Scan(Frozen, frozen=True):
    header: SegmentHeader
    records: tuple[Found, ...]
    findings: tuple[ScanFinding, ...]
    tail: ScanTail
    end: int
    """Where the scan ended: the position of END or ROLL, or of the first octet after which nothing is valid."""
    proven: int
    """The highest position that a valid record of this segment states to be on disk."""
    next_identity: bytes | None = None
    short_bytes: int = 0
    """The number of octets that are missing at the end of the file."""

    @property
    def clean(self) -> bool:
        return not self.findings


def scan(
    data: Bytes, header: SegmentHeader, start: int | None = None, search: bool = True, data_at: int | None = None
) -> Scan:
    """Scan the records of one segment, from position `start` or the first record.

    `data` is the whole file, or, without `search`, the part of it that starts at position `data_at`.

    Without `search` the scan ends at the first invalid place: for a reader at the live end of a log, where a
    half-written record is normal.
    """
    assert data_at is None or not search, "a search needs the whole segment"
    walk = _Walk(octets(data), header, search, header.base if data_at is None else data_at)
    return walk.run(header.records_start if start is None else start)


class _Walk:
    def __init__(self, data: Octets, header: SegmentHeader, search: bool, data_at: int) -> None:
        self._data = data[: header.end - data_at]
        self._data_at = data_at
        self._header = header
        self._search = search
        self._identity_crc = checksum(header.identity)
        self._tags: list[int] | None = None
        self._records: list[Found] = []
        self._gaps: list[ScanFinding] = []
        self._proven = 0

    def run(self, start: int) -> Scan:
        if start < self._header.records_start or start % ALIGNMENT:
            raise ValueError(f"no record can begin at position {start}")
        position: int | None = start
        end, tail, next_identity = start, ScanTail.BROKEN, None
        while position is not None and tail is ScanTail.BROKEN:
            end = position
            head, reason = self._try_head(position)
            if head is None:
                position = self._resume(position, reason)
            elif head.record.kind == Kind.END:
                tail = ScanTail.OPEN
            elif (body := self._try_body(head)) is None:
                position = head.end
            elif head.record.kind == Kind.ROLL:
                tail, next_identity = ScanTail.SEALED, bytes(body[:IDENTITY_BYTES])
            else:
                self._records.append((head, _with_body(head.record, body)))
                position = head.end
        self._check_after_end(end, tail)
        return Scan(
            header=self._header,
            records=tuple(self._records),
            findings=apply_proof(self._gaps, self._proven),
            tail=tail,
            end=end,
            proven=self._proven,
            next_identity=next_identity,
            short_bytes=self._header.end - self._data_at - len(self._data),
        )

    def _try_head(self, position: int) -> tuple[Head | None, str]:
        at = position - self._data_at
        try:
            head = decode_head(self._data[at:], self._header.identity, position, self._identity_crc)
        except Malformed as wrong:
            return None, str(wrong)
        if head.end > self._header.end:
            return None, "record: body runs past the segment"
        self._proven = max(self._proven, head.proven)
        return head, ""

    def _try_body(self, head: Head) -> memoryview | None:
        try:
            return decode_body(self._data[head.position - self._data_at :], head)
        except Malformed as wrong:
            self._gaps.append(ScanFinding(ScanVerdict.IN_DOUBT, head.position, head.end, str(wrong), head))
            return None

    def _resume(self, position: int, reason: str) -> int | None:
        """Add a finding for the bad stretch and find the next valid record after it."""
        # A valid record after the bad stretch may prove, by its `proven` position, that the stretch was synced.
        resumed = self._next_valid(position + ALIGNMENT)
        self._gaps.append(ScanFinding(ScanVerdict.IN_DOUBT, position, position if resumed is None else resumed, reason))
        return resumed

    def _next_valid(self, position: int) -> int | None:
        for candidate in self._candidates(position):
            if self._try_head(candidate)[0] is not None:
                return candidate
        return None

    def _candidates(self, position: int) -> list[int]:
        """Positions from here on that contain the tag of this segment, where a record might begin."""
        if not self._search:
            return []
        if self._tags is None:
            usable = len(self._data) // TAG_BYTES * TAG_BYTES
            words = self._data[RECORDS_START:usable].view("<u8")
            hits = np.flatnonzero(words == int.from_bytes(self._header.tag, "little"))
            self._tags = (hits * ALIGNMENT + self._header.records_start).tolist()
        return self._tags[bisect_left(self._tags, position) :]

    def _check_after_end(self, end: int, tail: ScanTail) -> None:
        """Nothing of this segment may follow an END.

        If something does, a write had started, or END is left from a lost write.
        """
        if tail is not ScanTail.OPEN:
            return
        traces = self._candidates(end + ALIGNMENT)
        for trace in traces:
            self._try_head(trace)  # a valid head there may prove that END should be gone
        if traces:
            self._gaps.append(ScanFinding(ScanVerdict.TORN, end, end, "octets of a later write behind the end"))
        elif self._proven > end:
            self._gaps.append(ScanFinding(ScanVerdict.IN_DOUBT, end, end, "a record was here"))


def _with_body(record: Record, body: memoryview) -> Record:
    return Record(
        record.kind,
        body,
        record.index,
        record.first_offset,
        record.timestamp_ns,
        record.count,
        record.regime,
        record.stream,
        record.part,
        record.parts,
        record.flags,
        record.origin_node,
        record.origin_journal,
        record.origin_index,
        record.previous_hash,
        record.chain_hash,
    )


def apply_proof(findings: list[ScanFinding] | tuple[ScanFinding, ...], proven: int) -> tuple[ScanFinding, ...]:
    """The same findings, given the highest proven position of the log: synced octets are neither torn nor in doubt."""
    return tuple(
        ScanFinding(ScanVerdict.DAMAGED, finding.position, finding.end, finding.reason, finding.head)
        if finding.position < proven
        else finding
        for finding in findings
    )
