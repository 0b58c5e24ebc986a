"""The Ingest Node Journal Message of journal.txt: clients' packs, unchanged, under a reference that is never reused.

    message = protocol 1 | node 1 | journal 2 | index 4 | entries 4 | entry head … | pack …
    entry head = protocol 1 | stream string | pack size 4

Decides which octets are an ingest message. Refuses to know what packs contain. All entry heads come first, so the packs
are the last octets of the message, concatenated without change. The digest of a message is the SHA-256 of all its
octets. Byte tables and hex example: docs/protocol/journal-requests.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.cluster import PROTOCOL, Reference
from chaplain.journal.messages.write_request import Heading
from chaplain.wire.primitives import VCHAR, ByteReader, put_number, put_string

_REFERENCE_HEAD = struct.Struct(">BBHI")
_FRONT = struct.Struct(">BBHII")
_REFERENCE = struct.Struct(">BHI")
REFERENCE_BYTES = _REFERENCE.size
_ENTRY_BYTES_MIN = 6


class IngestEntry(Frozen, frozen=True):
    """One pack as the client sent it. In a decoded message, `raw` is a view into the message."""

    stream: str
    raw: bytes | memoryview


class IngestMessage(Frozen, frozen=True):
    reference: Reference
    entries: tuple[IngestEntry, ...]
    front: bytes
    """All octets before the first pack."""


class IngestHeads(NamedTuple):
    """An ingest message with the decoded headings of its packs."""

    message: IngestMessage
    headings: tuple[Heading, ...]


class Arrival(Frozen, frozen=True):
    """An ingest message from another node, on its way to the serializer."""

    node: int
    reference: Reference
    digest: bytes
    payload: bytes
    opened: IngestHeads | None
    """The decoded message; None if it cannot be decoded. Execution then decides that it is malformed."""


class AcceptedPack(NamedTuple):
    """A pack that this node accepted and that has no verdict yet."""

    instance: bytes
    heading: Heading
    entry: IngestEntry
    digest: bytes
    check: bool = False
    """True if this node may try the pack out before it is ordered: the writer asked for it, and no earlier pack of the
    lane waits for its verdict.
    """


def digest_of(message: bytes) -> bytes:
    return sha256(message).digest()


def encode(reference: Reference, entries: Sequence[IngestEntry]) -> bytes:
    try:
        front = _FRONT.pack(PROTOCOL, reference.node, reference.journal, reference.index, len(entries))
    except struct.error as error:
        raise ValueError(f"ingest message: {error}") from None
    pieces: list[bytes | memoryview] = [front]
    pieces += [b"%c%b%b" % (PROTOCOL, put_string(entry.stream), put_number(len(entry.raw), 4)) for entry in entries]
    pieces += [entry.raw for entry in entries]
    return b"".join(pieces)


def compose(reference: Reference, entries: Sequence[IngestEntry]) -> tuple[bytes, IngestMessage]:
    """Encode a message of this node. Also return it in the decoded form, to save a decode."""
    payload = encode(reference, entries)
    front = payload[: len(payload) - sum(len(entry.raw) for entry in entries)]
    return payload, IngestMessage(reference, tuple(entries), front)


def decode(data: bytes) -> IngestMessage:
    reference, count = _front(data)
    heads, position = _heads(data, count)
    front = data[:position]
    view = memoryview(data)
    size = len(data)
    entries: list[IngestEntry] = []
    for stream, pack_bytes in heads:
        end = position + pack_bytes
        if end > size:
            raise Malformed("ingest message: a pack runs past its end")
        entries.append(IngestEntry(stream, view[position:end]))
        position = end
    if position != size:
        raise Malformed(f"ingest message: {size - position} octets too many")
    return IngestMessage(reference, tuple(entries), front)


def reference_of(data: bytes) -> Reference:
    """Decode the reference only. Nodes that forward a message need no more."""
    if len(data) < _REFERENCE_HEAD.size:
        raise Malformed(f"ingest message: a reference ends after {_REFERENCE_HEAD.size} octets, not {len(data)}")
    protocol, node, journal, index = _REFERENCE_HEAD.unpack_from(data)
    _check(protocol, node, index)
    return Reference(node, journal, index)


def split(data: bytes) -> tuple[list[tuple[str, int]], int]:
    """Stream and pack size of each entry, and the position of the first pack. Raises `Malformed` if `decode` would."""
    _, count = _front(data)
    heads, position = _heads(data, count)
    rest = len(data) - position - sum([size for _, size in heads])
    if rest:
        raise Malformed(f"ingest message: {abs(rest)} octets too {'many' if rest > 0 else 'few'}")
    return heads, position


def heads_of(front: bytes) -> list[tuple[str, int]]:
    """Stream and pack size of each entry, from the octets before the first pack."""
    _, count = _front(front)
    heads, end = _heads(front, count)
    if end != len(front):
        raise Malformed(f"front: {len(front) - end} octets too many")
    return heads


def _front(data: bytes) -> tuple[Reference, int]:
    """The reference and the number of entries."""
    if len(data) < _FRONT.size:
        raise Malformed(f"ingest message: at least {_FRONT.size} octets, not {len(data)}")
    protocol, node, journal, index, count = _FRONT.unpack_from(data)
    _check(protocol, node, index)
    return Reference(node, journal, index), count


def _heads(data: bytes, count: int) -> tuple[list[tuple[str, int]], int]:
    """Stream and pack size of each entry, and the position of the first pack."""
    size = len(data)
    if count * _ENTRY_BYTES_MIN > size:
        raise Malformed(f"ingest message: {count} entries in {size} octets")
    heads: list[tuple[str, int]] = []
    at = _FRONT.size
    for _ in range(count):
        name_at = at + 2
        name_end = name_at + data[at + 1] if name_at <= size else size
        if name_end + 4 > size:
            raise Malformed("ingest message: the head of an entry runs past its end")
        name = data[name_at:name_end]
        if data[at] != PROTOCOL or name.translate(None, VCHAR):
            raise Malformed(f"ingest message: protocol {data[at]}, or a stream that is not all visible ASCII")
        at = name_end + 4
        heads.append((name.decode("ascii"), int.from_bytes(data[name_end:at], "big")))
    return heads, at


def put_reference(reference: Reference) -> bytes:
    try:
        return _REFERENCE.pack(reference.node, reference.journal, reference.index)
    except struct.error as error:
        raise ValueError(f"reference: {error}") from None


def take_reference(cursor: ByteReader) -> Reference:
    node, journal, index = _REFERENCE.unpack(cursor.take(REFERENCE_BYTES, "reference"))
    _check(PROTOCOL, node, index)
    return Reference(node, journal, index)


def take_reached(cursor: ByteReader) -> tuple[Reference, ...]:
    """The acknowledged positions. Unlike a reference, an acknowledgement may have index 0: nothing received yet."""
    taken = cursor.take(cursor.number(1, "count") * REFERENCE_BYTES, "reached")
    return tuple([Reference(*reached) for reached in _REFERENCE.iter_unpack(taken)])


def _check(protocol: int, node: int, index: int) -> None:
    if protocol != PROTOCOL:
        raise Malformed(f"ingest message: protocol {protocol}, this program speaks {PROTOCOL}")
    if not node or not index:
        raise Malformed("reference: nodes and indexes count from 1")
