"""The seven commands of mesh.txt, byte for byte as they are inside a sealed frame.

    command = AA A1, one octet naming the command, two octets of sequence, then the command's own fields.

The content of ALIVE and BROADCAST is everything after their fields. `encode` and `decode` handle all commands as
objects. The functions after them are a fast path for ALIVE and BROADCAST: a node sends and receives these two for every
message, so they work on the bytes and build no objects. A test compares the fast path with `encode` and `decode`.
Byte tables and hex examples: docs/protocol/mesh.md.
"""

from __future__ import annotations

import struct
from typing import TypeAlias, assert_never

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.wire.primitives import ByteReader, put_dictionary, put_number, put_string, put_strings

SIGNATURE = b"\xaa\xa1"
SEQUENCE_MODULUS = 1 << 16
STATUS_MODULUS = 1 << 8


class Hello(Frozen, frozen=True):
    """Greet a peer so that it can connect back to us."""

    sequence: int
    ipaddress: str
    port: int
    pools: tuple[str, ...]
    status: int
    headers: dict[str, str]


class Alive(Frozen, frozen=True):
    """Content for one peer."""

    sequence: int
    content: bytes


class Broadcast(Frozen, frozen=True):
    """Content for everyone in a pool."""

    sequence: int
    pool: str
    content: bytes


class Join(Frozen, frozen=True):
    sequence: int
    pool: str
    status: int


class Leave(Frozen, frozen=True):
    sequence: int
    pool: str
    status: int


class Ping(Frozen, frozen=True):
    """Ask a silent peer whether it is there."""

    sequence: int


class DecenAck(Frozen, frozen=True):
    """Answer a PING."""

    sequence: int


Command: TypeAlias = Hello | Alive | Broadcast | Join | Leave | Ping | DecenAck

HELLO, ALIVE, BROADCAST, JOIN, LEAVE, PING, DECENACK = range(1, 8)
"""The octet of each command."""
_HEADER = struct.Struct(">2sBH")
HEADER_BYTES = _HEADER.size


def encode(command: Command) -> bytes:
    match command:
        case Hello():
            octet = HELLO
            fields = b"".join(
                (
                    put_string(command.ipaddress),
                    put_number(command.port, 2),
                    put_strings(command.pools),
                    put_number(command.status, 1),
                    put_dictionary(command.headers),
                )
            )
        case Alive():
            octet, fields = ALIVE, command.content
        case Broadcast():
            octet, fields = BROADCAST, put_string(command.pool) + command.content
        case Join():
            octet, fields = JOIN, put_string(command.pool) + put_number(command.status, 1)
        case Leave():
            octet, fields = LEAVE, put_string(command.pool) + put_number(command.status, 1)
        case Ping():
            octet, fields = PING, b""
        case DecenAck():
            octet, fields = DECENACK, b""
        case _:
            assert_never(command)
    return b"%b%c%b%b" % (SIGNATURE, octet, put_number(command.sequence, 2), fields)


def decode(data: bytes) -> Command:
    cursor = ByteReader(data)
    if cursor.take(2, "signature") != SIGNATURE:
        raise Malformed("signature: not AA A1")
    octet = cursor.number(1, "command")
    sequence = cursor.number(2, "sequence")
    command: Command
    match octet:
        case 1:
            command = Hello(
                sequence,
                ipaddress=cursor.string("ipaddress"),
                port=cursor.number(2, "port"),
                pools=cursor.strings("pools"),
                status=cursor.number(1, "status"),
                headers=cursor.dictionary("headers"),
            )
        case 2:
            command = Alive(sequence, cursor.rest())
        case 3:
            command = Broadcast(sequence, cursor.string("pool"), cursor.rest())
        case 4:
            command = Join(sequence, cursor.string("pool"), cursor.number(1, "status"))
        case 5:
            command = Leave(sequence, cursor.string("pool"), cursor.number(1, "status"))
        case 6:
            command = Ping(sequence)
        case 7:
            command = DecenAck(sequence)
        case _:
            raise Malformed(f"command: {octet:#04x} is not one of 0x01 to 0x07")
    cursor.end("command")
    return command


# The fast path.


def assemble(octet: int, sequence: int, fields: bytes) -> bytes:
    """A command from its encoded fields. The fields of a BROADCAST are encoded once for all its receivers."""
    return _HEADER.pack(SIGNATURE, octet, sequence) + fields


def read_header(data: bytes) -> tuple[int, int]:
    """The command's octet and its sequence number, without a look at the fields."""
    if len(data) < HEADER_BYTES or data[:2] != SIGNATURE:
        raise Malformed("no signature and number")
    return data[2], data[3] << 8 | data[4]


def broadcast_content_at(data: bytes) -> int:
    """Where the content of a BROADCAST begins: after the header and the pool's name, which its size precedes.

    The pool's name is not checked. The caller compares it, as encoded, with the names of its own pools.
    """
    size = data[HEADER_BYTES] if len(data) > HEADER_BYTES else 0
    return HEADER_BYTES + 1 + size
