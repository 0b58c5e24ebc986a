"""Records of one cluster message in the log, in the format of `segment/`.

    part 0        META     body size 4 | body | skeleton (no skeleton where serializers are index-only)
    parts 1 …     BATCH    the packs as `storage.record_layout` arranges them, without offsets
    last part     VERDICT  what execution decided, and what was applied of each batch (none where index-only)
    stamp         kind 16: the message with this index and hash is now stored under this regime
    mark          MARK: everything up to this index is agreed
    sync hint     a separate file, rewritten with every append: how far the log was written, and in which boot

A node writes all parts but the last when it stores a message, before the message is agreed. The verdict exists only
after the message was agreed and executed. It is written with the next append, before the other records of that append:
the next message, or a mark. A record that proves that a message is agreed therefore never precedes the message's
verdict. The verdict needs no sync of its own, because it is a function of the agreed prefix.

Every record of a message contains its index and hashes. In part 0, `regime` is the ballot under which the message was
stored. In all other parts it is the regime of the body: readers get the same records on every node. Byte tables:
docs/protocol/journal-order.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.cluster import DIGEST_BYTES, Body, chain_hash, decode_body
from chaplain.journal.model.log_entry import Decision, LogEntry
from chaplain.journal.storage.record_layout import FIRST_BATCH_PART, decode_payloads, encode_payloads
from chaplain.segment.layout import NO_OFFSET, checksum
from chaplain.segment.record import Kind, Record
from chaplain.segment.verdicts import ONLY_BATCH_PARTS, decode_verdict, encode_verdict, join_parts

STAMP_KIND = 16
BOOT_BYTES = 16
_SIZE = struct.Struct("<I")
_HINT = struct.Struct("<8s16sQQ")
_HINT_MAGIC = b"CHAPLJOT"


def message_records(message: LogEntry, *, with_payloads: bool = True) -> list[Record]:
    """The records of a message that is stored, all but its verdict. Without payloads it has one record, and never gets
    a verdict.
    """
    pieces = [_SIZE.pack(len(message.raw)), message.raw]
    batches: list[Record] = []
    if with_payloads:
        skeleton, batches = encode_payloads(message.entries, message.payloads)
        pieces.append(skeleton)
    head = Record(
        Kind.META,
        b"".join(pieces),
        index=message.index,
        timestamp_ns=message.body.timestamp_ns,
        regime=message.ballot,
        parts=len(batches) + 2 if with_payloads else 1,
        previous_hash=message.body.previous,
        chain_hash=message.hash,
    )
    return [head, *[_as_part(batch, message, part, head.parts) for part, batch in enumerate(batches, FIRST_BATCH_PART)]]


def verdict_record(message: LogEntry, parts: int, decision: Decision) -> Record:
    """The last part of a message that has this many parts."""
    first_offset, count = NO_OFFSET, 0
    if parts == ONLY_BATCH_PARTS and len(decision.batches) == 1 and not decision.batches[0].ranges:
        first_offset, count = decision.batches[0].first_offset, decision.batches[0].count
    body = message.body
    return Record(
        Kind.VERDICT,
        encode_verdict(decision.batches, decision.verdict),
        index=body.index,
        first_offset=first_offset,
        timestamp_ns=body.timestamp_ns,
        count=count,
        regime=body.regime,
        part=parts - 1,
        parts=parts,
        previous_hash=body.previous,
        chain_hash=message.hash,
    )


def _as_part(record: Record, message: LogEntry, part: int, parts: int) -> Record:
    return msgspec.structs.replace(
        record,
        index=message.index,
        timestamp_ns=message.body.timestamp_ns,
        regime=message.body.regime,
        part=part,
        parts=parts,
        previous_hash=message.body.previous,
        chain_hash=message.hash,
    )


def stamp_record(message: LogEntry) -> Record:
    return Record(STAMP_KIND, message.hash, index=message.index, regime=message.ballot)


def mark_record(index: int, digest: bytes, regime: int) -> Record:
    return Record(Kind.MARK, index=index, regime=regime, chain_hash=digest)


def body_of(record: Record) -> tuple[Body, bytes]:
    """The body in a message's first record, decoded and raw. Raises `Malformed` if it does not match the chain hash in
    the record's head.
    """
    data = bytes(record.body)
    if len(data) < _SIZE.size or len(data) < _SIZE.size + _SIZE.unpack_from(data)[0]:
        raise Malformed("log: the first record of a message is too short")
    raw = data[_SIZE.size : _SIZE.size + _SIZE.unpack_from(data)[0]]
    body = decode_body(raw)
    if body.index != record.index or chain_hash(body.previous, raw) != record.chain_hash:
        raise Malformed(f"log: message {record.index} is not what its head says")
    return body, raw


def skeleton_of(record: Record) -> bytes:
    """The octets after the body in a message's first record; empty if it was stored without payloads."""
    data = bytes(record.body)
    return data[_SIZE.size + _SIZE.unpack_from(data)[0] :]


def verdict_of(record: Record) -> bytes:
    """The verdict in a VERDICT record. Raises `Malformed` if the record is another one."""
    if record.kind != Kind.VERDICT:
        raise Malformed(f"log: message {record.index} has no verdict")
    return decode_verdict(record.body)[1]


class RecordGroup(Frozen, frozen=True):
    """The records of one message as found on disk."""

    position: int
    end: int
    records: tuple[Record, ...]
    """All parts but the verdict."""
    ballot: int
    verdict: Record | None = None
    """The last part, if it was found behind the others."""

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def parts(self) -> int:
        return self.records[0].parts

    @property
    def has_payloads(self) -> bool:
        """False if an index-only serializer stored the message: without payloads, and without a verdict."""
        return self.parts > 1

    @property
    def is_whole(self) -> bool:
        """True if readers can show the message: it has its verdict, or never gets one."""
        return self.verdict is not None or not self.has_payloads

    @property
    def all_records(self) -> list[Record]:
        """All parts that were found, as they are stored."""
        return [*self.records] if self.verdict is None else [*self.records, self.verdict]

    def joined(self) -> list[Record]:
        """The records as readers see them, with the offsets of the verdict."""
        return join_parts(self.all_records)


def message_of(group: RecordGroup) -> LogEntry:
    """Decode the message. A message that an index-only serializer stored has no payloads."""
    body, raw = body_of(group.first)
    payloads = decode_payloads(skeleton_of(group.first), group.records[1:]) if group.has_payloads else ()
    if group.has_payloads and len(payloads) != len(body.data_entries):
        raise Malformed("records: not as many ingest messages as the body refers to")
    return LogEntry(body, raw, group.first.chain_hash, group.ballot, payloads)


class Grouper:
    """Collects the records of each message. A message counts only if all its parts before the verdict follow one
    another. The verdict may follow later, after other records.
    """

    def __init__(self) -> None:
        self._position = 0
        self._open: list[Record] = []

    def feed(self, position: int, end: int, record: Record) -> RecordGroup | None:
        """Add a record other than a verdict. Returns the message if this was the last part before its verdict."""
        if record.part == 0:
            self._position, self._open = position, []
        elif not self._continues(record):
            self._open = []
            return None
        self._open.append(record)
        if len(self._open) < max(1, record.parts - 1):
            return None
        records, self._open = tuple(self._open), []
        return RecordGroup(self._position, end, records, records[0].regime)

    def _continues(self, record: Record) -> bool:
        if not self._open or record.part != len(self._open):
            return False
        first = self._open[0]
        same = (first.index, first.parts, first.chain_hash)
        return same == (record.index, record.parts, record.chain_hash)


def with_verdict(group: RecordGroup | None, record: Record, end: int) -> RecordGroup | None:
    """The message with this VERDICT record; None if the record is not the last part of it."""
    if group is None or (record.part, record.parts, record.chain_hash) != (
        group.parts - 1,
        group.parts,
        group.first.chain_hash,
    ):
        return None
    return msgspec.structs.replace(group, verdict=record, end=end)


def is_message(record: Record) -> bool:
    """True for the parts of a message that are stored before it is agreed."""
    return record.kind in (Kind.META, Kind.BATCH) and len(record.chain_hash) == DIGEST_BYTES and record.index > 0


def group_messages(records: Iterable[Record]) -> dict[int, RecordGroup]:
    """The messages in these records, by index, each with its verdict if that is among them. Of two copies of a message
    the later one counts.
    """
    grouper = Grouper()
    groups: dict[int, RecordGroup] = {}
    for record in records:
        if record.kind == Kind.VERDICT:
            group = with_verdict(groups.get(record.index), record, 0)
            if group is not None:
                groups[record.index] = group
        elif is_message(record) and (group := grouper.feed(0, 0, record)) is not None:
            groups[record.index] = group
    return groups


class SyncHint(Frozen, frozen=True):
    """The position up to which the log was written. Every append rewrites the hint."""

    boot: bytes
    position: int
    """In this boot, the operating system has received all octets of the log before this position."""
    index: int
    """Messages up to this index were known to be on disk."""


def encode_sync_hint(hint: SyncHint) -> bytes:
    assert len(hint.boot) == 16, "another length would never compare as the same boot"
    fields = _HINT.pack(_HINT_MAGIC, hint.boot, hint.position, hint.index)
    return fields + _SIZE.pack(checksum(fields))


def decode_sync_hint(data: bytes) -> SyncHint:
    if len(data) != _HINT.size + _SIZE.size or data[_HINT.size :] != _SIZE.pack(checksum(data[: _HINT.size])):
        raise Malformed("jot: checksum does not match")
    magic, boot, position, index = _HINT.unpack_from(data)
    if magic != _HINT_MAGIC:
        raise Malformed("jot: not a jot")
    return SyncHint(boot, position, index)
