"""The Ingest Node Journal Message of journal.txt: requests verbatim, under a reference that is never used again.

    message = protocol 1 | node 1 | journal 2 | index 4 | entries 4 | entry head … | pack …
    entry head = protocol 1 | stream string | pack size 4

Decides which octets are an ingest message; knows nothing of what packs hold. All heads come first, so that the packs of
a message are its last octets, joined untouched. The message's digest is the SHA-256 of all of it.
Byte tables and hex example: docs/protocol/journal-requests.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.cluster_message import PROTOCOL, Reference
from chaplain.journal.request import Heading
from chaplain.wire.primitives import Cursor, put_number, put_string

_ENTRY_BYTES_MIN = 6


class IngestEntry(Frozen, frozen=True):
    """One client's request as it came. The pack of a decoded message is a view of it."""

    stream: str
    raw: bytes | memoryview


class IngestMessage(Frozen, frozen=True):
    reference: Reference
    entries: tuple[IngestEntry, ...]
    front: bytes
    """Everything before the first pack."""


class Opened(NamedTuple):
    """An ingest message, and what the first octets of each of its packs say."""

    message: IngestMessage
    headings: tuple[Heading, ...]


class Arrival(Frozen, frozen=True):
    """An ingest message of another node, on its way to the serializer."""

    node: int
    reference: Reference
    digest: bytes
    payload: bytes
    opened: Opened | None
    """None if it cannot be read; execution will say what is wrong with it."""


class Taken(NamedTuple):
    """A pack that was taken and has no verdict yet."""

    instance: bytes
    heading: Heading
    entry: IngestEntry
    digest: bytes
    check: bool = False
    """It may be tried out: its writer wants that, and nothing of its lane is on its way before it."""


def digest_of(message: bytes) -> bytes:
    return sha256(message).digest()


def encode(reference: Reference, entries: Sequence[IngestEntry]) -> bytes:
    pieces: list[bytes | memoryview] = [
        put_number(PROTOCOL, 1) + put_reference(reference),
        put_number(len(entries), 4),
    ]
    pieces += [b"%c%b%b" % (PROTOCOL, put_string(entry.stream), put_number(len(entry.raw), 4)) for entry in entries]
    pieces += [entry.raw for entry in entries]
    return b"".join(pieces)


def compose(reference: Reference, entries: Sequence[IngestEntry]) -> tuple[bytes, IngestMessage]:
    """A message of ours as octets, and as these will be read."""
    payload = encode(reference, entries)
    front = payload[: len(payload) - sum(len(entry.raw) for entry in entries)]
    return payload, IngestMessage(reference, tuple(entries), front)


def decode(data: bytes) -> IngestMessage:
    cursor = Cursor(data)
    _protocol(cursor)
    reference = take_reference(cursor)
    heads = _heads(cursor, len(data))
    view = memoryview(data)
    front, position = cursor.position, cursor.position
    entries: list[IngestEntry] = []
    for stream, size in heads:
        if position + size > len(data):
            raise Malformed("ingest message: a pack runs past its end")
        entries.append(IngestEntry(stream, view[position : position + size]))
        position += size
    if position != len(data):
        raise Malformed(f"ingest message: {len(data) - position} octets too many")
    return IngestMessage(reference, tuple(entries), data[:front])


def reference_of(data: bytes) -> Reference:
    """Only the reference: what whoever passes messages on needs to know."""
    cursor = Cursor(data)
    _protocol(cursor)
    return take_reference(cursor)


def heads_of(front: bytes) -> list[tuple[str, int]]:
    """Stream and pack size of each entry, from what stands before the first pack."""
    cursor = Cursor(front)
    _protocol(cursor)
    take_reference(cursor)
    heads = _heads(cursor, len(front))
    cursor.end("front")
    return heads


def _heads(cursor: Cursor, size_bytes: int) -> list[tuple[str, int]]:
    count = cursor.number(4, "entries")
    if count * _ENTRY_BYTES_MIN > size_bytes:
        raise Malformed(f"ingest message: {count} entries in {size_bytes} octets")
    return [_head(cursor) for _ in range(count)]


def put_reference(reference: Reference) -> bytes:
    return put_number(reference.node, 1) + put_number(reference.journal, 2) + put_number(reference.index, 4)


def take_reference(cursor: Cursor) -> Reference:
    node, journal, index = cursor.number(1, "node"), cursor.number(2, "journal"), cursor.number(4, "index")
    if not node or not index:
        raise Malformed("reference: nodes and indexes count from 1")
    return Reference(node, journal, index)


def _head(cursor: Cursor) -> tuple[str, int]:
    _protocol(cursor)
    return cursor.string("stream"), cursor.number(4, "pack size")


def _protocol(cursor: Cursor) -> None:
    protocol = cursor.number(1, "protocol")
    if protocol != PROTOCOL:
        raise Malformed(f"ingest message: protocol {protocol}, this program speaks {PROTOCOL}")
