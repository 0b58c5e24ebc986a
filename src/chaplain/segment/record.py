"""One record: a head that describes it, and a body.

It defines what is a valid record at a given position of a given segment. It does not know what bodies mean. Head and
body have separate checksums, so that a damaged body does not hide the next record.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

from google_crc32c import extend

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.segment.layout import (
    HASH_BYTES,
    NO_HASH,
    NO_OFFSET,
    PADDINGS,
    TAG_BYTES,
    Bytes,
    checksum,
    checksum_seed,
    octets,
    padded,
)


class Kind(IntEnum):
    """Kinds that this format defines. All other numbers belong to a layer; a reader that does not know one skips it."""

    BATCH = 1
    MARK = 2
    META = 3
    VERDICT = 4
    """The last part of a message whose batches got their offsets after they were written; see `verdicts`."""
    ROLL = 0xFFFE
    END = 0xFFFF


class Flag(IntFlag):
    SETTLED = 1
    """Visible without agreement: for logs that are not ordered by consensus."""


_FIXED = struct.Struct("<8sIIIHHQQqIIHHBBHIIQ32s32s")
HEAD_BYTES = _FIXED.size
assert HEAD_BYTES == 144
_COVERED_FROM = 12
_COVERED = struct.Struct("<IIHHQQqIIHHBBHIIQ32s32s")
"""The same without tag and checksum: what the checksum covers."""
assert _COVERED.size == HEAD_BYTES - _COVERED_FROM
_STREAM_SIZE_AT = 60
STREAM_BYTES_MAX = 0xFF
ROLL_BYTES = HEAD_BYTES + 16
END_BYTES = HEAD_BYTES


class Record(Frozen, frozen=True):
    """A record as a layer writes and reads it. After a scan, the body is a memoryview."""

    kind: int
    body: bytes | memoryview = b""
    index: int = 0
    first_offset: int = NO_OFFSET
    timestamp_ns: int = 0
    count: int = 0
    regime: int = 0
    stream: str = ""
    part: int = 0
    parts: int = 1
    flags: int = 0
    origin_node: int = 0
    origin_journal: int = 0
    origin_index: int = 0
    previous_hash: bytes = NO_HASH
    chain_hash: bytes = NO_HASH


class Head(Frozen, frozen=True):
    """A valid head: the record without its body, and the position of the body."""

    record: Record
    position: int
    proven: int
    """Everything before this position was on disk when the record was written."""
    body_at: int
    """Octets from the start of the record to its body."""
    body_bytes: int
    body_crc: int
    seed: int

    @property
    def end(self) -> int:
        return self.position + self.body_at + padded(self.body_bytes)


def size_of(record: Record) -> int:
    """The number of octets that the record takes in any segment."""
    stream_bytes = len(record.stream.encode()) if record.stream else 0
    return HEAD_BYTES + (stream_bytes + 7 & -8) + (len(record.body) + 7 & -8)


def encode(record: Record, identity: bytes, position: int, proven: int) -> bytes:
    """The octets of the record at this position of this segment. They are valid nowhere else."""
    return b"".join(pieces_of(record, identity, position, proven))


def pieces_of(
    record: Record, identity: bytes, position: int, proven: int, identity_crc: int | None = None
) -> tuple[bytes, ...]:
    """The same in pieces, for a caller that joins many records: a large body is copied once less.

    A caller that writes many records to a segment passes the checksum of its identity. This is the hot path of all
    writes of all layers, so it calls the CRC function directly.
    """
    stream = record.stream.encode() if record.stream else b""
    stream_bytes = len(stream)
    if (
        stream_bytes > STREAM_BYTES_MAX
        or not 0 <= record.part < record.parts
        or not len(record.previous_hash) == len(record.chain_hash) == HASH_BYTES
    ):
        raise _error_of(record, stream)
    body = bytes(record.body)
    body_bytes = len(body)
    body_padding = PADDINGS[body_bytes & 7]
    seed: int = extend(checksum(identity) if identity_crc is None else identity_crc, position.to_bytes(8, "little"))
    body_crc = extend(seed, body) if body else seed
    covered = _COVERED.pack(
        extend(body_crc, body_padding) if body_padding else body_crc,
        body_bytes,
        record.kind,
        record.flags,
        record.index,
        record.first_offset,
        record.timestamp_ns,
        record.count,
        record.regime,
        record.part,
        record.parts,
        stream_bytes,
        record.origin_node,
        record.origin_journal,
        record.origin_index,
        0,
        proven,
        record.previous_hash,
        record.chain_hash,
    )
    if stream:
        covered = b"".join((covered, stream, PADDINGS[stream_bytes & 7]))
    crc: int = extend(seed, covered)
    return (identity[:TAG_BYTES], crc.to_bytes(4, "little"), covered, body, body_padding)


def _error_of(record: Record, stream: bytes) -> ValueError:
    if len(stream) > STREAM_BYTES_MAX:
        return ValueError(f"a stream's name has at most {STREAM_BYTES_MAX} octets, not {len(stream)}")
    if not 0 <= record.part < record.parts:
        return ValueError(f"part {record.part} of {record.parts}: parts count from 0")
    return ValueError(f"a chain hash has {HASH_BYTES} octets")


def decode_head(data: Bytes, identity: bytes, position: int, identity_crc: int | None = None) -> Head:
    """Decode the head at the start of `data`, if it was written for this position of this segment.

    With `identity_crc` a scan avoids computing the identity's checksum for every record.
    """
    view = octets(data)
    if len(view) < HEAD_BYTES:
        raise Malformed(f"record: a head has {HEAD_BYTES} octets, {len(view)} left")
    if view[:TAG_BYTES].tobytes() != identity[:TAG_BYTES]:
        raise Malformed("record: tag of another segment")
    body_at = HEAD_BYTES + padded(int(view[_STREAM_SIZE_AT]))
    if body_at > len(view):
        raise Malformed("record: head runs past the end")
    raw = view[:body_at].tobytes()
    seed = checksum_seed(checksum(identity) if identity_crc is None else identity_crc, position)
    if int.from_bytes(raw[8:12], "little") != checksum(raw[_COVERED_FROM:], seed):
        raise Malformed("record: head checksum does not match")
    return _head(raw, position, seed)


def _head(raw: bytes, position: int, seed: int) -> Head:
    fields = _FIXED.unpack_from(raw)
    body_crc, body_bytes, kind, flags, index, first_offset, time_ns, count, regime, part, parts = fields[2:13]
    stream_size, node, journal, origin_index, reserved, proven, previous_hash, chain_hash = fields[13:]
    if reserved or raw[HEAD_BYTES + stream_size :].strip(b"\0"):
        raise Malformed("record: octets that must be zero are not")
    if part >= parts:
        raise Malformed(f"record: part {part} of {parts}")
    try:
        stream = raw[HEAD_BYTES : HEAD_BYTES + stream_size].decode()
    except UnicodeDecodeError:
        raise Malformed("record: the stream's name is not UTF-8") from None
    record = Record(
        kind=kind,
        index=index,
        first_offset=first_offset,
        timestamp_ns=time_ns,
        count=count,
        regime=regime,
        stream=stream,
        part=part,
        parts=parts,
        flags=flags,
        origin_node=node,
        origin_journal=journal,
        origin_index=origin_index,
        previous_hash=previous_hash,
        chain_hash=chain_hash,
    )
    return Head(record, position, proven, len(raw), body_bytes, body_crc, seed)


def decode_body(data: Bytes, head: Head) -> memoryview:
    """The body after `head`, as a view of `data`, which starts with the head."""
    view = octets(data)
    whole = view[head.body_at : head.end - head.position]
    if len(whole) < padded(head.body_bytes):
        raise Malformed("record: body runs past the end")
    if checksum(whole, head.seed) != head.body_crc:
        raise Malformed("record: body checksum does not match")
    return whole[: head.body_bytes].data
