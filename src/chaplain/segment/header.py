"""The first two pages of a segment: its identity and its position in the log.

It decides which of the two copies to use, and does not know records. A header that validates is never questioned again.
"""

from __future__ import annotations

import struct

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.segment.layout import (
    HEADER_BYTES,
    HEADER_COPIES,
    IDENTITY_BYTES,
    PAGE_BYTES,
    RECORDS_START,
    TAG_BYTES,
    Bytes,
    check_log_name,
    check_segment_bytes,
    checksum,
    octets,
)

MAGIC = b"CHAPLSEG"
VERSION = 3
NO_IDENTITY = bytes(IDENTITY_BYTES)
_FIELDS = struct.Struct("<8sIHH16sQQQ16sB439s")
_COVERED_FROM = 12
assert _FIELDS.size == HEADER_BYTES


class SegmentHeader(Frozen, frozen=True):
    log: str
    log_kind: int
    identity: bytes
    """Random octets, new for each use of a file."""
    sequence: int
    base: int
    """Position of the segment's first octet in the log."""
    size_bytes: int
    previous: bytes = NO_IDENTITY
    """The identity of the segment before."""

    @property
    def tag(self) -> bytes:
        return self.identity[:TAG_BYTES]

    @property
    def records_start(self) -> int:
        """Position of the first record."""
        return self.base + RECORDS_START

    @property
    def end(self) -> int:
        """Position after the segment, which is the base of the next."""
        return self.base + self.size_bytes


class Headers(Frozen, frozen=True):
    """The result of reading both copies: the one to use, if any, and which copies are bad or older."""

    header: SegmentHeader | None
    bad: tuple[int, ...]
    stale: tuple[int, ...]
    blank: bool


def encode_header(header: SegmentHeader) -> bytes:
    check_log_name(header.log)
    check_segment_bytes(header.size_bytes)
    if len(header.identity) != IDENTITY_BYTES or len(header.previous) != IDENTITY_BYTES:
        raise ValueError(f"an identity has {IDENTITY_BYTES} octets")
    name = header.log.encode()
    fields = _FIELDS.pack(
        MAGIC,
        0,
        VERSION,
        header.log_kind,
        header.identity,
        header.sequence,
        header.base,
        header.size_bytes,
        header.previous,
        len(name),
        name,
    )
    covered = fields[_COVERED_FROM:]
    return MAGIC + checksum(covered).to_bytes(4, "little") + covered


def encode_pages(header: SegmentHeader) -> bytes:
    """Both copies, each on its page: everything before the first record."""
    page = encode_header(header).ljust(PAGE_BYTES, b"\0")
    return page * len(HEADER_COPIES)


def decode_header(data: Bytes) -> SegmentHeader:
    raw = octets(data)[:HEADER_BYTES].tobytes()
    if len(raw) < HEADER_BYTES:
        raise Malformed(f"segment header: {HEADER_BYTES} octets wanted, {len(raw)} there")
    magic, crc, version, log_kind, identity, sequence, base, size, previous, name_size, name = _FIELDS.unpack(raw)
    if magic != MAGIC:
        raise Malformed("segment header: not a chaplain segment")
    if crc != checksum(raw[_COVERED_FROM:]):
        raise Malformed("segment header: checksum does not match")
    if version != VERSION:
        raise Malformed(f"segment header: version {version}, this program reads {VERSION}")
    if name[name_size:].strip(b"\0"):
        raise Malformed("segment header: octets after the name")
    header = SegmentHeader(_name(name[:name_size]), log_kind, identity, sequence, base, size, previous)
    try:
        check_log_name(header.log)
        check_segment_bytes(size)
    except Exception as wrong:
        raise Malformed(f"segment header: {wrong}") from None
    if base % PAGE_BYTES or header.end >= 1 << 63:
        raise Malformed(f"segment header: base {base} is not possible")
    return header


def other_version(data: Bytes) -> int | None:
    """The version that wrote this, if it is another one.

    The version's position and the checksum before it never change.
    """
    view = octets(data)
    for copy_at in HEADER_COPIES:
        raw = view[copy_at : copy_at + HEADER_BYTES].tobytes()
        if len(raw) == HEADER_BYTES and raw.startswith(MAGIC):
            _, crc, version, *_ = _FIELDS.unpack(raw)
            if version != VERSION and crc == checksum(raw[_COVERED_FROM:]):
                return int(version)
    return None


def _name(raw: bytes) -> str:
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        raise Malformed("segment header: the log's name is not ASCII") from None


def read_headers(data: Bytes) -> Headers:
    """Read both copies. Never raises: the caller reports a segment without a header."""
    view = octets(data)
    valid: dict[int, SegmentHeader] = {}
    for copy_at in HEADER_COPIES:
        try:
            valid[copy_at] = decode_header(view[copy_at : copy_at + HEADER_BYTES])
        except Malformed:
            continue
    best = max(valid.values(), key=lambda header: header.sequence, default=None)
    return Headers(
        header=best,
        bad=tuple(copy_at for copy_at in HEADER_COPIES if copy_at not in valid),
        stale=tuple(copy_at for copy_at, header in valid.items() if header != best),
        blank=not any(view[copy_at : copy_at + HEADER_BYTES].any() for copy_at in HEADER_COPIES),
    )
