"""Reads a log back after a restart: what is surely agreed, what was perhaps promised, and what is missing.

Decides whether the end of the log is whole or in doubt, and which messages execution may be given. Refuses to repair:
what is missing is fetched from others by the running node.

Of several records for one index the last one written holds: a message is written again only to replace a proposal
that was not agreed, or to repair it. Everything below the highest index in the log is agreed, since nothing is stored
before its predecessor is.

Invariants: a message is called agreed only if the next message, or a mark, names its hash; damage before the record
of the highest message can only hide agreed messages, damage behind it is doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.model.records import LogPosition
from chaplain.journal.storage.records import STAMP_KIND, Group, Grouper, SyncHint, body_of, decode_sync_hint, is_message
from chaplain.segment.layout import Bytes, octets
from chaplain.segment.record import ROLL_BYTES, Kind, Record
from chaplain.segment.scan import Found, Scan, ScanFinding, ScanVerdict
from chaplain.segment.survey import Survey, Surveyor

_HARMLESS = "header: one copy"
"""Either copy of a segment's header says everything; losing the other loses nothing."""


class Stretch(Frozen, frozen=True):
    """Octets of one segment file, as they were read."""

    sequence: int
    offset: int
    data: bytes


class Recovered(Frozen, frozen=True):
    survey: Survey
    groups: Mapping[int, Group]
    """The message held at each index; some may be missing below the last."""
    replaced: tuple[Group, ...]
    """Messages that others took the place of, behind what is agreed: a serializer may still have them."""
    agreed: int
    """All up to here are in `groups`, chained from the first, and surely agreed."""
    floor: tuple[int, int]
    """Index and regime of the furthest message that this log ever held or knew to be agreed."""
    mark: tuple[int, bytes]
    """The furthest message that a mark in the log calls agreed: index and hash."""
    regime: int
    """The highest regime that any record names."""
    doubt: str
    """Why the end cannot be trusted; empty if it can."""
    base: LogPosition
    """The message that the node's checkpoint covers; 0 if there is none."""
    first: int
    """Messages before this one are not here."""
    hash_before_first: bytes
    """The hash of the message before the first; empty if it is not known, or there is none."""
    in_order_from: int
    """From this one on messages lie in their order."""
    data_lost: bool
    """The doubt is none about a torn write: what is gone was written, on this boot, or known to be synced."""
    unproven: tuple[Stretch, ...]
    """The end of the log, as far as no record says that a sync confirmed it."""

    @property
    def empty(self) -> bool:
        return not self.survey.endings

    @property
    def missing(self) -> str:
        """The range that damage hides, for people."""
        return "" if self.floor[0] <= self.agreed + 1 else f"{self.agreed + 1}..{self.floor[0]}"


def recover(
    log: str,
    segments: Iterable[tuple[int, Bytes]],
    hint_data: bytes | None,
    boot: bytes,
    base: LogPosition,
    *,
    first: int = 1,
) -> Recovered:
    """Look at all segments, in the order of their sequence. `base` is what the chain begins with: genesis, or the last
    message that a checkpoint covers, with the message from which on the log was kept then.
    """
    surveyor = Surveyor(log)
    found: list[Found] = []
    unproven: list[tuple[Scan, Bytes]] = []
    for sequence, data in segments:
        scan = surveyor.add(sequence, data)
        if scan is not None:
            found += scan.records
            unproven = [(one, held) for one, held in (*unproven, (scan, data)) if one.header.end > scan.proven]
    survey = surveyor.finish()
    hint, hint_doubt = _read_sync_hint(hint_data)
    cut = survey.cut
    if cut is not None:
        found = [(head, record) for head, record in found if head.position < cut.position]
    records = _RecordSet(found)
    agreed = records.agreed(base)
    in_order_from = max(first, _first(survey, records, base))
    first, hash_before_first = records.reach_back(in_order_from, base)
    gone = _messages_lost(hint, records) or _cut_short(survey, cut, hint, boot) or _headless(survey, records, base)
    doubt = _doubt(survey, cut, hint, boot) or gone or _damaged_end(survey.findings, records.end) or hint_doubt
    return Recovered(
        survey=survey,
        groups=records.groups,
        replaced=tuple(group for group in records.replaced if group.first.index > agreed),
        agreed=agreed,
        floor=records.floor(),
        mark=(records.mark.index, records.mark.chain_hash),
        regime=records.regime,
        doubt=doubt,
        base=base,
        first=first,
        hash_before_first=hash_before_first,
        in_order_from=in_order_from,
        data_lost=bool(gone) or (bool(doubt) and hint is not None and hint.boot == boot),
        unproven=tuple(_stretches(unproven, survey.proven, cut)),
    )


def _stretches(unproven: Iterable[tuple[Scan, Bytes]], proven: int, cut: ScanFinding | None) -> Iterator[Stretch]:
    """The octets behind the last position that a record calls synced, up to the end of the log.

    The page cache may hold it though the disk does not: after a sync that failed, the next one does not write it.
    Findings behind that position are not proven damage, so all that stands before the first of them is valid.
    """
    for scan, data in unproven:
        header = scan.header
        if header.end <= proven or (cut is not None and cut.position <= header.base):
            continue
        # A segment's header is written with its first record.
        start = 0 if proven <= header.records_start else proven - header.base
        end = scan.end + ROLL_BYTES if cut is None or scan.end < cut.position else cut.position
        piece = octets(data)[start : min(end, header.end) - header.base].tobytes()
        if piece:
            yield Stretch(header.sequence, start, piece)


def _read_sync_hint(data: bytes | None) -> tuple[SyncHint | None, str]:
    """The jot, if there is one, and why its loss leaves the end of the log in doubt.

    A power cut may leave no jot, or a file without content. Anything else that cannot be decoded is damage: the jot
    held the only evidence that the disk lost a record which it had reported as synced.
    """
    if data is None or not data.strip(b"\0"):
        return None, ""
    try:
        return decode_sync_hint(data), ""
    except Malformed as wrong:
        return None, str(wrong)


def _doubt(survey: Survey, cut: ScanFinding | None, hint: SyncHint | None, boot: bytes) -> str:
    if cut is None or cut.verdict is ScanVerdict.TORN:
        return ""
    if hint is not None and hint.boot == boot and cut.position >= hint.position:
        return ""  # the machine never stopped, so all that was acknowledged is what was written before the jot
    return f"log in doubt at position {cut.position}: {cut.reason}"


def _cut_short(survey: Survey, cut: ScanFinding | None, hint: SyncHint | None, boot: bytes) -> str:
    """Whether the log ends before a position that was written on this boot.

    The operating system keeps what it was given until the machine stops, and a ticket writes its jot after its records.
    So a log that ends before the jot's position, however cleanly, lost a write; it may have been acknowledged.
    """
    if hint is None or hint.boot != boot:
        return ""
    end = survey.endings[-1].end if survey.endings else 0
    end = end if cut is None else min(end, cut.position)
    return f"the log was written up to position {hint.position}, and ends at {end}" if end < hint.position else ""


def _messages_lost(hint: SyncHint | None, records: _RecordSet) -> str:
    if hint is None or hint.index <= records.floor()[0]:
        return ""
    return f"messages up to {hint.index} were on disk, the log ends with {records.floor()[0]}"


def _headless(survey: Survey, records: _RecordSet, base: LogPosition) -> str:
    """Segments were dropped because a checkpoint covered them: without it nobody knows what they came to.

    If the first message is here all the same, the beginning was lost before, and fetched again to the log's end.
    """
    begins = survey.endings[0].header.sequence if survey.endings else 0
    headless = begins and not base.index and 1 not in records.groups
    return "the log's beginning was dropped, and its checkpoint is not here" if headless else ""


def _first(survey: Survey, records: _RecordSet, base: LogPosition) -> int:
    """Where a log that was dropped from the front begins. A log that has its first segment begins with 1."""
    if not base.index or not survey.endings or not survey.endings[0].header.sequence:
        return 1
    if _damage(survey.findings, 0) is not None:
        return min(min(records.groups, default=base.index + 1), base.index + 1)
    # Nothing is hidden: what is before a hole was put back to the log's end, and its neighbours were dropped since.
    first = base.index + 1
    while first - 1 in records.groups:
        first -= 1
    return first


def _damaged_end(findings: Iterable[ScanFinding], end: int) -> str:
    found = _damage(findings, end)
    return f"log damaged at position {found.position}, behind its last message: {found.reason}" if found else ""


def _damage(findings: Iterable[ScanFinding], since: int) -> ScanFinding | None:
    """The first damage from this position on that may hide something."""
    for finding in findings:
        if finding.verdict is ScanVerdict.DAMAGED and finding.position >= since and _HARMLESS not in finding.reason:
            return finding
    return None


class _RecordSet:
    """What the records of a log add up to."""

    def __init__(self, found: Iterable[Found]) -> None:
        self.groups: dict[int, Group] = {}
        self.replaced: list[Group] = []
        self.regime = 0
        self.last = 0
        """The highest message."""
        self.end = 0
        """Position of its last record."""
        self.mark = Record(Kind.MARK)
        grouper = Grouper()
        for head, record in found:
            self.regime = max(self.regime, record.regime)
            if record.kind == Kind.MARK:
                self.mark = max(self.mark, record, key=lambda mark: mark.index)
            elif record.kind == STAMP_KIND:
                self._stamp(head.position, record)
            elif is_message(record) and (group := grouper.feed(head.position, head.end, record)) is not None:
                self._hold(head.position, group)

    def _hold(self, position: int, group: Group) -> None:
        with suppress(Malformed):
            body_of(group.first)
            if group.first.index >= self.last:
                self.last, self.end = group.first.index, position
            replaced = self.groups.get(group.first.index)
            if replaced is not None and replaced.first.chain_hash != group.first.chain_hash:
                self.replaced.append(replaced)
            self.groups[group.first.index] = group

    def _stamp(self, position: int, stamp: Record) -> None:
        group = self.groups.get(stamp.index)
        if group is not None and group.first.chain_hash == stamp.body and group.ballot < stamp.regime:
            self.groups[stamp.index] = Group(group.position, group.end, group.records, stamp.regime)
            self.end = max(self.end, position)

    def floor(self) -> tuple[int, int]:
        held = (self.last, self.groups[self.last].ballot if self.last else 0)
        return max(held, (self.mark.index, self.mark.regime))

    def reach_back(self, first: int, base: LogPosition) -> tuple[int, bytes]:
        """How far the log goes back from here, each message named by the next; and the hash of the one before."""
        following = self.groups.get(first)
        before = following.first.previous_hash if following is not None else b""
        if first == base.index + 1:
            before = base.hash
        while before and (group := self.groups.get(first - 1)) is not None and group.first.chain_hash == before:
            first, before = first - 1, group.first.previous_hash
        return first, before if first > 1 else b""

    def agreed(self, base: LogPosition) -> int:
        """How far the chain goes, each link named by its successor or by a mark."""
        index, digest = base.index, base.hash
        while (group := self.groups.get(index + 1)) is not None and group.first.previous_hash == digest:
            following = self.groups.get(index + 2)
            linked = following is not None and following.first.previous_hash == group.first.chain_hash
            marked = (self.mark.index, self.mark.chain_hash) == (index + 1, group.first.chain_hash)
            if not linked and not marked:
                break
            index, digest = index + 1, group.first.chain_hash
        return index
