"""Control messages of the mesh, sent in ALIVE as parcels of the mesh's layer. The layers above never see them.

    heartbeat   empty body: the sender is alive
    ask         01: asks for the list of pools
    pool list   02, status 1, pools (strings): all pools that the sender is in

Byte tables and hex examples: docs/protocol/mesh.md.
"""

from __future__ import annotations

from typing import TypeAlias

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.wire import parcel
from chaplain.wire.primitives import ByteReader, put_number, put_strings


class Heartbeat(Frozen, frozen=True):
    pass


class AskPoolList(Frozen, frozen=True):
    pass


class PoolList(Frozen, frozen=True):
    pools: tuple[str, ...]
    status: int


ControlMessage: TypeAlias = Heartbeat | AskPoolList | PoolList

_ASK, _POOL_LIST = 1, 2
_LAYER_AT = 4
_HEADER_BYTES = 8
_MESH = int(parcel.Layer.MESH)


def is_control_message(content: bytes) -> bool:
    """Whether this parcel belongs to the mesh itself. Reads only the header, because every ALIVE is checked."""
    return len(content) >= _HEADER_BYTES and content[_LAYER_AT] & 0xF == _MESH


def encode(node: int, note: ControlMessage) -> bytes:
    match note:
        case Heartbeat():
            body = b""
        case AskPoolList():
            body = b"%c" % _ASK
        case PoolList():
            body = b"%c%b%b" % (_POOL_LIST, put_number(note.status, 1), put_strings(note.pools))
    return parcel.encode(parcel.Parcel(node, parcel.Layer.MESH, body))


def decode(content: bytes, node: int) -> ControlMessage:
    """Decode a control message of `node`. A peer sends its own control messages only, never those of another node."""
    opened = parcel.decode(content)
    if opened.node != node:
        raise Malformed(f"note: from {opened.node:08x}, brought by {node:08x}")
    if opened.version != parcel.WIRE_VERSION:
        raise Malformed(f"note: version {opened.version}, we read {parcel.WIRE_VERSION}")
    if not opened.body:
        return Heartbeat()
    cursor = ByteReader(opened.body)
    note: ControlMessage
    match cursor.number(1, "note"):
        case 1:
            note = AskPoolList()
        case 2:
            status = cursor.number(1, "status")
            note = PoolList(cursor.strings("pools"), status)
        case kind:
            raise Malformed(f"note: kind {kind} is neither 1 nor 2")
    cursor.end("note")
    return note
