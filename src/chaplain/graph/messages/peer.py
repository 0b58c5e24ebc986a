"""Peer messages of the graph layer: those of graph.txt, and two more for bulk fetches.

Each message is the body of a GRAPH parcel; the first byte is its kind, and large parts are the parcel's payload.
Decoding checks form and bounds, trusts nothing, and raises only `Malformed`. Byte tables and hex examples:
docs/protocol/graph.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, assert_never

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.graph.messages.event import EVENT_BYTES_MAX, ID_BYTES
from chaplain.link.auth.identity import KEY_BYTES, SIGNATURE_BYTES
from chaplain.wire.primitives import ByteReader, put_number, put_string

ITEMS_MAX = 4096
CONFIRMATIONS_MAX = 255
"""Confirmations sent with one event; further ones follow in `Inv`."""
INV_MAX = 4096
ASKED_MAX = 1024
LEAVES_MAX = 512
LOCATOR_MAX = 255
STREAMS_MAX = 4096

_EVENTS, _INV, _GETDATA, _SYNC, _FETCH, _FETCHED = range(1, 7)

FIRST, AGAIN = 1, 2
"""Flags of `EventBatch`. FIRST: the author's first broadcast. AGAIN: resent because the event is unread; the receiver
answers with its confirmations.
"""


class Confirmation(Frozen, frozen=True):
    """A member's signed statement that this event, and hence all its ancestors, are on its disk."""

    member: bytes
    event: bytes
    signature: bytes


class Item(Frozen, frozen=True):
    """An event's bytes, and the confirmations sent with it."""

    raw: bytes
    confirmations: tuple[tuple[bytes, bytes], ...] = ()
    """Pairs of member key and signature."""


class EventBatch(Frozen, frozen=True):
    items: tuple[Item, ...]
    flags: int = 0


class Inv(Frozen, frozen=True):
    """Confirmations of events of one stream."""

    stream: str
    confirmations: tuple[Confirmation, ...]


class GetData(Frozen, frozen=True):
    """Request for the events with these ids."""

    stream: str
    ids: tuple[bytes, ...]


class Leaves(Frozen, frozen=True):
    """The leaves of one stream at the sender. The sender has all their ancestors on disk."""

    stream: str
    floor: int
    """The sender has pruned events below this height."""
    events: int
    ids: tuple[bytes, ...]


class SyncEvent(Frozen, frozen=True):
    streams: tuple[Leaves, ...]


class FetchMissing(Frozen, frozen=True):
    """Request for all events that the sender lacks. The sender has the events of the locator and their ancestors."""

    stream: str
    token: int
    """Chosen by the requester; names the list that the server computes for the first page."""
    start: int
    """Index in that list of the first event of this page."""
    locator: tuple[bytes, ...]


class Fetched(Frozen, frozen=True):
    """One page of the answer to `FetchMissing`."""

    stream: str
    token: int
    next: int
    """Index of the next page's first event."""
    done: bool
    floor: int
    items: tuple[Item, ...]


GraphMessage: TypeAlias = EventBatch | Inv | GetData | SyncEvent | FetchMissing | Fetched


def encode(message: GraphMessage) -> tuple[bytes, bytes]:
    """The body and the payload of the parcel."""
    match message:
        case EventBatch():
            return bytes((_EVENTS, message.flags)), _items(message.items)
        case Inv():
            confirmations = [one.member + one.event + one.signature for one in message.confirmations]
            return bytes((_INV,)) + put_string(message.stream), b"".join(confirmations)
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
    cursor = ByteReader(body)
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


def _name(cursor: ByteReader) -> str:
    stream = cursor.string("stream")
    if not stream:
        raise Malformed("graph: a stream has a name")
    return stream


def _read_items(payload: bytes) -> tuple[Item, ...]:
    cursor = ByteReader(payload)
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
    cursor = ByteReader(payload)
    return tuple(
        Confirmation(cursor.take(KEY_BYTES, ""), cursor.take(ID_BYTES, ""), cursor.take(SIGNATURE_BYTES, ""))
        for _ in range(len(payload) // size)
    )


def _read_ids(payload: bytes, count_max: int) -> tuple[bytes, ...]:
    if len(payload) % ID_BYTES or len(payload) > ID_BYTES * count_max:
        raise Malformed(f"graph: {len(payload)} octets are no ids, or too many")
    return tuple(payload[at : at + ID_BYTES] for at in range(0, len(payload), ID_BYTES))


def _read_leaves(payload: bytes) -> tuple[Leaves, ...]:
    cursor = ByteReader(payload)
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


def _read_fetch(cursor: ByteReader, payload: bytes) -> FetchMissing:
    if payload:
        raise Malformed("graph: a fetch has no payload")
    stream, token, start = _name(cursor), cursor.number(4, "token"), cursor.number(4, "start")
    count = cursor.number(1, "locator")
    return FetchMissing(stream, token, start, _read_ids(cursor.take(count * ID_BYTES, "locator"), LOCATOR_MAX))


def _read_fetched(cursor: ByteReader, payload: bytes) -> Fetched:
    stream, token, following = _name(cursor), cursor.number(4, "token"), cursor.number(4, "next")
    done = cursor.number(1, "done")
    if done > 1:
        raise Malformed("graph: done is 0 or 1")
    return Fetched(stream, token, following, bool(done), cursor.number(4, "floor"), _read_items(payload))
