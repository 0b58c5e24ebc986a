"""Selects the records that form the log: groups record headers into messages, and picks one version for each index.

Like a reader of the log, it follows the hash chain: the next message states which version of a message was committed.
Unlike a reader, it continues where the chain cannot be followed: it then picks the version that was written last, and
reports missing messages. `checker` verifies the content of the messages.

A node that finds a damaged message writes it again at the end of the log (docs/decisions/repair-of-damaged-records.md).
So a message may have several copies.

Invariants: each index has at most one message; a hole is reported once; the last message is left out unless a mark or
another node confirms that it was committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from chaplain.core import Frozen
from chaplain.segment.layout import NO_HASH
from chaplain.segment.record import Kind
from chaplain.verification.header_scan import Gap, ScanEnd, ScannedRecord, Step
from chaplain.verification.violations import Break

Place = tuple[str, int, int]
"""File, position and size of a record."""


_NO_RECORD = Gap("no record of it")


class SelectedMessage(Frozen, frozen=True):
    """A message of the log, and where its records are."""

    index: int
    chain: bytes
    previous: bytes
    places: tuple[tuple[Place, ...], ...]
    """By part: the places of all its copies; empty if the part is missing."""
    reason: str = ""
    """Why parts are missing."""
    reported: bool = False
    """Whether the missing parts are already reported, as part of a hole."""


class ChainClaim(Frozen, frozen=True):
    """A statement of another source about this log: it reaches at least to `index`, with this chain hash."""

    index: int
    chain: bytes
    """Empty if only the index is known."""
    source: str
    """Names the source in reports of breaks."""


class _Version:
    __slots__ = ("chain", "first", "last", "parts", "previous", "records")

    def __init__(self, record: ScannedRecord) -> None:
        self.chain, self.previous = record.chain, record.previous
        self.parts = record.parts
        self.records: dict[int, list[ScannedRecord]] = {}
        self.first = self.last = record

    def add(self, record: ScannedRecord) -> None:
        self.last = record
        if record.parts > self.parts:  # the earlier records are from an index-only serializer, which stores no payloads
            self.parts, self.records = record.parts, {}
        if record.parts == self.parts:
            self.records.setdefault(record.part, []).append(record)

    @property
    def whole(self) -> bool:
        return len(self.records) == self.parts


class ChainSelection:
    """The messages of one log, built from a scan of its headers."""

    def __init__(self, steps: Iterable[Step], first: int = 1) -> None:
        self._first = first
        self._versions: dict[int, dict[bytes, _Version]] = {}
        self._marks: dict[tuple[int, bytes], None] = {}
        self._gaps: dict[int, Gap] = {}
        """By index: the unreadable range in which the message may be."""
        self._before: ScannedRecord | None = None
        """The last record of the message with the highest index so far. Records after it with lower indexes are
        copies.
        """
        self._last: ScannedRecord | None = None
        """The last record of any message."""
        self._gap: Gap | None = None
        """The last unreadable range, until a record with a new message follows."""
        self._repeated = False
        """Whether a copy of an older message followed the gap."""
        self.ending = ScanEnd(0, sealed=False)
        self.breaks: list[Break] = []
        for step in steps:
            self._take(step)
        if self._repeated:
            self._note_gap(self._next - 1)
        self.top = max(self._versions, default=first - 1)
        """The index of the last message, committed or not."""
        self.agreed = self._agreed()
        self._chosen = self._choose()
        self.messages = list(self._select())
        self._check_marks()
        self._check_order()

    def hash_at(self, index: int) -> bytes | None:
        chosen = self._chosen.get(index)
        return None if chosen is None else chosen.chain

    def place_of(self, index: int) -> ScannedRecord | None:
        """Return the first record of the message."""
        chosen = self._chosen.get(index)
        return None if chosen is None else chosen.first

    # Reading the scan.

    def _take(self, step: Step) -> None:
        if isinstance(step, Gap):
            self._gap, self._repeated = step, False
        elif isinstance(step, ScanEnd):
            self.ending = step
        elif step.kind == Kind.MARK:
            self._marks[step.index, step.chain] = None
            if self._gap is not None and step.index >= self._next:
                self._note_gap(step.index)
        elif step.kind in (Kind.META, Kind.BATCH, Kind.VERDICT) and step.chain != NO_HASH:
            self._take_record(step)

    def _take_record(self, record: ScannedRecord) -> None:
        self._explain(record)
        if self._before is None or record.index >= self._before.index:
            self._note_gap(record.index - (record.part == 0))
            self._before = record
        else:
            self._repeated = self._gap is not None
        self._last = record
        versions = self._versions.setdefault(record.index, {})
        version = versions.get(record.chain)
        if version is None:
            version = versions[record.chain] = _Version(record)
        version.add(record)

    def _explain(self, behind: ScannedRecord) -> None:
        """Attribute an unreadable range among copies to messages, if the records around it show what it contained."""
        gap, last, furthest = self._gap, self._last, self._before
        if gap is None or last is None or furthest is None:
            return
        again = (last is not furthest, behind.index < furthest.index)
        held = [last.index] if last.part + 1 < last.parts else []
        held += [behind.index] if behind.part else []
        held += range(last.index + 1, behind.index) if all(again) else []
        if any(again) and held:
            self._gap = None
            self._gaps = dict.fromkeys(held, gap) | self._gaps

    @property
    def _next(self) -> int:
        """The index of the message to which the next record belongs, unless something is missing."""
        before = self._before
        return self._first if before is None else before.index + (before.part + 1 == before.parts)

    def _note_gap(self, high: int) -> None:
        """Attribute an unreadable range to the messages that are missing between the records around it."""
        gap, self._gap, self._repeated = self._gap, None, False
        if gap is None:
            return
        for index in range(self._next, high + 1):
            self._gaps.setdefault(index, gap)
        if self._next > high:
            self.breaks.append(Break("", max(high, 0), "damaged", "records without a gap", gap.reason, file=gap.file))

    # Picking versions.

    def _agreed(self) -> int:
        """Return the index of the last message that a mark or a later message confirms."""
        marked = max((index for index, _ in self._marks), default=0)
        return self.top if marked >= self.top else self.top - 1

    def _choose(self) -> dict[int, _Version]:
        chosen: dict[int, _Version] = {}
        top = self._versions.get(self.top, {})
        expected = next((chain for index, chain in reversed(self._marks) if index == self.top and chain in top), None)
        for index in sorted(self._versions, reverse=True):
            versions = self._versions[index]
            version = versions.get(expected) if expected is not None else None
            if version is None:
                version = max(versions.values(), key=lambda one: (one.last.sequence, one.last.position))
            chosen[index] = version
            expected = version.previous if index - 1 in self._versions else None
        return chosen

    # Reporting what is missing.

    def _select(self) -> Iterator[SelectedMessage]:
        hole: list[int] = []
        for index in range(self._first, self.agreed + 1):
            version = self._chosen.get(index)
            if version is not None and version.whole:
                yield from self._close(hole)
                hole = []
                yield self._selected(index, version)
            else:
                hole.append(index)
        yield from self._close(hole)

    def _close(self, hole: list[int]) -> Iterator[SelectedMessage]:
        """Report a hole once. If only parts of a single message are missing, `checker` reports them, with more
        detail.
        """
        if not hole:
            return
        alone = len(hole) == 1 and hole[0] in self._chosen
        if not alone:
            first, last = hole[0], hole[-1]
            gaps = [self._gaps[index] for index in hole if index in self._gaps]
            reasons = dict.fromkeys(gap.reason for gap in gaps)
            expected = f"message {first}" if first == last else f"messages {first} to {last}"
            found = "; ".join(reasons) or f"message {last + 1}"
            self.breaks.append(Break("", first, "missing", expected, found, file=gaps[0].file if gaps else ""))
        for index in hole:
            if index in self._chosen:
                yield self._selected(index, self._chosen[index], reported=not alone)

    def _selected(self, index: int, version: _Version, reported: bool = False) -> SelectedMessage:
        places = tuple(tuple(map(_place, version.records.get(part, ()))) for part in range(version.parts))
        reason = "" if version.whole else self._gaps.get(index, _NO_RECORD).reason
        return SelectedMessage(index, version.chain, version.previous, places, reason, reported)

    def _check_marks(self) -> None:
        for index, chain in self._marks:
            if index > self.top:
                self.breaks.append(
                    Break("", self.top + 1, "missing", f"message {index}, which is marked", f"the end at {self.top}")
                )
            elif chain not in (NO_HASH, self.hash_at(index)) and index in self._chosen:
                found = self._chosen[index].chain.hex()
                self.breaks.append(Break("", index, "fork", f"{chain.hex()}, which is marked", found))

    def _check_order(self) -> None:
        before: ScannedRecord | None = None
        for message in self.messages:
            if message.index in self._gaps:
                continue  # its original place is unreadable, so what remains is a copy further back
            first = self._chosen[message.index].first
            if before is not None and (first.sequence, first.position) < (before.sequence, before.position):
                expected, file = f"behind message {message.index - 1}", Path(first.path).name
                self.breaks.append(Break("", message.index, "order", expected, "before it", file=file))
            before = first

    def reaches(self, known: Iterable[ChainClaim]) -> list[Break]:
        """Return a break for each statement of another source that this log contradicts."""
        broken: list[Break] = []
        for one in known:
            here = self.hash_at(one.index)
            if one.index > self.top:
                broken.append(_cut(self.top, f"message {one.index}, {one.source}"))
            elif one.chain and here is not None and here != one.chain:
                broken.append(Break("", one.index, "fork", f"{one.chain.hex()}, {one.source}", here.hex()))
        return broken


def _cut(top: int, expected: str) -> Break:
    return Break("", top + 1, "missing", expected, f"the end of the log behind message {top}")


def check_end(selection: ChainSelection, position: int, source: str) -> list[Break]:
    """Report a truncated log: it ends before a position that it had reached, or announces a file that is missing."""
    if selection.ending.sealed:
        return [_cut(selection.top, "the segment that the last one names as its next")]
    if selection.ending.position < position:
        return [_cut(selection.top, f"a log up to position {position}, {source}")]
    return []


def _place(record: ScannedRecord) -> Place:
    return record.path, record.position, record.size_bytes
