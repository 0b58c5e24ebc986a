"""What nodes say to each other about the graph: the messages of graph.txt, and two more for whoever misses much.

Each is the body of a parcel of the GRAPH layer, named by its first octet; what may be large is the parcel's payload.
Decoding checks form and bounds, trusts nothing, and raises `Malformed` alone. Byte tables and hex examples:
docs/protocol/graph.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, assert_never

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.graph.messages.event import EVENT_BYTES_MAX, ID_BYTES
from chaplain.link.auth.identity import KEY_BYTES, SIGNATURE_BYTES
from chaplain.wire.primitives import Cursor, put_number, put_string

ITEMS_MAX = 4096
CONFIRMATIONS_MAX = 255
"""Carried with one event; more follow in `Inv`."""
INV_MAX = 4096
ASKED_MAX = 1024
LEAVES_MAX = 512
LOCATOR_MAX = 255
STREAMS_MAX = 4096

_EVENTS, _INV, _GETDATA, _SYNC, _FETCH, _FETCHED = range(1, 7)

FIRST, AGAIN = 1, 2
"""Flags of `EventBatch`: a first broadcast; sent again because it is unread, so tell us who confirmed it."""


class Confirmation(Frozen, frozen=True):
    """A member's signed word that it has this event, hence all its ancestors, on disk."""

    member: bytes
    event: bytes
    signature: bytes


class Item(Frozen, frozen=True):
    """An event's bytes, and the confirmations that travel with it."""

    raw: bytes
    confirmations: tuple[tuple[bytes, bytes], ...] = ()
    """Member and signature."""


class EventBatch(Frozen, frozen=True):
    items: tuple[Item, ...]
    flags: int = 0


class Inv(Frozen, frozen=True):
    stream: str
    confirmations: tuple[Confirmation, ...]


class GetData(Frozen, frozen=True):
    stream: str
    ids: tuple[bytes, ...]


class Leaves(Frozen, frozen=True):
    """What a node has of one stream, on disk: all ancestors of its leaves."""

    stream: str
    floor: int
    """Events below this height were pruned there."""
    events: int
    ids: tuple[bytes, ...]


class SyncEvent(Frozen, frozen=True):
    streams: tuple[Leaves, ...]


class FetchMissing(Frozen, frozen=True):
    """Send me what I lack. I have the events named here, and their ancestors."""

    stream: str
    token: int
    """Of the asker's own choice; names the list that the answerer makes at the first page."""
    start: int
    """Which of the events on that list to go on with."""
    locator: tuple[bytes, ...]


class Fetched(Frozen, frozen=True):
    stream: str
    token: int
    next: int
    """Where the next page starts."""
    done: bool
    floor: int
    items: tuple[Item, ...]


GraphMessage: TypeAlias = EventBatch | Inv | GetData | SyncEvent | FetchMissing | Fetched


def encode(message: GraphMessage) -> tuple[bytes, bytes]:
    """Body and payload."""
    match message:
        case EventBatch():
            return bytes((_EVENTS, message.flags)), _items(message.items)
        case Inv():
            words = [one.member + one.event + one.signature for one in message.confirmations]
            return bytes((_INV,)) + put_string(message.stream), b"".join(words)
        case GetData():
            return bytes((_GETDATA,)) + put_string(message.stream), b"".join(message.ids)
        case SyncEvent():
            return bytes((_SYNC,)), b"".join(map(_leaves, message.streams))
        case FetchMissing():
            head = _FETCH.to_bytes(1, "big") + put_string(message.stream)
            numbers = put_number(message.token, 4) + put_number(message.start, 4)
            return b"".join((head, numbers, put_number(len(message.locator), 1), *message.locator)), b""
        case Fetched():
            head = _FETCHED.to_bytes(1, "big") + put_string(message.stream)
            numbers = put_number(message.token, 4) + put_number(message.next, 4)
            return b"".join((head, numbers, put_number(message.done, 1), put_number(message.floor, 4))), _items(
                message.items
            )
        case _:
            assert_never(message)


def _items(items: Sequence[Item]) -> bytes:
    parts: list[bytes] = []
    for item in items:
        parts += (len(item.raw).to_bytes(4, "big"), item.raw, len(item.confirmations).to_bytes(1, "big"))
        for member, signature in item.confirmations:
            parts += (member, signature)
    return b"".join(parts)


def _leaves(leaves: Leaves) -> bytes:
    head = put_string(leaves.stream) + put_number(leaves.floor, 4) + put_number(leaves.events, 8)
    return b"".join((head, put_number(len(leaves.ids), 2), *leaves.ids))


def decode(body: bytes, payload: bytes) -> GraphMessage:
    cursor = Cursor(body)
    kind = cursor.number(1, "kind")
    message: GraphMessage
    match kind:
        case 1:
            message = EventBatch(_read_items(payload), cursor.number(1, "flags"))
        case 2:
            message = Inv(_name(cursor), _read_confirmations(payload))
        case 3:
            message = GetData(_name(cursor), _read_ids(payload, ASKED_MAX))
        case 4:
            message = SyncEvent(_read_leaves(payload))
        case 5 | 6:
            message = _read_fetch(cursor, payload) if kind == _FETCH else _read_fetched(cursor, payload)
        case _:
            raise Malformed(f"graph: {kind} is no kind of message")
    cursor.end("graph message")
    return message


def _name(cursor: Cursor) -> str:
    stream = cursor.string("stream")
    if not stream:
        raise Malformed("graph: a stream has a name")
    return stream


def _read_items(payload: bytes) -> tuple[Item, ...]:
    cursor = Cursor(payload)
    items: list[Item] = []
    while cursor.position < len(payload):
        if len(items) >= ITEMS_MAX:
            raise Malformed(f"graph: more than {ITEMS_MAX} events in one message")
        size = cursor.number(4, "event size")
        if size > EVENT_BYTES_MAX:
            raise Malformed(f"graph: an event of {size} octets")
        raw = cursor.take(size, "event")
        count = cursor.number(1, "confirmations")
        pairs = tuple((cursor.take(KEY_BYTES, "member"), cursor.take(SIGNATURE_BYTES, "word")) for _ in range(count))
        items.append(Item(raw, pairs))
    return tuple(items)


def _read_confirmations(payload: bytes) -> tuple[Confirmation, ...]:
    size = KEY_BYTES + ID_BYTES + SIGNATURE_BYTES
    if len(payload) % size or len(payload) > size * INV_MAX:
        raise Malformed(f"graph: {len(payload)} octets are no confirmations")
    cursor = Cursor(payload)
    return tuple(
        Confirmation(cursor.take(KEY_BYTES, ""), cursor.take(ID_BYTES, ""), cursor.take(SIGNATURE_BYTES, ""))
        for _ in range(len(payload) // size)
    )


def _read_ids(payload: bytes, count_max: int) -> tuple[bytes, ...]:
    if len(payload) % ID_BYTES or len(payload) > ID_BYTES * count_max:
        raise Malformed(f"graph: {len(payload)} octets are no ids, or too many")
    return tuple(payload[at : at + ID_BYTES] for at in range(0, len(payload), ID_BYTES))


def _read_leaves(payload: bytes) -> tuple[Leaves, ...]:
    cursor = Cursor(payload)
    found: list[Leaves] = []
    while cursor.position < len(payload):
        if len(found) >= STREAMS_MAX:
            raise Malformed(f"graph: more than {STREAMS_MAX} streams in one message")
        stream, floor, events = _name(cursor), cursor.number(4, "floor"), cursor.number(8, "events")
        count = cursor.number(2, "leaves")
        if count > LEAVES_MAX:
            raise Malformed(f"graph: {count} leaves in one message")
        found.append(Leaves(stream, floor, events, _read_ids(cursor.take(count * ID_BYTES, "leaves"), count)))
    return tuple(found)


def _read_fetch(cursor: Cursor, payload: bytes) -> FetchMissing:
    if payload:
        raise Malformed("graph: a fetch has no payload")
    stream, token, start = _name(cursor), cursor.number(4, "token"), cursor.number(4, "start")
    count = cursor.number(1, "locator")
    return FetchMissing(stream, token, start, _read_ids(cursor.take(count * ID_BYTES, "locator"), LOCATOR_MAX))


def _read_fetched(cursor: Cursor, payload: bytes) -> Fetched:
    stream, token, following = _name(cursor), cursor.number(4, "token"), cursor.number(4, "next")
    done = cursor.number(1, "done")
    if done > 1:
        raise Malformed("graph: done is 0 or 1")
    return Fetched(stream, token, following, bool(done), cursor.number(4, "floor"), _read_items(payload))
