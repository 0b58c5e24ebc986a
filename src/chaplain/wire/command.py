"""The seven commands of mesh.txt, byte for byte as they are once the seal is off.

    command = AA A1, one octet naming the command, two octets of sequence, then the command's own fields.

The content of ALIVE and BROADCAST is all that follows their fields: sealed, command and content are one frame.
Byte tables and hex examples: docs/protocol/mesh.md.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.wire.primitives import Cursor, put_dictionary, put_number, put_string, put_strings

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

_HELLO, _ALIVE, _BROADCAST, _JOIN, _LEAVE, _PING, _DECENACK = range(1, 8)


def encode(command: Command) -> bytes:
    match command:
        case Hello():
            octet = _HELLO
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
            octet, fields = _ALIVE, command.content
        case Broadcast():
            octet, fields = _BROADCAST, put_string(command.pool) + command.content
        case Join():
            octet, fields = _JOIN, put_string(command.pool) + put_number(command.status, 1)
        case Leave():
            octet, fields = _LEAVE, put_string(command.pool) + put_number(command.status, 1)
        case Ping():
            octet, fields = _PING, b""
        case DecenAck():
            octet, fields = _DECENACK, b""
        case _:
            assert_never(command)
    return b"%b%c%b%b" % (SIGNATURE, octet, put_number(command.sequence, 2), fields)


def decode(data: bytes) -> Command:
    cursor = Cursor(data)
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
