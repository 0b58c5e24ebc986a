"""Reads the log after a restart: finds the messages that are certainly agreed, those that may have been acknowledged,
and the missing ones.

Decides whether the end of the log is intact or in doubt, and which messages execution may apply. Refuses to repair: the
running node fetches missing messages from other nodes.

Of several records for one index, the last one written counts: a message is written again only to replace a proposal
that was not agreed, or to repair it. Every message below the highest index in the log is agreed, because a node stores
a message only after its predecessor is agreed.

A verdict is no evidence: execution computes it again for every message that it applies at start. Only a message that
the checkpoint covers needs its stored verdict, because the state before it is gone. A node writes a checkpoint only
after the verdicts that it covers are on disk (`ReplicatedLog.shown`).

Invariants: a message counts as agreed only if the next message, or a mark, names its hash. Damage before the record of
the highest message can only hide agreed messages. Damage after it puts the end of the log in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.model.records import LogPosition
from chaplain.journal.storage.records import (
    STAMP_KIND,
    Grouper,
    RecordGroup,
    SyncHint,
    body_of,
    decode_sync_hint,
    is_message,
    with_verdict,
)
from chaplain.segment.layout import Bytes, octets
from chaplain.segment.record import ROLL_BYTES, Kind, Record
from chaplain.segment.scan import Found, Scan, ScanFinding, ScanVerdict
from chaplain.segment.survey import Survey, Surveyor

_HARMLESS = "header: one copy"
"""A segment has two copies of its header. The loss of one copy loses nothing."""


class OctetRange(Frozen, frozen=True):
    """Octets of one segment file, as they were read."""

    sequence: int
    offset: int
    data: bytes


class Recovered(Frozen, frozen=True):
    """The state of the log as recovery found it."""

    survey: Survey
    groups: Mapping[int, RecordGroup]
    """The message stored at each index; some below the last one may be missing."""
    replaced: tuple[RecordGroup, ...]
    """Messages after the agreed prefix that another message replaced. A serializer may still need their payloads."""
    agreed: int
    """All messages up to this index are in `groups`, connected by their hashes from the first one on, and certainly
    agreed.
    """
    floor: tuple[int, int]
    """Index and regime of the last message that this log ever contained or knew to be agreed."""
    mark: tuple[int, bytes]
    """Index and hash of the last message that a mark in the log calls agreed."""
    regime: int
    """The highest regime in any record."""
    doubt: str
    """Why the end of the log cannot be trusted; empty if it can."""
    base: LogPosition
    """The last message that the node's checkpoint covers; index 0 if there is no checkpoint."""
    first: int
    """The first message in the log."""
    hash_before_first: bytes
    """Hash of the message before the first one; empty if it is unknown, or if there is none."""
    in_order_from: int
    """From this message on, messages are stored in the order of their indexes. Earlier ones were backfilled."""
    data_lost: bool
    """True if a torn write cannot explain the doubt: the lost octets were written in this boot, or known
    to be synced.
    """
    unproven: tuple[OctetRange, ...]
    """The end of the log: octets after the last position that a record confirms as synced."""

    @property
    def empty(self) -> bool:
        return not self.survey.endings

    @property
    def missing(self) -> str:
        """The range of messages that damage hides, for people."""
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
    """Scan all segments, in the order of their sequence numbers.

    `base` is the position before the first message to apply: genesis, or the last message that the checkpoint covers.
    `first` is the first message that the log contained when the checkpoint was written.
    """
    surveyor = Surveyor(log)
    found: list[Found] = []
    unproven: list[tuple[Scan, Bytes]] = []
    for sequence, data in segments:
        scan = surveyor.add(sequence, data)
        if scan is not None:
            found += scan.records
            unproven = [(one, content) for one, content in (*unproven, (scan, data)) if one.header.end > scan.proven]
    survey = surveyor.finish()
    hint, hint_doubt = _read_sync_hint(hint_data)
    cut = survey.cut
    if cut is not None:
        found = [(head, record) for head, record in found if head.position < cut.position]
    records = _RecordSet(found)
    agreed = records.agreed(base)
    in_order_from = max(first, _first(survey, records, base))
    first, hash_before_first = records.reach_back(in_order_from, base)
    loss = _messages_lost(hint, records) or _cut_short(survey, cut, hint, boot) or _headless(survey, records, base)
    doubt = _doubt(survey, cut, hint, boot) or loss or _damaged_end(survey.findings, records.end) or hint_doubt
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
        # Within one boot no power cut can have torn a write, so any doubt means that written data was lost.
        data_lost=bool(loss) or (bool(doubt) and hint is not None and hint.boot == boot),
        unproven=tuple(_unproven_ranges(unproven, survey.proven, cut)),
    )


def _unproven_ranges(
    unproven: Iterable[tuple[Scan, Bytes]], proven: int, cut: ScanFinding | None
) -> Iterator[OctetRange]:
    """The octets after the last position that a record calls synced, up to the end of the log.

    They may be in the page cache but not on the disk: after a failed sync, the kernel may consider the pages clean, and
    the next sync does not write them. Scan findings after that position are not proven damage, so all octets before the
    first of them are valid.
    """
    for scan, data in unproven:
        header = scan.header
        if header.end <= proven or (cut is not None and cut.position <= header.base):
            continue
        # A segment's header is written together with its first record.
        start = 0 if proven <= header.records_start else proven - header.base
        end = scan.end + ROLL_BYTES if cut is None or scan.end < cut.position else cut.position
        piece = octets(data)[start : min(end, header.end) - header.base].tobytes()
        if piece:
            yield OctetRange(header.sequence, start, piece)


def _read_sync_hint(data: bytes | None) -> tuple[SyncHint | None, str]:
    """The sync hint, if there is one, and the reason why its loss puts the end of the log in doubt.

    A power cut may leave no file, or a file without content. Any other content that cannot be decoded is damage: the
    hint was the only evidence of a record that the disk reported as synced and then lost.
    """
    if data is None or not data.strip(b"\0"):
        return None, ""
    try:
        return decode_sync_hint(data), ""
    except Malformed as wrong:
        return None, str(wrong)


def _doubt(survey: Survey, cut: ScanFinding | None, hint: SyncHint | None, boot: bytes) -> str:
    """Why damage at the end of the log may have destroyed an acknowledged record; empty if it cannot have."""
    if cut is None or cut.verdict is ScanVerdict.TORN:
        return ""
    if hint is not None and hint.boot == boot and cut.position >= hint.position:
        return ""  # no reboot since: everything that was acknowledged was written before the hint's position
    return f"log in doubt at position {cut.position}: {cut.reason}"


def _cut_short(survey: Survey, cut: ScanFinding | None, hint: SyncHint | None, boot: bytes) -> str:
    """Why the log has lost a write of this boot; empty if it has not.

    The operating system retains all written octets until the machine stops, and a ticket writes the sync hint after its
    records. A log that ends before the hint's position has therefore lost a write, even if its end is intact. That
    write may have been acknowledged.
    """
    if hint is None or hint.boot != boot:
        return ""
    end = survey.endings[-1].end if survey.endings else 0
    end = end if cut is None else min(end, cut.position)
    return f"the log was written up to position {hint.position}, and ends at {end}" if end < hint.position else ""


def _messages_lost(hint: SyncHint | None, records: _RecordSet) -> str:
    """Why messages that were known to be on disk are missing at the end of the log; empty if none are."""
    if hint is None or hint.index <= records.floor()[0]:
        return ""
    return f"messages up to {hint.index} were on disk, the log ends with {records.floor()[0]}"


def _headless(survey: Survey, records: _RecordSet, base: LogPosition) -> str:
    """Why the log cannot be used: its first segments were dropped because a checkpoint covered them, and that
    checkpoint is missing.

    If message 1 is in the log nevertheless, the beginning was lost earlier and then fetched again, and stored at the
    end of the log.
    """
    first_sequence = survey.endings[0].header.sequence if survey.endings else 0
    headless = first_sequence and not base.index and 1 not in records.groups
    return "the log's beginning was dropped, and its checkpoint is not here" if headless else ""


def _first(survey: Survey, records: _RecordSet, base: LogPosition) -> int:
    """The first message of a log whose front was dropped. A log with its first segment begins with message 1."""
    if not base.index or not survey.endings or not survey.endings[0].header.sequence:
        return 1
    if _damage(survey.findings, 0) is not None:
        return min(min(records.groups, default=base.index + 1), base.index + 1)
    # No damage hides messages. If messages precede a gap, they were backfilled to the end of the log, and the messages
    # in the gap were dropped later.
    first = base.index + 1
    while (group := records.groups.get(first - 1)) is not None and group.is_whole:
        first -= 1
    return first


def _damaged_end(findings: Iterable[ScanFinding], end: int) -> str:
    found = _damage(findings, end)
    return f"log damaged at position {found.position}, behind its last message: {found.reason}" if found else ""


def _damage(findings: Iterable[ScanFinding], since: int) -> ScanFinding | None:
    """The first damage from this position on that may hide a record."""
    for finding in findings:
        if finding.verdict is ScanVerdict.DAMAGED and finding.position >= since and _HARMLESS not in finding.reason:
            return finding
    return None


class _RecordSet:
    """The messages, stamps and marks in the records of a log."""

    def __init__(self, found: Iterable[Found]) -> None:
        self.groups: dict[int, RecordGroup] = {}
        self.replaced: list[RecordGroup] = []
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
            elif record.kind == Kind.VERDICT:
                judged = with_verdict(self.groups.get(record.index), record, head.end)
                if judged is not None:
                    self.groups[record.index] = judged
            elif is_message(record) and (group := grouper.feed(head.position, head.end, record)) is not None:
                self._store(head.position, group)

    def _store(self, position: int, group: RecordGroup) -> None:
        """Store a message; of several for one index the last one counts."""
        with suppress(Malformed):
            body_of(group.first)
            if group.first.index >= self.last:
                self.last, self.end = group.first.index, position
            replaced = self.groups.get(group.first.index)
            if replaced is not None and replaced.first.chain_hash != group.first.chain_hash:
                self.replaced.append(replaced)
            self.groups[group.first.index] = group

    def _stamp(self, position: int, stamp: Record) -> None:
        """Raise the ballot of a stored message."""
        group = self.groups.get(stamp.index)
        if group is not None and group.first.chain_hash == stamp.body and group.ballot < stamp.regime:
            self.groups[stamp.index] = msgspec.structs.replace(group, ballot=stamp.regime)
            self.end = max(self.end, position)

    def floor(self) -> tuple[int, int]:
        """Index and ballot of the last message that was stored or marked as agreed."""
        stored = (self.last, self.groups[self.last].ballot if self.last else 0)
        return max(stored, (self.mark.index, self.mark.regime))

    def reach_back(self, first: int, base: LogPosition) -> tuple[int, bytes]:
        """The first message of the unbroken chain that ends with message `first`, and the hash before it.

        A message without a verdict ends the chain: the node stored the message, and installed a checkpoint before it
        executed the message.
        """
        following = self.groups.get(first)
        before = following.first.previous_hash if following is not None else b""
        if first == base.index + 1:
            before = base.hash
        while (
            before
            and (group := self.groups.get(first - 1)) is not None
            and group.first.chain_hash == before
            and group.is_whole
        ):
            first, before = first - 1, group.first.previous_hash
        return first, before if first > 1 else b""

    def agreed(self, base: LogPosition) -> int:
        """Index of the last message that is certainly agreed: the chain from `base` on, as far as a successor or a mark
        names each hash.
        """
        index, digest = base.index, base.hash
        while (group := self.groups.get(index + 1)) is not None and group.first.previous_hash == digest:
            following = self.groups.get(index + 2)
            linked = following is not None and following.first.previous_hash == group.first.chain_hash
            # The last stored message has no successor: only a mark proves that it is agreed.
            marked = (self.mark.index, self.mark.chain_hash) == (index + 1, group.first.chain_hash)
            if not linked and not marked:
                break
            index, digest = index + 1, group.first.chain_hash
        return index
