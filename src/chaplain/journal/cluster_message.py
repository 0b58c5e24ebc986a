"""The Cluster Journal Message of journal.txt: its immutable body, and the chain through all bodies.

    body = protocol 1 | regime 4 | index 8 | flags 1 | master 1 | timestamp 8 | previous 32 | entries 3 | entry …

Decides which bytes are a body; knows nothing of ballots, votes or disks. The regime here is that of the master who
first proposed the body. Who proposes it again, under a later regime, sends the same bytes. Byte tables and hex
examples: docs/protocol/journal-order.md.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TypeAlias

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.wire.primitives import Cursor, put_number

PROTOCOL = 1
DIGEST_BYTES = 32
ENTRIES_MAX = (1 << 24) - 1
BODY_BYTES_MAX = 1 << 20
"""A body is references and configuration, never payload."""

DATA_ENTRY = 1
_FINAL = 1
_CHAIN = b"chaplain cluster chain\0"


class Reference(Frozen, frozen=True):
    """Where a payload comes from: the message `index` of one journal of one ingest node."""

    node: int
    journal: int
    index: int


class DataEntry(Frozen, frozen=True):
    """Cluster Journal Entry (Data), and the digest that pins its content."""

    reference: Reference
    digest: bytes


class ConfigEntry(Frozen, frozen=True):
    """Cluster Journal Entry (Config). The entry type says which message of journal.txt the data is."""

    entry_type: int
    stage: int
    data: bytes


Entry: TypeAlias = DataEntry | ConfigEntry


class Body(Frozen, frozen=True):
    """What is agreed at one index. Never changes once anybody has proposed it."""

    regime: int
    index: int
    master: int
    timestamp_ns: int
    previous: bytes
    entries: tuple[Entry, ...] = ()
    final: bool = False

    @property
    def data_entries(self) -> tuple[DataEntry, ...]:
        """Asked for again and again; a message with nothing else in it, as almost all are, has them ready."""
        for entry in self.entries:
            if type(entry) is not DataEntry:
                return tuple(one for one in self.entries if isinstance(one, DataEntry))
        return self.entries  # type: ignore[return-value]  # as the loop has seen


def genesis(cluster: str) -> bytes:
    """What stands before the first message: the chain of no other cluster continues it."""
    return sha256(_CHAIN + b"genesis\0" + cluster.encode()).digest()


def chain_hash(previous: bytes, body: bytes) -> bytes:
    return sha256(b"".join((_CHAIN, previous, body))).digest()


def encode_body(body: Body) -> bytes:
    encoded = b"".join(
        (
            put_number(PROTOCOL, 1),
            put_number(body.regime, 4),
            put_number(body.index, 8),
            put_number(_FINAL if body.final else 0, 1),
            put_number(body.master, 1),
            put_number(body.timestamp_ns, 8),
            body.previous,
            put_number(len(body.entries), 3),
            *map(_encode_entry, body.entries),
        )
    )
    if len(body.previous) != DIGEST_BYTES or len(encoded) > BODY_BYTES_MAX:
        raise ValueError(f"a body has at most {BODY_BYTES_MAX} octets, and a previous hash of {DIGEST_BYTES}")
    return encoded


def _encode_entry(entry: Entry) -> bytes:
    if isinstance(entry, ConfigEntry):
        return b"%c%c%c%b%b" % (PROTOCOL, entry.entry_type, entry.stage, put_number(len(entry.data), 4), entry.data)
    reference = entry.reference
    if len(entry.digest) != DIGEST_BYTES:
        raise ValueError(f"a digest has {DIGEST_BYTES} octets")
    place = put_number(reference.node, 1) + put_number(reference.journal, 2) + put_number(reference.index, 4)
    return b"%c%c%b%b" % (PROTOCOL, DATA_ENTRY, place, entry.digest)


def decode_body(data: bytes) -> Body:
    if len(data) > BODY_BYTES_MAX:
        raise Malformed(f"body: at most {BODY_BYTES_MAX} octets, not {len(data)}")
    cursor = Cursor(data)
    _protocol(cursor, "body")
    regime, index = cursor.number(4, "regime"), cursor.number(8, "index")
    flags, master = cursor.number(1, "flags"), cursor.number(1, "master")
    timestamp_ns, previous = cursor.number(8, "timestamp"), cursor.take(DIGEST_BYTES, "previous")
    if flags > _FINAL or not regime or not index or not master:
        raise Malformed("body: unknown flags, or a regime, index or master of zero")
    count = cursor.number(3, "entries")
    entries = tuple(_decode_entry(cursor) for _ in range(count))
    cursor.end("body")
    return Body(regime, index, master, timestamp_ns, previous, entries, flags == _FINAL)


def _protocol(cursor: Cursor, what: str) -> None:
    protocol = cursor.number(1, what)
    if protocol != PROTOCOL:
        raise Malformed(f"{what}: protocol {protocol}, this program speaks {PROTOCOL}")


def _decode_entry(cursor: Cursor) -> Entry:
    _protocol(cursor, "entry")
    entry_type = cursor.number(1, "entry type")
    if entry_type == DATA_ENTRY:
        node, journal, index = cursor.number(1, "node"), cursor.number(2, "journal"), cursor.number(4, "index")
        return DataEntry(Reference(node, journal, index), cursor.take(DIGEST_BYTES, "digest"))
    if not entry_type:
        raise Malformed("entry: type 0 means nothing")
    stage = cursor.number(1, "stage")
    return ConfigEntry(entry_type, stage, cursor.take(cursor.number(4, "size"), "data"))
