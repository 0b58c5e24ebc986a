"""The running log: the agreed prefix, the one message behind it, and the operations that keep them on disk.

Decides what is written and in which form; refuses to decide whether a message is agreed. Everything it does comes
back as operations for one `Persist`.

    agreed      execution has settled everything up to here
    tail        the message held behind it, not known to be agreed
    floor       index and ballot of the furthest thing ever held, if damage has taken it; votes are measured against it

Invariants: `agreed` never falls and its hash never changes; a stored message continues the chain of its predecessor;
the tail's ballot never falls while its index stays.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from chaplain.core import Operation, WriteAt
from chaplain.errors import Malformed, StorageError
from chaplain.journal.messages.cluster import DataEntry
from chaplain.journal.messages.consensus import KNOWN_AGREED
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.model.log_entry import AgreedEntry, Execution, LogEntry, Preview
from chaplain.journal.model.verdict_chain import previous_of
from chaplain.journal.settings import ConsensusSettings
from chaplain.journal.storage.records import (
    Group,
    Grouper,
    SyncHint,
    encode_sync_hint,
    is_message,
    mark_record,
    message_of,
    message_records,
    stamp_record,
    verdict_of,
)
from chaplain.journal.storage.recovery import Recovered, Stretch
from chaplain.journal.storage.segment_index import SegmentIndex
from chaplain.segment.header import read_headers
from chaplain.segment.layout import Bytes, octets, segment_name
from chaplain.segment.record import Record
from chaplain.segment.scan import scan
from chaplain.segment.settings import LogSettings
from chaplain.segment.write import SegmentWriter

LOG_KIND = 5
_BARE = Preview(b"", ())
"""What an index-only serializer writes beside the order itself."""
SYNC_HINTS_UNSYNCED_MAX = 32
"""The jot is synced with every mark, and with every so many messages: a second sync each time would cost a third."""


def sync_hint_name(settings: ConsensusSettings) -> str:
    return f"{settings.folder}{settings.log}.jot"


def hard_state_name(settings: ConsensusSettings) -> str:
    return f"{settings.folder}{settings.log}.standing"


class ReplicatedLog:
    def __init__(
        self, settings: ConsensusSettings, chance: random.Random, recovered: Recovered, execution: Execution
    ) -> None:
        layout = LogSettings(settings.log, LOG_KIND, settings.folder, settings.segment_bytes, free_max=0)
        # A doubtful end is cut by the first append, which comes only after the doubt itself is on disk.
        self._writer = SegmentWriter(layout, chance, recovered.survey, cut_doubt=True)
        self._settings = settings
        self.execution = execution
        self.segment_index = SegmentIndex(recovered.first, recovered.in_order_from)
        self.hash_before_first = recovered.hash_before_first
        """The hash of the message before the first; empty if there is none, or we dropped it ourselves."""
        self.verdict_before_first = self._find_verdict_before_first(recovered, execution)
        """The hash of the verdict on the message before the first; empty where verdicts are not stored."""
        self.backfilled: list[list[Record]] = []
        """Messages that were put back before the first, until somebody has looked at them."""
        for ending in recovered.survey.endings:
            if ending.header.base <= self._writer.written:  # what lies behind a cut is begun anew
                self.segment_index.add_segment(ending.header)
        self._recent: deque[LogEntry] = deque()
        self._recent_bytes = 0
        self.agreed = recovered.base.index
        self.agreed_hash = recovered.base.hash
        self.agreed_ns = recovered.base.timestamp_ns
        """Timestamp of the last agreed message: the next one is later."""
        self.agreed_by = (0, 0)
        """Regime and master that first proposed the last agreed message, if it is in this log."""
        self.tail: LogEntry | None = None
        self.floor = recovered.floor
        self._disconnected: dict[int, Group] = {}
        """Messages of ours behind damage, waiting for what is missing before them."""
        self._mark = recovered.mark
        self.durable = 0
        """Everything held up to this index is on disk."""
        self._replay(recovered)

    @property
    def cluster_config(self) -> ClusterConfig:
        """The cluster's nodes, as the agreed prefix has them."""
        return self.execution.cluster_config

    @property
    def copies(self) -> int:
        """How many nodes hold a payload before it is ordered; 0 unless serializers are index-only."""
        return self.execution.copies

    @property
    def index_only(self) -> bool:
        """Whether this node keeps orders alone. It executes them, too, with payloads that it forgets."""
        return self.copies > 0 and not self.cluster_config.holds_data(self._settings.node)

    def cached_payload(self, entry: DataEntry) -> bytes | None:
        """A payload of something that was held behind the agreed prefix, though another took its place since."""
        return self.execution.cached_payload(entry.reference, entry.digest)

    # How far we are.

    def last(self) -> tuple[int, int]:
        """Index and ballot that votes are measured by."""
        held, tail = (self.agreed, KNOWN_AGREED), self.tail
        if tail is not None and (tail.body.index, tail.ballot) > held:
            held = (tail.body.index, tail.ballot)
        return held if held > self.floor else self.floor

    @property
    def has_no_gap(self) -> bool:
        """Nothing is missing between the agreed prefix and the furthest thing we ever held."""
        reach = self.tail.body.index if self.tail is not None else self.agreed
        return self.floor[0] <= reach <= self.agreed + 1

    @property
    def written(self) -> int:
        return self._writer.written

    @property
    def sequence(self) -> int:
        """Of the segment that is written to."""
        return self._writer.header.sequence

    # Taking messages.

    def store(self, message: LogEntry) -> tuple[Operation, ...]:
        """Hold a message behind the agreed prefix, in place of any other there."""
        assert message.index == self.agreed + 1, "a message was stored before its predecessor was agreed"
        assert message.body.previous == self.agreed_hash, "a stored message does not continue the chain"
        old = self.tail
        if old is not None and old.index == message.index:
            assert old.ballot < message.ballot, "a held message was replaced under the same regime or an earlier one"
        self.tail = message
        return self._append_message(message)

    def restamp(self, ballot: int) -> tuple[Operation, ...]:
        """Hold the tail, the same bytes, under a later regime."""
        assert self.tail is not None
        assert self.tail.ballot < ballot
        self.tail = msgspec.structs.replace(self.tail, ballot=ballot)
        return self._append([stamp_record(self.tail)])

    def commit_tail(self, payloads: tuple[bytes, ...]) -> LogEntry:
        """The tail is agreed, and here is what it refers to."""
        assert self.tail is not None
        message = self.tail if self.tail.payloads else msgspec.structs.replace(self.tail, payloads=payloads)
        assert not message.lacks_payloads, "a message was settled without its payloads"
        assert message.index == self.agreed + 1
        assert message.body.previous == self.agreed_hash
        self.tail = None
        self._advance(message)
        return message

    def append_agreed(self, message: LogEntry) -> tuple[Operation, ...]:
        """Take a message that others say is agreed. What we hold further on stays held."""
        assert message.index == self.agreed + 1
        assert message.body.previous == self.agreed_hash
        operations = self._append_message(message)
        if self.tail is not None and self.tail.index <= message.index:
            self.tail = None
        self._advance(message)
        return operations

    def expected_next_hash(self) -> bytes | None:
        """The hash that something of ours further on gives to the next message, if it does."""
        following = self._disconnected.get(self.agreed + 2)
        if following is not None:
            return following.first.previous_hash
        return self._mark[1] if self._mark[0] == self.agreed + 1 else None

    def apply_own_copies(self) -> list[LogEntry]:
        """What was missing has come: go on with our own copies behind it, each named by the next."""
        found: list[LogEntry] = []
        while (
            group := self._disconnected.get(self.agreed + 1)
        ) is not None and group.first.chain_hash == self.expected_next_hash():
            assert group.first.previous_hash == self.agreed_hash
            message = message_of(group, self.execution.payloads)
            if message.lacks_payloads:
                break  # our own order, and payloads that only others have
            if self.tail is not None and self.tail.index == message.index:
                self.tail = None
            self._advance(message)
            found.append(message)
        self._disconnected = {index: group for index, group in self._disconnected.items() if index > self.agreed}
        return found

    def mark(self, regime: int) -> tuple[Operation, ...]:
        return self._append([mark_record(self.agreed, self.agreed_hash, regime)])

    def rewrite(self, unproven: Iterable[Stretch]) -> tuple[Operation, ...]:
        """Write octets of the log again, the same ones to the same places."""
        settings = self._settings
        return tuple(
            WriteAt(settings.folder + segment_name(settings.log, one.sequence), one.offset, one.data)
            for one in unproven
        )

    def synced(self, position: int, index: int) -> None:
        self._writer.synced(position)
        self.durable = max(self.durable, index)

    def _append_message(self, message: LogEntry) -> tuple[Operation, ...]:
        execution = self.execution
        preview = _BARE if self.index_only else execution.preview(message.body, message.payloads, message.hash)
        return self._append(message_records(message, preview), message.body.index)

    def _append(self, records: list[Record], index: int = 0) -> tuple[Operation, ...]:
        start = self._writer.written
        operations = self._writer.append(records)
        self.segment_index.add_segment(self._writer.header)
        if index:
            self.segment_index.set_position(index, start, self._writer.written, records[0].timestamp_ns)
        # Its position counts on this boot alone, so it need not be synced; its index may lag a little behind.
        return (*operations, self._sync_hint(lazy=index % SYNC_HINTS_UNSYNCED_MAX != 0))

    def _sync_hint(self, *, lazy: bool) -> WriteAt:
        hint = encode_sync_hint(SyncHint(self._settings.boot, self._writer.written, self.durable))
        return WriteAt(sync_hint_name(self._settings), 0, hint, lazy)

    def _advance(self, message: LogEntry) -> None:
        self.execution.apply(AgreedEntry(message.body, message.hash, message.payloads))
        self.agreed, self.agreed_hash = message.index, message.hash
        self.agreed_ns = message.body.timestamp_ns
        self.agreed_by = (message.body.regime, message.body.master)
        self._recent.append(message)
        self._recent_bytes += message.size_bytes
        while self._recent_bytes > self._settings.recent_bytes_max and len(self._recent) > 1:
            self._recent_bytes -= self._recent.popleft().size_bytes

    # Start.

    @staticmethod
    def _find_verdict_before_first(recovered: Recovered, execution: Execution) -> bytes:
        """The verdict on the first message contains the hash. A log that begins behind the checkpoint has no such
        message yet: there, the state contains the hash of the last verdict that the checkpoint covers.
        """
        if recovered.first == recovered.base.index + 1:
            return execution.verdict_hash
        group = recovered.groups.get(recovered.first)
        with suppress(Malformed):
            return b"" if group is None else previous_of(verdict_of(group.first))
        return b""

    def _replay(self, recovered: Recovered) -> None:
        """Give execution what it has not seen, and take the tail into hand."""
        assert self.execution.applied_index == recovered.base.index, "execution goes on from another place than the log"
        first = recovered.groups.get(1)
        if first is not None and first.first.previous_hash != self._settings.genesis:
            raise StorageError(f"log {self._settings.log} belongs to another cluster: move it away")
        for index in sorted(recovered.groups):
            group = recovered.groups[index]
            self.segment_index.set_position(index, group.position, group.end, group.first.timestamp_ns)
            if index <= recovered.base.index:
                self._observe_stored(group)
            elif index <= recovered.agreed and index == self.agreed + 1:
                self._apply_recovered(message_of(group, self.execution.payloads))
        self.durable = recovered.agreed
        last = max(recovered.groups, default=0)
        if last > self.agreed:
            group = recovered.groups[last]
            self.tail = message_of(group, self.execution.payloads)
        for index, group in recovered.groups.items():
            if self.agreed < index and last > self.agreed + 1:
                self._disconnected[index] = group
        for group in recovered.replaced:
            with suppress(Malformed):
                message_of(group, self.execution.payloads)  # execution keeps them for whoever has the order

    def _observe_stored(self, group: Group) -> None:
        """What a checkpoint covers and is here still can be read."""
        if group.first.index >= self.segment_index.first:
            with suppress(Malformed):  # of one that cannot be read nothing is known: it is mended when it is wanted
                self.execution.observe_stored(group.records)

    def _apply_recovered(self, message: LogEntry) -> None:
        if message.lacks_payloads:
            return  # from here on others have to give the payloads once more
        self.execution.apply(AgreedEntry(message.body, message.hash, message.payloads))
        self.agreed, self.agreed_hash = message.index, message.hash
        self.agreed_ns = message.body.timestamp_ns
        self.agreed_by = (message.body.regime, message.body.master)

    # Doing without.

    def drop(self, segments_max: int, limit: int) -> tuple[Operation, ...]:
        """Remove segments from the front that hold nothing behind this message."""
        operations: list[Operation] = []
        first = self.segment_index.first
        for segment in self.segment_index.droppable(limit)[:segments_max]:
            operations += self._writer.release(segment.sequence)
            self.segment_index.drop(segment)
        if self.segment_index.first > first:
            self.hash_before_first = b""
        return tuple(operations)

    # Giving messages to others.

    def recent(self, index: int, bytes_max: int) -> list[LogEntry] | None:
        """Agreed messages from this index on that are still in memory; None if the first is not."""
        if index > self.agreed:
            return []
        if not self._recent or index < self._recent[0].index:
            return None
        chosen: list[LogEntry] = []
        size = 0
        for place in range(index - self._recent[0].index, len(self._recent)):
            message = self._recent[place]
            size += message.size_bytes
            if chosen and (size > bytes_max or len(chosen) == self._settings.supply_messages_max):
                break
            chosen.append(message)
        return chosen

    def span(self, index: int, bytes_max: int) -> tuple[int, int] | None:
        """Positions that hold messages from this index on, one after the other; None if the first is not on disk."""
        through = min(self.agreed, self.durable, index + self._settings.supply_messages_max - 1)
        return self.segment_index.span(index, through, bytes_max)

    def span_back(self, index: int, bytes_max: int, count_max: int) -> tuple[int, int] | None:
        """Positions that hold this message and those before it, one after the other; None if it is not on disk."""
        count_max = min(count_max, self._settings.supply_messages_max)
        return self.segment_index.span_back(index, min(self.agreed, self.durable), bytes_max, count_max)

    def read_backward(self, records: Iterable[Record], index: int) -> list[tuple[LogEntry, bytes]]:
        """The agreed message of this index in these records, then those before it, each named by the one behind it;
        and the verdicts beside them.
        """
        groups = _groups(records)
        found: list[tuple[LogEntry, bytes]] = []
        with suppress(Malformed):
            while index in groups and index <= self.agreed:
                group = groups[index]
                if found and group.first.chain_hash != found[-1][0].body.previous:
                    break
                found.append((message_of(group, self.execution.payloads), verdict_of(group.first)))
                index -= 1
        return found

    def rebuild_records(self, message: LogEntry, verdict: bytes, expected: bytes) -> list[Record]:
        """The records of an agreed message, given the verdict that another node stored beside it. Raises `Malformed`
        unless the verdict has the expected hash.
        """
        assert message.index <= self.agreed, "only what is agreed is written again"
        if self.index_only:
            return message_records(message, _BARE)
        return message_records(
            message, self.execution.rebuild_records(message.body, message.payloads, verdict, expected)
        )

    def append_repaired(
        self, message: LogEntry, verdict: bytes, expected: bytes
    ) -> tuple[tuple[Operation, ...], tuple[int, int]]:
        """Write an agreed message once more, and where; nothing is read from there before `move`."""
        operations, spans = self.append_copies([self.rebuild_records(message, verdict, expected)])
        return operations, spans[0]

    def append_copies(self, messages: Sequence[list[Record]]) -> tuple[tuple[Operation, ...], list[tuple[int, int]]]:
        """Write the records of agreed messages, and where each is."""
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
        """The messages right before our first are on disk, there: the log begins with them."""
        assert messages[-1][0].index == self.segment_index.first - 1, (
            "something is missing between what is put back and ours"
        )
        self.segment_index.prepend(spans)
        self.hash_before_first = messages[0][0].previous_hash if self.segment_index.first > 1 else b""
        self.verdict_before_first = previous_of(verdict_of(messages[0][0]))
        self.backfilled += messages

    def relocate(self, index: int, start: int, end: int) -> None:
        """The message of this index is to be read from there."""
        self.segment_index.set_position(index, start, end)

    def read_forward(self, records: Iterable[Record], index: int) -> list[LogEntry]:
        """The agreed messages in these records from this index on, in order. Each must be named by the one behind it,
        or be the last agreed.
        """
        groups = _groups(records)
        found: list[LogEntry] = []
        with suppress(Malformed):
            while index in groups and index <= self.agreed:
                if found and groups[index].first.previous_hash != found[-1].hash:
                    return found[:-1]
                found.append(message_of(groups[index], self.execution.payloads))
                index += 1
        return found


def _groups(records: Iterable[Record]) -> dict[int, Group]:
    """The messages in these records. Of two copies the later holds, as at recovery."""
    grouper, groups = Grouper(), {}
    for record in records:
        if is_message(record) and (group := grouper.feed(0, 0, record)) is not None:
            groups[record.index] = group
    return groups


def records_between(files: Iterable[Bytes], start: int, end: int) -> tuple[Record, ...]:
    """What stands between two positions, given segment files in order: how a host answers `ReadLog`."""
    records: list[Record] = []
    for data in files:
        header = read_headers(data).header
        if header is None or header.end <= start or header.base >= end:
            continue
        wanted = octets(data)[: end - header.base]  # what follows is none of our business, and long
        found = scan(wanted, header, max(start, header.records_start), search=False)
        records += (record for head, record in found.records if head.position < end)
    return tuple(records)
