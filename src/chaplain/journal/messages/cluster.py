"""The Cluster Journal Message of journal.txt: its immutable body, and the hash chain through all bodies.

    body = protocol 1 | regime 4 | index 8 | flags 1 | master 1 | timestamp 8 | previous 32 | entries 3 | entry …

Decides which octets are a valid body. Refuses to know about ballots, votes and disks. `regime` is the regime of the
master that first proposed the body; a later master that proposes it again sends the same octets. Byte tables and hex
examples: docs/protocol/journal-order.md.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import TypeAlias

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.wire.primitives import ByteReader, put_number

PROTOCOL = 1
DIGEST_BYTES = 32
ENTRIES_MAX = (1 << 24) - 1
BODY_BYTES_MAX = 1 << 20
"""A body contains references and configuration, never payloads."""

DATA_ENTRY = 1
_FINAL = 1
_CHAIN = b"chaplain cluster chain\0"
_FRONT = struct.Struct(">BIQBBQ32sBH")
"""Fields of a body before its entries. `struct` has no three-octet number, so the entry count is packed as 1 + 2
octets.
"""
_DATA = struct.Struct(">BBBHI32s")
"""A complete data entry."""
_DATA_BEGINS = bytes((PROTOCOL, DATA_ENTRY))


class Reference(Frozen, frozen=True):
    """Names a payload: message `index` of one journal of one ingest node."""

    node: int
    journal: int
    index: int


class DataEntry(Frozen, frozen=True):
    """Cluster Journal Entry (Data): a reference, and the SHA-256 of the payload that it refers to."""

    reference: Reference
    digest: bytes


class ConfigEntry(Frozen, frozen=True):
    """Cluster Journal Entry (Config). The entry type says which message of journal.txt `data` contains."""

    entry_type: int
    stage: int
    data: bytes


Entry: TypeAlias = DataEntry | ConfigEntry


class Body(Frozen, frozen=True):
    """The content of one index of the log. It never changes after a master has proposed it."""

    regime: int
    index: int
    master: int
    timestamp_ns: int
    previous: bytes
    entries: tuple[Entry, ...] = ()
    final: bool = False

    @property
    def data_entries(self) -> tuple[DataEntry, ...]:
        """The data entries. Most messages have no other entries; for those the property returns `entries` itself."""
        for entry in self.entries:
            if type(entry) is not DataEntry:
                return tuple(one for one in self.entries if isinstance(one, DataEntry))
        return self.entries  # type: ignore[return-value]  # as the loop has seen


def genesis(cluster: str) -> bytes:
    """The hash before the first message. It depends on the cluster's name, so no chain continues that of another
    cluster.
    """
    return sha256(_CHAIN + b"genesis\0" + cluster.encode()).digest()


def chain_hash(previous: bytes, body: bytes) -> bytes:
    return sha256(b"".join((_CHAIN, previous, body))).digest()


def encode_body(body: Body) -> bytes:
    count = len(body.entries)
    if len(body.previous) != DIGEST_BYTES or count > ENTRIES_MAX:
        raise ValueError(f"a body has a previous hash of {DIGEST_BYTES} octets, and at most {ENTRIES_MAX} entries")
    numbers = (body.regime, body.index, _FINAL if body.final else 0, body.master, body.timestamp_ns)
    try:
        front = _FRONT.pack(PROTOCOL, *numbers, body.previous, count >> 16, count & 0xFFFF)
    except struct.error as error:
        raise ValueError(f"body: {error}") from None
    encoded = b"".join((front, *map(encode_entry, body.entries)))
    if len(encoded) > BODY_BYTES_MAX:
        raise ValueError(f"a body has at most {BODY_BYTES_MAX} octets, not {len(encoded)}")
    return encoded


def encode_entry(entry: Entry) -> bytes:
    if type(entry) is ConfigEntry:
        return b"%c%c%c%b%b" % (PROTOCOL, entry.entry_type, entry.stage, put_number(len(entry.data), 4), entry.data)
    assert type(entry) is DataEntry
    reference = entry.reference
    if len(entry.digest) != DIGEST_BYTES:
        raise ValueError(f"a digest has {DIGEST_BYTES} octets")
    try:
        return _DATA.pack(PROTOCOL, DATA_ENTRY, reference.node, reference.journal, reference.index, entry.digest)
    except struct.error as error:
        raise ValueError(f"entry: {error}") from None


def decode_body(data: bytes) -> Body:
    size = len(data)
    if not _FRONT.size <= size <= BODY_BYTES_MAX:
        raise Malformed(f"body: {_FRONT.size} to {BODY_BYTES_MAX} octets, not {size}")
    protocol, regime, index, flags, master, timestamp_ns, previous, high, low = _FRONT.unpack_from(data)
    if protocol != PROTOCOL:
        raise Malformed(f"body: protocol {protocol}, this program speaks {PROTOCOL}")
    if flags > _FINAL or not regime or not index or not master:
        raise Malformed("body: unknown flags, or a regime, index or master of zero")
    entries: list[Entry] = []
    at = _FRONT.size
    for _ in range(high << 16 | low):
        if data[at : at + 2] == _DATA_BEGINS and at + _DATA.size <= size:
            _, _, node, journal, entry_index, digest = _DATA.unpack_from(data, at)
            entries.append(DataEntry(Reference(node, journal, entry_index), digest))
            at += _DATA.size
        else:
            cursor = ByteReader(data, at)
            entries.append(take_config(cursor))
            at = cursor.position
    if at != size:
        raise Malformed(f"body: {size - at} octets too many")
    return Body(regime, index, master, timestamp_ns, previous, tuple(entries), flags == _FINAL)


def take_config(cursor: ByteReader) -> ConfigEntry:
    protocol = cursor.number(1, "entry")
    if protocol != PROTOCOL:
        raise Malformed(f"entry: protocol {protocol}, this program speaks {PROTOCOL}")
    entry_type = cursor.number(1, "entry type")
    if entry_type == DATA_ENTRY:
        raise Malformed("entry: a reference and its digest run past the end")
    if not entry_type:
        raise Malformed("entry: type 0 means nothing")
    stage = cursor.number(1, "stage")
    return ConfigEntry(entry_type, stage, cursor.take(cursor.number(4, "size"), "data"))


def payloads_match(body: Body, payloads: tuple[bytes, ...]) -> bool:
    """True if these payloads have the digests that the body's data entries name, in order."""
    digests = tuple(entry.digest for entry in body.data_entries)
    return digests == tuple(sha256(payload).digest() for payload in payloads)
