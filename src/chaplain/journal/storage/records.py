"""Records of one cluster message in the log, in the format of `segment/`.

    part 0        META   body size 4 | body | verdict (no verdict and no further parts where serializers are index-only)
    parts 1 …     the payloads as `storage.record_layout` arranges them (a skeleton, and one BATCH per stream)
    stamp         kind 16: the message with this index and hash is now stored under this regime
    mark          MARK: everything up to this index is agreed
    sync hint     a separate file, rewritten with every append: how far the log was written, and in which boot

Every record of a message contains its index and hashes. In part 0, `regime` is the ballot under which the message was
stored. In all other parts it is the regime of the body: readers get the same records on every node. Byte tables:
docs/protocol/journal-order.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.cluster import DIGEST_BYTES, Body, chain_hash, decode_body
from chaplain.journal.model.log_entry import LogEntry, Preview
from chaplain.segment.layout import checksum
from chaplain.segment.record import Kind, Record

STAMP_KIND = 16
BOOT_BYTES = 16
_SIZE = struct.Struct("<I")
_HINT = struct.Struct("<8s16sQQ")
_HINT_MAGIC = b"CHAPLJOT"


def message_records(message: LogEntry, preview: Preview) -> list[Record]:
    first = Record(Kind.META, b"".join((_SIZE.pack(len(message.raw)), message.raw, preview.verdict)))
    parts = [first, *preview.parts]
    return [
        msgspec.structs.replace(
            record,
            index=message.index,
            timestamp_ns=message.body.timestamp_ns,
            regime=message.body.regime if part else message.ballot,
            part=part,
            parts=len(parts),
            previous_hash=message.body.previous,
            chain_hash=message.hash,
        )
        for part, record in enumerate(parts)
    ]


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


def verdict_of(record: Record) -> bytes:
    """The octets after the body in a message's first record."""
    data = bytes(record.body)
    return data[_SIZE.size + _SIZE.unpack_from(data)[0] :]


class Group(Frozen, frozen=True):
    """All records of one message as found on disk."""

    position: int
    end: int
    records: tuple[Record, ...]
    ballot: int

    @property
    def first(self) -> Record:
        return self.records[0]


def message_of(group: Group, payloads: Callable[[Body, Sequence[Record]], tuple[bytes, ...]]) -> LogEntry:
    """Decode the message. A message that an index-only serializer stored has no payloads."""
    body, raw = body_of(group.first)
    found = payloads(body, group.records[1:]) if len(group.records) > 1 or not body.data_entries else ()
    return LogEntry(body, raw, group.first.chain_hash, group.ballot, found)


class Grouper:
    """Collects the records of each message. A message counts only if all its parts follow one another."""

    def __init__(self) -> None:
        self._position = 0
        self._open: list[Record] = []

    def feed(self, position: int, end: int, record: Record) -> Group | None:
        """Add a record. Returns the complete message if this was its last part."""
        if record.part == 0:
            self._position, self._open = position, []
        elif not self._continues(record):
            self._open = []
            return None
        self._open.append(record)
        if len(self._open) < record.parts:
            return None
        records, self._open = tuple(self._open), []
        return Group(self._position, end, records, records[0].regime)

    def _continues(self, record: Record) -> bool:
        if not self._open or record.part != len(self._open):
            return False
        first = self._open[0]
        same = (first.index, first.parts, first.chain_hash)
        return same == (record.index, record.parts, record.chain_hash)


def is_message(record: Record) -> bool:
    return record.kind in (Kind.META, Kind.BATCH) and len(record.chain_hash) == DIGEST_BYTES and record.index > 0


def group_messages(records: Iterable[Record]) -> dict[int, Group]:
    """The complete messages in these records, by index. Of two copies of a message the later one counts."""
    grouper, groups = Grouper(), {}
    for record in records:
        if is_message(record) and (group := grouper.feed(0, 0, record)) is not None:
            groups[record.index] = group
    return groups


class SyncHint(Frozen, frozen=True):
    """How far the log was written. Every append rewrites it."""

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
