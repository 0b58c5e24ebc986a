"""The bundle: several commands in one sealed frame, which share the cost of sealing and sending.

    count 2 | size 2, count times | commands

Invariants: a bundle contains at least two commands and no empty one, so that every list of commands has exactly one
encoding; nothing follows the last command. Byte table and hex example: docs/connection.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from chaplain.errors import Malformed

COMMANDS_MIN = 2
_COUNT_BYTES = 2
_SIZE_BYTES = 2


def pack(commands: Sequence[bytes]) -> bytes:
    assert len(commands) >= COMMANDS_MIN
    assert all(commands), "an empty command is the link's own confirmation"
    table = struct.pack(f">{1 + len(commands)}H", len(commands), *map(len, commands))
    return b"".join((table, *commands))


def unpack(data: bytes) -> tuple[bytes, ...]:
    """Return the commands. The data passed its seal, but even an authenticated peer may send a malformed bundle."""
    whole = len(data)
    count = data[0] << 8 | data[1] if whole >= _COUNT_BYTES else 0
    at = _COUNT_BYTES + count * _SIZE_BYTES
    if count < COMMANDS_MIN or at > whole:
        raise Malformed(f"bundle: {whole} octets cannot hold a table of {count} commands")
    sizes = struct.unpack_from(f">{count}H", data, _COUNT_BYTES)
    if 0 in sizes:
        raise Malformed("bundle: no command may be empty")
    commands = []
    for size in sizes:
        commands.append(data[at : at + size])
        at += size
    if at != whole:
        raise Malformed(f"bundle: commands of {at} octets announced, {whole} there")
    return tuple(commands)
