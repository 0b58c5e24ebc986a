"""The running log: the agreed prefix, the one message after it (the tail), and the operations that store them.

Decides which records are written, and their form. Refuses to decide whether a message is agreed. Every method that
writes returns its operations, which the caller puts into one `Persist`.

    agreed      index up to which execution has applied all messages
    tail        the stored message after `agreed`; it is not known to be agreed
    floor       index and ballot of the last message that this log ever contained, even if damage has destroyed it;
                this node votes only for candidates whose log reaches at least that far

A node stores the unchanged octets of a message, and executes it when it is agreed. It writes the verdict with the next
append, before the other records of that append. Until then the verdict is only in memory. After a crash execution
computes it again, and `_replay` finds the verdicts that are missing on disk.

    durable     messages up to this index are on disk
    shown       of the agreed ones, messages up to this index are on disk with their verdicts: readers can use them

Invariants: `agreed` never decreases and its hash never changes. A stored message continues the chain of its
predecessor. The ballot of the tail never decreases while its index stays the same.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from chaplain.core import Operation, WriteAt
from chaplain.errors import Malformed, StorageError
from chaplain.journal.messages.cluster import DataEntry
from chaplain.journal.messages.consensus import KNOWN_AGREED
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.model.log_entry import AgreedEntry, Execution, LogEntry
from chaplain.journal.model.verdict_chain import previous_of
from chaplain.journal.settings import ConsensusSettings
from chaplain.journal.storage.records import (
    RecordGroup,
    SyncHint,
    encode_sync_hint,
    group_messages,
    mark_record,
    message_of,
    message_records,
    stamp_record,
    verdict_of,
    verdict_record,
)
from chaplain.journal.storage.recovery import OctetRange, Recovered
from chaplain.journal.storage.segment_index import SegmentIndex
from chaplain.segment.header import read_headers
from chaplain.segment.layout import Bytes, octets, segment_name
from chaplain.segment.record import Record
from chaplain.segment.scan import scan
from chaplain.segment.settings import LogSettings
from chaplain.segment.write import SegmentWriter

LOG_KIND = 5
SYNC_HINTS_UNSYNCED_MAX = 32
"""The log syncs the sync hint with every mark, and once in this many messages: after a power cut the hint is at most
this many messages old. To sync it with every message would double the number of syncs
(docs/decisions/votes-after-data-loss.md).
"""


def sync_hint_name(settings: ConsensusSettings) -> str:
    return f"{settings.folder}{settings.log}.jot"


def hard_state_name(settings: ConsensusSettings) -> str:
    return f"{settings.folder}{settings.log}.standing"


class _Pending(NamedTuple):
    """A verdict that is not written yet."""

    message: int
    records: list[Record]
    """The verdict; or the whole message, if later messages follow the stored one, so that its verdict cannot."""

    @property
    def is_copy(self) -> bool:
        return len(self.records) > 1


class _Written(NamedTuple):
    """Verdicts that were written but are not synced yet."""

    end: int
    """They are on disk when the log is on disk up to this position."""
    shown: int
    """Then messages up to this index can be read."""
    spans: list[tuple[int, int, int, bool]]
    """Index, start and end of what was written for each message, and whether it is a copy of the whole message."""


class ReplicatedLog:
    """The log of one node, with the state machine that executes its agreed messages."""

    def __init__(
        self, settings: ConsensusSettings, rng: random.Random, recovered: Recovered, execution: Execution
    ) -> None:
        layout = LogSettings(settings.log, LOG_KIND, settings.folder, settings.segment_bytes, free_max=0)
        # The first append truncates an end that is in doubt. By then the hard state on disk says that the vote is in
        # doubt, so the truncation cannot hide a lost acknowledgement.
        self._writer = SegmentWriter(layout, rng, recovered.survey, cut_doubt=True)
        self._settings = settings
        self.execution = execution
        self.segment_index = SegmentIndex(recovered.first, recovered.in_order_from)
        self.hash_before_first = recovered.hash_before_first
        """Hash of the message before the first one in the log. Empty if the log begins with message 1, or if this node
        dropped the earlier messages itself.
        """
        self.verdict_before_first = self._find_verdict_before_first(recovered, execution)
        """Hash of the verdict on the message before the first one; empty where verdicts are not stored."""
        for ending in recovered.survey.endings:
            if ending.header.base <= self._writer.written:  # segments after a truncation are created anew
                self.segment_index.add_segment(ending.header)
        self._recent: deque[LogEntry] = deque()
        self._recent_bytes = 0
        self.agreed = recovered.base.index
        self.agreed_hash = recovered.base.hash
        self.agreed_ns = recovered.base.timestamp_ns
        """Timestamp of the last agreed message. The next message has a later one."""
        self.agreed_by = (0, 0)
        """Regime and master that first proposed the last agreed message; zeros if the message is not in this log."""
        self.tail: LogEntry | None = None
        self.floor = recovered.floor
        self._disconnected: dict[int, RecordGroup] = {}
        """Messages of this log that follow a damaged part. They wait until the missing messages are fetched."""
        self._mark = recovered.mark
        self.durable = 0
        """All messages of this log up to this index are on disk."""
        self.shown = 0
        """Agreed messages up to this index are on disk with their verdicts."""
        self._tail_parts = 1
        """The parts of the tail's records, with its verdict; 1 if it was stored without payloads."""
        self._pending: list[_Pending] = []
        """Verdicts to write with the next append."""
        self._written: deque[_Written] = deque()
        self._covered = 0
        """Verdicts of messages up to this index were written."""
        self._last_stored = max((group.position for group in recovered.groups.values()), default=0)
        """Position of the last message that recovery found. Only its verdict can still follow it."""
        self._replay(recovered)

    @property
    def cluster_config(self) -> ClusterConfig:
        """The cluster configuration after the agreed prefix."""
        return self.execution.cluster_config

    @property
    def copies(self) -> int:
        """Number of nodes that store a payload before it is ordered; 0 unless serializers are index-only."""
        return self.execution.copies

    @property
    def index_only(self) -> bool:
        """True if this node stores the order without payloads. It executes messages, too, but does not retain their
        payloads.
        """
        return self.copies > 0 and not self.cluster_config.holds_data(self._settings.node)

    def cached_payload(self, entry: DataEntry) -> bytes | None:
        """A payload of a message that was stored after the agreed prefix, even if another message has replaced it
        since.
        """
        return self.execution.cached_payload(entry.reference, entry.digest)

    # The end of the log.

    def last(self) -> tuple[int, int]:
        """Index and ballot of the end of the log, as voters compare them (Raft: lastLogIndex and lastLogTerm)."""
        end, tail = (self.agreed, KNOWN_AGREED), self.tail
        if tail is not None and (tail.body.index, tail.ballot) > end:
            end = (tail.body.index, tail.ballot)
        # A node that lost the end of its log still compares candidates with what it once acknowledged.
        return end if end > self.floor else self.floor

    @property
    def has_no_gap(self) -> bool:
        """True if no message is missing between the agreed prefix and the last message that this log ever contained."""
        reach = self.tail.body.index if self.tail is not None else self.agreed
        return self.floor[0] <= reach <= self.agreed + 1

    @property
    def written(self) -> int:
        """Position up to which the log is written."""
        return self._writer.written

    @property
    def sequence(self) -> int:
        """Sequence number of the current segment."""
        return self._writer.header.sequence

    # Storing messages.

    def store(self, message: LogEntry) -> tuple[Operation, ...]:
        """Store a message as the tail, in place of an earlier tail."""
        assert message.index == self.agreed + 1, "a message was stored before its predecessor was agreed"
        assert message.body.previous == self.agreed_hash, "a stored message does not continue the chain"
        old = self.tail
        if old is not None and old.index == message.index:
            assert old.ballot < message.ballot, "a stored message was replaced under the same regime or an earlier one"
        self.tail = message
        operations, self._tail_parts = self._append_message(message)
        return operations

    def restamp(self, ballot: int) -> tuple[Operation, ...]:
        """Store the tail under a later regime. Its octets do not change."""
        assert self.tail is not None
        assert self.tail.ballot < ballot
        self.tail = msgspec.structs.replace(self.tail, ballot=ballot)
        return self._append([stamp_record(self.tail)])

    def prepare_tail(self) -> None:
        """Have execution prepare the tail, if the tail is on disk. It may still be replaced."""
        tail = self.tail
        if tail is not None and tail.index == self.agreed + 1 <= self.durable and not tail.lacks_payloads:
            self.execution.prepare(AgreedEntry(tail.body, tail.hash, tail.payloads))

    def commit_tail(self, payloads: tuple[bytes, ...]) -> LogEntry:
        """Apply the tail, which is now agreed. The caller passes the payloads if the tail lacks them."""
        assert self.tail is not None
        message = self.tail if self.tail.payloads else msgspec.structs.replace(self.tail, payloads=payloads)
        assert not message.lacks_payloads, "a message was applied without its payloads"
        assert message.index == self.agreed + 1
        assert message.body.previous == self.agreed_hash
        self.tail = None
        self._advance(message, self._tail_parts)
        return message

    def append_agreed(self, message: LogEntry) -> tuple[Operation, ...]:
        """Append and apply a message that other nodes reported as agreed. A tail further on stays in place."""
        assert message.index == self.agreed + 1
        assert message.body.previous == self.agreed_hash
        operations, parts = self._append_message(message)
        if self.tail is not None and self.tail.index <= message.index:
            self.tail = None
        self._advance(message, parts)
        return operations

    def expected_next_hash(self) -> bytes | None:
        """The hash that the next message must have, if a later record of this log names it: the message after it, or a
        mark.
        """
        following = self._disconnected.get(self.agreed + 2)
        if following is not None:
            return following.first.previous_hash
        return self._mark[1] if self._mark[0] == self.agreed + 1 else None

    def apply_own_copies(self) -> list[LogEntry]:
        """Continue with this log's own messages behind a gap, now that the missing ones were fetched. Each must have
        the hash that a later record names.
        """
        found: list[LogEntry] = []
        while (
            group := self._disconnected.get(self.agreed + 1)
        ) is not None and group.first.chain_hash == self.expected_next_hash():
            assert group.first.previous_hash == self.agreed_hash
            message = self._read_back(group)
            if message.lacks_payloads:
                break  # an index-only serializer stored it; only other nodes have the payloads
            if self.tail is not None and self.tail.index == message.index:
                self.tail = None
            self._advance(message, group.parts, group)
            found.append(message)
        self._disconnected = {index: group for index, group in self._disconnected.items() if index > self.agreed}
        return found

    def mark(self, regime: int) -> tuple[Operation, ...]:
        """Append a record that states the index `agreed`."""
        return self._append([mark_record(self.agreed, self.agreed_hash, regime)])

    def rewrite(self, unproven: Iterable[OctetRange]) -> tuple[Operation, ...]:
        """Write these octets of the log again, at the same positions."""
        settings = self._settings
        return tuple(
            WriteAt(settings.folder + segment_name(settings.log, one.sequence), one.offset, one.data)
            for one in unproven
        )

    def synced(self, position: int, index: int) -> None:
        """Record that the log is on disk up to this position and this message."""
        self._writer.synced(position)
        self.durable = max(self.durable, index)
        while self._written and self._written[0].end <= position:
            self._show(self._written.popleft())

    def _show(self, written: _Written) -> None:
        """Verdicts are on disk: readers find them from now on."""
        for index, start, end, is_copy in written.spans:
            if is_copy:
                self.segment_index.set_position(index, start, end)
            else:
                self.segment_index.extend_position(index, end)
        self.shown = max(self.shown, written.shown)

    def _append_message(self, message: LogEntry) -> tuple[tuple[Operation, ...], int]:
        """Append the records of a message without its verdict. Return also the number of its parts."""
        with_payloads = not self.index_only
        records = message_records(message, with_payloads=with_payloads)
        if with_payloads:
            self.execution.cache_stored(message.body, message.payloads)
        return self._append(records, message.body.index), records[0].parts

    def _append(self, records: list[Record], index: int = 0) -> tuple[Operation, ...]:
        """Append the verdicts that wait, then these records."""
        start = self._writer.written
        pending, self._pending = self._pending, []
        operations = self._writer.append([*[record for one in pending for record in one.records], *records])
        self.segment_index.add_segment(self._writer.header)
        if pending or self._covered < self.agreed:
            start = self._note_written(pending, start)
        if index:
            self.segment_index.set_position(index, start, self._writer.written, records[0].timestamp_ns)
        # The hint need not be synced: its position only counts within this boot, while the page cache survives, and its
        # index may be a little too low.
        return (*operations, self._sync_hint(lazy=index % SYNC_HINTS_UNSYNCED_MAX != 0))

    def _note_written(self, pending: list[_Pending], start: int) -> int:
        """Remember where these verdicts were written, from `start` on. Return the position behind them."""
        spans: list[tuple[int, int, int, bool]] = []
        ends = iter(self._writer.ends)
        for one in pending:
            for _ in one.records:
                end = next(ends)
            self.segment_index.extend_segments(one.message, start, end)
            spans.append((one.message, start, end, one.is_copy))
            start = end
        self._covered = self.agreed
        self._written.append(_Written(start, self.agreed, spans))
        return start

    def _sync_hint(self, *, lazy: bool) -> WriteAt:
        hint = encode_sync_hint(SyncHint(self._settings.boot, self._writer.written, self.durable))
        return WriteAt(sync_hint_name(self._settings), 0, hint, lazy)

    def _advance(self, message: LogEntry, parts: int, stored: RecordGroup | None = None) -> None:
        """Apply an agreed message, and retain it in memory for nodes that are a little behind. `stored` is the message
        as recovery found it on disk.
        """
        self._apply(message, parts, stored)
        self._recent.append(message)
        self._recent_bytes += message.size_bytes
        # The last message always stays in memory, however large it is.
        while self._recent_bytes > self._settings.recent_bytes_max and len(self._recent) > 1:
            self._recent_bytes -= self._recent.popleft().size_bytes

    def _apply(self, message: LogEntry, parts: int, stored: RecordGroup | None = None) -> None:
        decision = self.execution.apply(AgreedEntry(message.body, message.hash, message.payloads))
        if parts > 1:
            verdict = verdict_record(message, parts, decision)
            if stored is None or not _is_stored(verdict, stored):
                self._pending.append(_Pending(message.index, self._records_to_add(message, verdict, stored)))
        self.agreed, self.agreed_hash = message.index, message.hash
        self.agreed_ns = message.body.timestamp_ns
        self.agreed_by = (message.body.regime, message.body.master)

    def _records_to_add(self, message: LogEntry, verdict: Record, stored: RecordGroup | None) -> list[Record]:
        """The records to append for a verdict that the disk lacks. A verdict must be written before the next message.
        If the next message is on disk already, the node writes a copy of the message and then its verdict.
        """
        if stored is None or stored.position >= self._last_stored:
            return [verdict]
        return [*message_records(message), verdict]

    # Start.

    @staticmethod
    def _find_verdict_before_first(recovered: Recovered, execution: Execution) -> bytes:
        """The hash of the verdict on the message before the first one.

        The verdict on the first message contains it. A log that begins right after the checkpoint does not have that
        message yet; there, the state contains the hash of the last verdict that the checkpoint covers.
        """
        if recovered.first == recovered.base.index + 1:
            return execution.verdict_hash
        group = recovered.groups.get(recovered.first)
        with suppress(Malformed):
            return b"" if group is None or group.verdict is None else previous_of(verdict_of(group.verdict))
        return b""

    def _replay(self, recovered: Recovered) -> None:
        """Apply the agreed messages that the checkpoint does not cover, and load the tail."""
        assert self.execution.applied_index == recovered.base.index, "execution and log start from different messages"
        first = recovered.groups.get(1)
        if first is not None and first.first.previous_hash != self._settings.genesis:
            raise StorageError(f"log {self._settings.log} belongs to another cluster: move it away")
        for index in sorted(recovered.groups):
            group = recovered.groups[index]
            self.segment_index.set_position(index, group.position, group.end, group.first.timestamp_ns)
            if index <= recovered.base.index:
                self._observe_stored(group)
            elif index <= recovered.agreed and index == self.agreed + 1:
                self._apply_recovered(group)
        if self.agreed == recovered.base.index and self.agreed in recovered.groups:
            self._cache_last_covered(recovered.groups[self.agreed])
        self.durable = recovered.agreed
        # A verdict that waits is written with the first append.
        self.shown = self._covered = self._pending[0].message - 1 if self._pending else self.agreed
        last = max(recovered.groups, default=0)
        if last > self.agreed:
            group = recovered.groups[last]
            self.tail, self._tail_parts = self._read_back(group), group.parts
        for index, group in recovered.groups.items():
            if self.agreed < index and last > self.agreed + 1:
                self._disconnected[index] = group
        for group in recovered.replaced:
            with suppress(Malformed):
                self._read_back(group)  # caches the payloads: a serializer may need them

    def _read_back(self, group: RecordGroup) -> LogEntry:
        """Decode a message that is not applied yet."""
        message = message_of(group)
        if message.index > self.agreed and not message.lacks_payloads:
            verdict = b"" if group.verdict is None else verdict_of(group.verdict)
            self.execution.cache_stored(message.body, message.payloads, verdict)
        return message

    def _cache_last_covered(self, group: RecordGroup) -> None:
        """Cache the payloads of the last agreed message, which the checkpoint covers. Index-only serializers may know
        that it is agreed and still lack its payloads; catch-up serves only the messages before it.
        """
        with suppress(Malformed):  # an unreadable message is repaired when a reader needs it
            message = message_of(group)
            if not message.lacks_payloads:
                self.execution.cache_stored(message.body, message.payloads)

    def _observe_stored(self, group: RecordGroup) -> None:
        """Report a message that the checkpoint covers: it is still in the log, so clients can read it."""
        if group.first.index >= self.segment_index.first:
            with suppress(Malformed):  # an unreadable message is repaired when a reader needs it
                self.execution.observe_stored(group.joined())

    def _apply_recovered(self, group: RecordGroup) -> None:
        message = self._read_back(group)
        if message.lacks_payloads:
            return  # other nodes must send the payloads of this message and of all later ones
        self._apply(message, group.parts, group)

    # Dropping segments.

    def drop(self, segments_max: int, limit: int) -> tuple[Operation, ...]:
        """Delete up to `segments_max` segments from the front whose messages are all at or below `limit`."""
        operations: list[Operation] = []
        first = self.segment_index.first
        for segment in self.segment_index.droppable(limit)[:segments_max]:
            operations += self._writer.release(segment.sequence)
            self.segment_index.drop(segment)
        if self.segment_index.first > first:
            self.hash_before_first = b""
        return tuple(operations)

    # Reading messages, and repairing them.

    def recent(self, index: int, bytes_max: int) -> list[LogEntry] | None:
        """Agreed messages from this index on that are still in memory; None if the first one is not."""
        if index > self.agreed:
            return []
        if not self._recent or index < self._recent[0].index:
            return None
        chosen: list[LogEntry] = []
        size = 0
        for number in range(index - self._recent[0].index, len(self._recent)):
            message = self._recent[number]
            size += message.size_bytes
            if chosen and (size > bytes_max or len(chosen) == self._settings.supply_messages_max):
                break
            chosen.append(message)
        return chosen

    def span(self, index: int, bytes_max: int) -> tuple[int, int] | None:
        """Start and end position of consecutive messages from this index on; None if the first one is not on disk."""
        through = min(self.shown, self.durable, index + self._settings.supply_messages_max - 1)
        return self.segment_index.span(index, through, bytes_max)

    def span_back(self, index: int, bytes_max: int, count_max: int) -> tuple[int, int] | None:
        """Start and end position of this message and consecutive ones before it; None if it is not on disk."""
        count_max = min(count_max, self._settings.supply_messages_max)
        return self.segment_index.span_back(index, min(self.shown, self.durable), bytes_max, count_max)

    def read_backward(self, records: Iterable[Record], index: int) -> list[tuple[LogEntry, bytes]]:
        """Decode agreed messages from these records, with their verdicts: the one with this index, then those before
        it. Stops at a message whose hash is not the one that its successor names, or whose verdict is missing.
        """
        groups = group_messages(records)
        found: list[tuple[LogEntry, bytes]] = []
        with suppress(Malformed):
            while index in groups and index <= self.agreed:
                group = groups[index]
                if found and group.first.chain_hash != found[-1][0].body.previous:
                    break
                found.append((message_of(group), verdict_of(group.all_records[-1]) if group.has_payloads else b""))
                index -= 1
        return found

    def rebuild_records(self, message: LogEntry, verdict: bytes, expected: bytes) -> list[Record]:
        """The records of an agreed message, rebuilt from the verdict that another node sent. Raises `Malformed` unless
        the verdict has the expected hash.
        """
        assert message.index <= self.agreed, "only agreed messages are written again"
        if self.index_only:
            return message_records(message, with_payloads=False)
        records = message_records(message)
        decision = self.execution.decision_of(message.body, message.payloads, verdict, expected)
        return [*records, verdict_record(message, records[0].parts, decision)]

    def append_repaired(
        self, message: LogEntry, verdict: bytes, expected: bytes
    ) -> tuple[tuple[Operation, ...], tuple[int, int]]:
        """Append a new copy of a damaged agreed message. Returns the operations and the copy's span. Readers use the
        copy after `relocate`.
        """
        operations, spans = self.append_copies([self.rebuild_records(message, verdict, expected)])
        return operations, spans[0]

    def append_copies(self, messages: Sequence[list[Record]]) -> tuple[tuple[Operation, ...], list[tuple[int, int]]]:
        """Append the records of agreed messages. Returns the operations and the span of each message."""
        operations: list[Operation] = []
        spans: list[tuple[int, int]] = []
        for records in messages:
            start = self._writer.written
            operations += self._writer.append(records)
            self.segment_index.add_segment(self._writer.header)
            spans.append((start, self._writer.written))
            self.segment_index.extend_segments(records[0].index, *spans[-1], records[0].timestamp_ns)
        return (*operations, self._sync_hint(lazy=False)), spans

    def backfill(self, messages: Sequence[list[Record]], spans: Sequence[tuple[int, int]]) -> None:
        """Make these messages the first ones of the log. They are on disk in these spans and directly precede the
        current first message.
        """
        assert messages[-1][0].index == self.segment_index.first - 1, (
            "messages are missing between the backfilled ones and this log"
        )
        self.segment_index.prepend(spans)
        self.hash_before_first = messages[0][0].previous_hash if self.segment_index.first > 1 else b""
        self.verdict_before_first = previous_of(verdict_of(messages[0][-1]))

    def relocate(self, index: int, start: int, end: int) -> None:
        """Read the message with this index from this span from now on."""
        self.segment_index.set_position(index, start, end)

    def read_forward(self, records: Iterable[Record], index: int) -> list[LogEntry]:
        """Decode agreed messages from these records, from this index on. A message counts only if its successor names
        its hash, or if it is the last one.
        """
        groups = group_messages(records)
        found: list[LogEntry] = []
        with suppress(Malformed):
            while index in groups and index <= self.agreed:
                if found and groups[index].first.previous_hash != found[-1].hash:
                    return found[:-1]
                found.append(message_of(groups[index]))
                index += 1
        return found


def _is_stored(verdict: Record, group: RecordGroup) -> bool:
    """True if the disk contains this verdict for the message."""
    stored = group.verdict
    return stored is not None and (bytes(stored.body), stored.first_offset, stored.count) == (
        verdict.body,
        verdict.first_offset,
        verdict.count,
    )


def records_between(files: Iterable[Bytes], start: int, end: int) -> tuple[Record, ...]:
    """The records between two positions, given segment files in order. Hosts use it to answer `ReadLog`."""
    records: list[Record] = []
    for data in files:
        header = read_headers(data).header
        if header is None or header.end <= start or header.base >= end:
            continue
        wanted = octets(data)[: end - header.base]  # do not scan what follows: it may be long
        found = scan(wanted, header, max(start, header.records_start), search=False)
        records += (record for head, record in found.records if head.position < end)
    return tuple(records)
