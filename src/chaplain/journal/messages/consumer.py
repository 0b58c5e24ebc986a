"""Commands to named consumers: the messages of a pack of type `CONSUMER`, and the header of a pack of statements that
commits a consumer's position together with them.

    command = protocol 1 | kind 1 | consumer's name (string) | fields of the kind

Decides which octets are a command. Refuses to know whether a command is accepted: `execution.consumers` decides that.
Byte tables and hex examples: docs/protocol/consumers.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias, assert_never

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.write_request import check_stream
from chaplain.segment.headers import decode_headers
from chaplain.segment.layout import Bytes
from chaplain.segment.pack import decode_pack
from chaplain.wire.primitives import ByteReader, put_number, put_string

CONSUMER = 0xF3
"""Message type of a pack of commands. The pack is written to the name of the consumed stream and gets no offsets."""
HEADER = "chaplain-consumer"
"""Header of the first statement of a pack: stream (string) and command. Execution executes the pack only if it accepts
the command.
"""
PROTOCOL = 1
NAME_BYTES_MAX = 64
NONCE_BYTES = 16
SLOTS_MAX = 256
RANGES_MAX = 1024
"""Pairs or ranges of one command."""
COMMANDS_MAX = 256
"""Commands of one pack. Every node executes each of them, which may take some 200 microseconds."""
COMMANDS_BYTES_MAX = 64 * 1024
"""Octets of a pack of commands."""
LATEST = (1 << 64) - 1
"""As a start: the head of the stream when the command is executed."""
OFFSET_MAX = (1 << 63) - 1
UNDELIVERED = 1
"""Flag of `Return`: the application has not seen the messages, so the delivery does not count."""


class Mode(IntEnum):
    """How the messages of a stream are divided among the workers of a consumer."""

    SINGLE = 1
    """One worker at a time; the others stand by."""
    KEYED = 2
    """Each worker has slots of keys; messages of one key are processed in order."""
    QUEUE = 3
    """Each message goes to one worker, which acknowledges it by itself."""


class Join(Frozen, frozen=True):
    """Become a worker of the consumer, and create the consumer if it does not exist."""

    name: str
    nonce: bytes
    """Random octets by which the worker finds its token in the state."""
    mode: Mode
    slots: int
    """Keyed: how many slots the keys are divided into. Otherwise 1 for a single worker, and 0 for a queue."""
    lease_ms: int
    max_deliveries: int = 0
    """Queue: deliveries of a message before it is dead; 0 means any number."""
    dead_letter: str = ""
    """Queue: the stream to which workers write dead messages; if empty, they are dropped."""
    start: int = 0
    """The first offset of a new consumer, or `LATEST`."""


class Leave(Frozen, frozen=True):
    """Stop being a worker: its slots and its messages are free at once."""

    name: str
    token: int


class Touch(Frozen, frozen=True):
    """Show that the worker is alive. It answers a challenge, and extends the leases of its messages."""

    name: str
    token: int


class Challenge(Frozen, frozen=True):
    """Ask another worker to show that it is alive; after its lease time, remove it."""

    name: str
    token: int
    other: int
    """The token of the challenged worker."""


class Acknowledge(Frozen, frozen=True):
    """Single and keyed: everything below an offset is processed."""

    name: str
    token: int
    epoch: int
    """The latest epoch of the consumer that the worker knows. Slots that it got later are not affected."""
    through: int = 0
    """All slots of the worker are processed below this offset."""
    slots: tuple[tuple[int, int], ...] = ()
    """Slots that are processed further, each with its offset. All of them must be held, or nothing changes."""


class Release(Frozen, frozen=True):
    """Keyed: hand slots over to the workers that they are meant for."""

    name: str
    token: int
    slots: tuple[int, ...]


class Fetch(Frozen, frozen=True):
    """Queue: lease up to this many messages."""

    name: str
    token: int
    count: int


class Finish(Frozen, frozen=True):
    """Queue: the messages of these ranges are processed. Both ends are included."""

    name: str
    token: int
    ranges: tuple[tuple[int, int], ...]


class Return(Frozen, frozen=True):
    """Queue: deliver the messages of these ranges again, after a delay."""

    name: str
    token: int
    delay_ms: int
    flags: int
    ranges: tuple[tuple[int, int], ...]


class Reset(Frozen, frozen=True):
    """Continue at another offset. All workers have to join again."""

    name: str
    offset: int


class Remove(Frozen, frozen=True):
    """Delete the consumer."""

    name: str


Command: TypeAlias = Join | Leave | Touch | Challenge | Acknowledge | Release | Fetch | Finish | Return | Reset | Remove
_KINDS: dict[type[Command], int] = {
    Join: 1,
    Leave: 2,
    Touch: 3,
    Challenge: 4,
    Acknowledge: 5,
    Release: 6,
    Fetch: 7,
    Finish: 8,
    Return: 9,
    Reset: 10,
    Remove: 11,
}


def encode(command: Command) -> bytes:
    check_name(command.name)
    return b"%c%c%b%b" % (PROTOCOL, _KINDS[type(command)], put_string(command.name), _fields(command))


def _fields(command: Command) -> bytes:
    match command:
        case Join():
            numbers = put_number(command.mode, 1) + put_number(command.slots, 2) + put_number(command.lease_ms, 4)
            limits = put_number(command.max_deliveries, 2) + put_string(command.dead_letter)
            return b"".join((command.nonce, numbers, limits, put_number(command.start, 8)))
        case Leave() | Touch():
            return put_number(command.token, 8)
        case Challenge():
            return put_number(command.token, 8) + put_number(command.other, 8)
        case Acknowledge():
            head = (put_number(number, 8) for number in (command.token, command.epoch, command.through))
            pairs = (put_number(slot, 2) + put_number(offset, 8) for slot, offset in command.slots)
            return b"".join((*head, _count(command.slots), *pairs))
        case Release():
            slots = (put_number(slot, 2) for slot in command.slots)
            return b"".join((put_number(command.token, 8), _count(command.slots), *slots))
        case Fetch():
            return put_number(command.token, 8) + put_number(command.count, 4)
        case Finish():
            return put_number(command.token, 8) + _ranges(command.ranges)
        case Return():
            delay = put_number(command.delay_ms, 4) + put_number(command.flags, 1)
            return put_number(command.token, 8) + delay + _ranges(command.ranges)
        case Reset():
            return put_number(command.offset, 8)
        case Remove():
            return b""
        case _:
            assert_never(command)


def _count(items: Sequence[object]) -> bytes:
    if len(items) > RANGES_MAX:
        raise ValueError(f"a command has at most {RANGES_MAX} slots or ranges, not {len(items)}")
    return put_number(len(items), 2)


def _ranges(ranges: Sequence[tuple[int, int]]) -> bytes:
    return _count(ranges) + b"".join(put_number(first, 8) + put_number(last, 8) for first, last in ranges)


def decode(data: bytes) -> Command:
    cursor = ByteReader(data)
    protocol, kind = cursor.number(1, "protocol"), cursor.number(1, "kind")
    if protocol != PROTOCOL:
        raise Malformed(f"consumer: this program speaks protocol {PROTOCOL}")
    name = cursor.string("name")
    check_name(name)
    command = _decode_fields(cursor, kind, name)
    cursor.end("consumer")
    return command


def _decode_fields(cursor: ByteReader, kind: int, name: str) -> Command:
    if kind == _KINDS[Join]:
        return _join(cursor, name)
    if kind == _KINDS[Reset]:
        return Reset(name, _start(cursor))
    if kind == _KINDS[Remove]:
        return Remove(name)
    if kind > len(_KINDS) or not kind:
        raise Malformed(f"consumer: there is no kind {kind}")
    token = cursor.number(8, "token")
    if kind == _KINDS[Leave]:
        return Leave(name, token)
    if kind == _KINDS[Touch]:
        return Touch(name, token)
    if kind == _KINDS[Challenge]:
        return Challenge(name, token, cursor.number(8, "other"))
    if kind == _KINDS[Acknowledge]:
        epoch, through = cursor.number(8, "epoch"), _offset(cursor)
        pairs = tuple((cursor.number(2, "slot"), _offset(cursor)) for _ in range(_many(cursor)))
        _check_rising([slot for slot, _ in pairs])
        return Acknowledge(name, token, epoch, through, pairs)
    if kind == _KINDS[Release]:
        slots = tuple(cursor.number(2, "slot") for _ in range(_many(cursor)))
        _check_rising(slots)
        return Release(name, token, slots)
    if kind == _KINDS[Fetch]:
        return Fetch(name, token, cursor.number(4, "count"))
    if kind == _KINDS[Finish]:
        return Finish(name, token, _decode_ranges(cursor))
    delay_ms, flags = cursor.number(4, "delay"), cursor.number(1, "flags")
    if flags & ~UNDELIVERED:
        raise Malformed(f"consumer: flags {flags:#x} are not known")
    return Return(name, token, delay_ms, flags, _decode_ranges(cursor))


def _join(cursor: ByteReader, name: str) -> Join:
    nonce = cursor.take(NONCE_BYTES, "nonce")
    mode, slots, lease_ms = cursor.number(1, "mode"), cursor.number(2, "slots"), cursor.number(4, "lease")
    max_deliveries, dead_letter, start = cursor.number(2, "deliveries"), cursor.string("dead letter"), _start(cursor)
    if mode not in tuple(Mode):
        raise Malformed(f"consumer: there is no mode {mode}")
    least, most = {Mode.SINGLE: (1, 1), Mode.KEYED: (1, SLOTS_MAX), Mode.QUEUE: (0, 0)}[Mode(mode)]
    if not least <= slots <= most or not lease_ms:
        raise Malformed(f"consumer: {slots} slots in mode {mode}, a lease of {lease_ms} ms")
    if mode != Mode.QUEUE and (max_deliveries or dead_letter):
        raise Malformed("consumer: only a queue counts deliveries")
    if dead_letter:
        check_stream(dead_letter)
    return Join(name, nonce, Mode(mode), slots, lease_ms, max_deliveries, dead_letter, start)


def _start(cursor: ByteReader) -> int:
    start = cursor.number(8, "start")
    if start > OFFSET_MAX and start != LATEST:
        raise Malformed(f"consumer: {start} is no offset")
    return start


def _offset(cursor: ByteReader) -> int:
    offset = cursor.number(8, "offset")
    if offset > OFFSET_MAX:
        raise Malformed(f"consumer: {offset} is no offset")
    return offset


def _many(cursor: ByteReader) -> int:
    count = cursor.number(2, "count")
    if count > RANGES_MAX:
        raise Malformed(f"consumer: {count} slots or ranges, at most {RANGES_MAX}")
    return count


def _check_rising(numbers: Sequence[int]) -> None:
    if any(after <= before for before, after in pairwise(numbers)):
        raise Malformed("consumer: slots and ranges are in order, each once")


def _decode_ranges(cursor: ByteReader) -> tuple[tuple[int, int], ...]:
    ranges = tuple((_offset(cursor), _offset(cursor)) for _ in range(_many(cursor)))
    _check_rising([offset for first, last in ranges for offset in (2 * first, 2 * last + 1)])
    return ranges


@lru_cache(maxsize=1024)
def check_name(name: str) -> None:
    """Raise `Malformed` unless a consumer may have this name."""
    encoded = name.encode()
    if not 1 <= len(encoded) <= NAME_BYTES_MAX or not all(0x21 <= octet < 0x7F for octet in encoded):
        raise Malformed(f"a consumer's name has 1 to {NAME_BYTES_MAX} visible ASCII characters, not {name!r}")


def commands_of(raw: Bytes) -> list[Command]:
    """The commands of a pack of type `CONSUMER`."""
    if len(raw) > COMMANDS_BYTES_MAX:
        raise Malformed(f"consumer: a pack of commands has at most {COMMANDS_BYTES_MAX} octets, not {len(raw)}")
    pack = decode_pack(raw)
    if len(pack.values) > COMMANDS_MAX:
        raise Malformed(f"consumer: at most {COMMANDS_MAX} commands in a pack, not {len(pack.values)}")
    return [decode(value) for value in pack.values]


def encode_header(stream: str, command: Acknowledge | Finish) -> bytes:
    """The value of the header `HEADER`."""
    return put_string(stream) + encode(command)


def header_of(raw: Bytes) -> tuple[str, Acknowledge | Finish] | None:
    """The stream and the command in the headers of a pack's first message; None if there is none."""
    cells = decode_pack(raw).headers
    value = decode_headers(cells[0]).get(HEADER) if cells and cells[0] is not None else None
    if value is None:
        return None
    cursor = ByteReader(value)
    stream = cursor.string("stream")
    check_stream(stream)
    command = decode(cursor.rest())
    if not isinstance(command, Acknowledge | Finish):
        raise Malformed("consumer: a header only acknowledges")
    return stream, command
