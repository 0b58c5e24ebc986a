"""The entries of the log's tree: one for each applied pack, and one for each granted change of the configuration.

Every node derives them from the agreed prefix, so every node has the same tree. An entry contains everything that a
proof of a message states: its position in the order, its stream and offsets, its author, and the digest of its pack.
Kind 3 is reserved for packs with salted hashes of their messages, so that a value can be erased later. It is refused,
because its meaning is not defined yet.

Byte table: docs/protocol/proofs.md.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.proofs.merkle import HASH_BYTES

LEAF_VERSION = 1
PACK = 1
CONFIGURATION = 2
SALTED = 3
STREAM_BYTES_MAX = 255
LEAF_BYTES_MAX = 107 + STREAM_BYTES_MAX
_VISIBLE = bytes(range(0x21, 0x7F))
_START = struct.Struct(">BBIQQ")
_PACK = struct.Struct(">BBIQQQIII32s32sB")
_CONFIGURATION = struct.Struct(">BBIQQIBB32s32s")
assert _PACK.size == 107
_U64 = (1 << 64) - 1


class PackLeaf(Frozen, frozen=True):
    """An applied pack: messages `first_offset` to `first_offset + count - 1` of the stream."""

    regime: int
    message: int
    """Index of the cluster message that ordered the pack."""
    timestamp_ns: int
    """Timestamp of that message."""
    stream: str
    first_offset: int
    count: int
    client_id: int
    first_id: int
    """Id of the pack's first request on the lane `client_id`."""
    key: bytes
    """Public key of the identity that wrote the pack."""
    digest: bytes
    """Digest of the pack, which its signature covers."""


class ConfigurationLeaf(Frozen, frozen=True):
    """A granted configuration entry."""

    regime: int
    message: int
    timestamp_ns: int
    entry: int
    """Position of the entry in its cluster message."""
    entry_type: int
    stage: int
    key: bytes
    """Public key of the identity that requested it; zeros if a master ordered it by itself."""
    digest: bytes
    """SHA-256 of the entry's data."""


Leaf: TypeAlias = PackLeaf | ConfigurationLeaf


def encode(leaf: Leaf) -> bytes:
    start, key, digest = (leaf.regime, leaf.message, leaf.timestamp_ns), leaf.key, leaf.digest
    if not len(key) == len(digest) == HASH_BYTES:  # struct would pad or cut them
        raise ValueError(f"leaf: keys and digests have {HASH_BYTES} octets, not {len(key)} and {len(digest)}")
    try:
        if type(leaf) is ConfigurationLeaf:
            fields = (leaf.entry, leaf.entry_type, leaf.stage, key, digest)
            return _CONFIGURATION.pack(LEAF_VERSION, CONFIGURATION, *start, *fields)
        assert type(leaf) is PackLeaf
        stream = leaf.stream.encode("ascii")
        ids = (leaf.first_offset, leaf.count, leaf.client_id, leaf.first_id)
        octets = _PACK.pack(LEAF_VERSION, PACK, *start, *ids, key, digest, len(stream)) + stream
    except (struct.error, UnicodeEncodeError) as error:
        raise ValueError(f"leaf: {error}") from None
    _check_pack(leaf, stream)
    return octets


def encode_pack(place: tuple[int, int, int, str, int, int], ids: tuple[int, int], key: bytes, digest: bytes) -> bytes:
    """The octets of a leaf whose fields are known to be right: regime, message, timestamp, stream, first offset and
    count; client id and first request id. Execution adds one for each pack, so it does not check them again.
    """
    regime, message, timestamp_ns, stream, *offsets = place
    octets = stream.encode()
    return (
        _PACK.pack(LEAF_VERSION, PACK, regime, message, timestamp_ns, *offsets, *ids, key, digest, len(octets)) + octets
    )


def decode(data: bytes) -> Leaf:
    """Return the leaf with exactly these octets."""
    if len(data) < _START.size:
        raise Malformed(f"leaf: at least {_START.size} octets wanted, not {len(data)}")
    version, kind = data[0], data[1]
    if version != LEAF_VERSION:
        raise Malformed(f"leaf: version {version} is not known")
    if kind == SALTED:
        raise Malformed("leaf: kind 3, salted groups, is reserved and not supported by this version")
    if kind == CONFIGURATION:
        if len(data) != _CONFIGURATION.size:
            raise Malformed(f"leaf of a configuration entry: {_CONFIGURATION.size} octets wanted, not {len(data)}")
        return ConfigurationLeaf(*_CONFIGURATION.unpack(data)[2:])
    if kind != PACK:
        raise Malformed(f"leaf: kind {kind} is not known")
    if len(data) < _PACK.size or len(data) != _PACK.size + data[_PACK.size - 1]:
        raise Malformed(f"leaf of a pack: {len(data)} octets are not its fields and its stream")
    regime, message, timestamp_ns, first_offset, count, client_id, first_id, key, digest = _PACK.unpack_from(data)[2:11]
    stream = data[_PACK.size :]
    if stream.translate(None, _VISIBLE):
        raise Malformed("leaf of a pack: a stream's name is visible ASCII")
    ids = (first_offset, count, client_id, first_id)
    leaf = PackLeaf(regime, message, timestamp_ns, stream.decode("ascii"), *ids, key, digest)
    try:
        _check_pack(leaf, stream)
    except ValueError as error:
        raise Malformed(str(error)) from None
    return leaf


def _check_pack(leaf: PackLeaf, stream: bytes) -> None:
    if not stream or len(stream) > STREAM_BYTES_MAX or stream.translate(None, _VISIBLE):
        raise ValueError(f"leaf of a pack: a stream's name has 1 to {STREAM_BYTES_MAX} visible ASCII characters")
    if not leaf.count or leaf.first_offset + leaf.count > _U64:
        raise ValueError(f"leaf of a pack: {leaf.count} messages from offset {leaf.first_offset} are not possible")
    if not leaf.client_id or not leaf.first_id:
        raise ValueError("leaf of a pack: client ids and request ids count from 1")
