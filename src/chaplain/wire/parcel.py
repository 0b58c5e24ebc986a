"""The parcel of sequence.txt: a 64-bit header, a protocol body of n octets, then the payload.

    node 4 | version 4 bits, layer 4 bits, flags 8 bits | n 2 | body n | payload to the end

Every layer above the mesh sends parcels. The layer number says which layer defines the body.
Byte table and hex example: docs/protocol/parcel.md.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.wire.limits import PARCEL_BODY_BYTES_MAX

WIRE_VERSION = 1
_HEADER = struct.Struct(">IHH")
_HEADER_BYTES = _HEADER.size


class Layer(IntEnum):
    """The layer that a parcel belongs to. Numbers are never reused; the largest is 15."""

    MESH = 1
    GOSSIP = 2
    GRAPH = 3
    SEQUENCE = 4
    JOURNAL = 5
    CLIENT = 6
    EXECUTOR = 7


class Parcel(Frozen, frozen=True):
    node: int
    layer: int
    body: bytes
    payload: bytes = b""
    flags: int = 0
    version: int = WIRE_VERSION


def encode(parcel: Parcel) -> bytes:
    size = len(parcel.body)
    if size > PARCEL_BODY_BYTES_MAX:
        raise ValueError(f"a parcel's body holds at most {PARCEL_BODY_BYTES_MAX} octets, not {size}")
    if not (0 <= parcel.version < 16 and 0 <= parcel.layer < 16 and 0 <= parcel.flags < 256):
        raise ValueError("version and layer have four bits each, flags eight")
    metadata = parcel.version << 12 | parcel.layer << 8 | parcel.flags
    return b"".join((_HEADER.pack(parcel.node, metadata, size), parcel.body, parcel.payload))


def decode(data: bytes) -> Parcel:
    """Split the parcel. It accepts every version and layer: the receiver decides which of them it processes."""
    left = len(data) - _HEADER_BYTES
    if left < 0:
        raise Malformed(f"parcel: a header has {_HEADER_BYTES} octets, not {len(data)}")
    node, metadata, size = _HEADER.unpack_from(data)
    if size > left:
        raise Malformed(f"parcel: body of {size} octets, {left} left")
    end = _HEADER_BYTES + size
    body, payload = data[_HEADER_BYTES:end], data[end:]
    return Parcel(node, metadata >> 8 & 0xF, body, payload, metadata & 0xFF, metadata >> 12)
