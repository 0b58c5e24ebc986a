"""Bytes that nodes and clients may send to the graph."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

from chaplain.core import Drained, Persist, Persisted, Requested, Settled
from chaplain.errors import Malformed
from chaplain.graph.core import GraphCore
from chaplain.graph.events import EventsRead, ReadEvents
from chaplain.graph.messages import client, peer
from chaplain.graph.messages.client import Append, EventRow, Page, ReadArrivals, ReadSnapshot
from chaplain.graph.messages.event import EventDraft, ParentLink, decode, sign
from chaplain.graph.messages.peer import (
    Confirmation,
    EventBatch,
    Fetched,
    FetchMissing,
    GetData,
    Inv,
    Item,
    Leaves,
    SyncEvent,
)
from chaplain.graph.settings import GraphSettings
from chaplain.link.auth.identity import Identity

_WHO = Identity(bytes(32))
_FIRST = sign(EventDraft("notes", b"hello", 1), _WHO, "demo")
_NEXT = sign(
    EventDraft("notes", b"", 2, ParentLink(_FIRST.id, 0), (ParentLink(bytes(31) + b"\1", 3),), "ann"), _WHO, "demo"
)
_MESSAGES = (
    EventBatch((Item(_FIRST.raw, ((_WHO.key, bytes(64)),)), Item(_NEXT.raw)), 1),
    Inv("notes", (Confirmation(_WHO.key, _FIRST.id, bytes(64)),)),
    GetData("notes", (_FIRST.id, _NEXT.id)),
    SyncEvent((Leaves("notes", 1, 2, (_NEXT.id,)), Leaves("other", 0, 0, ()))),
    FetchMissing("notes", 7, 0, (_FIRST.id,)),
    Fetched("notes", 7, 1, True, 0, (Item(_FIRST.raw),)),
)


def _joined(message: peer.GraphMessage) -> bytes:
    body, payload = peer.encode(message)
    return len(body).to_bytes(2, "big") + body + payload


SEEDS = {
    "target_event": [_FIRST.raw, _NEXT.raw],
    "target_message": [_joined(message) for message in _MESSAGES],
    "target_request": [
        client.encode(one) for one in (Append("s"), ReadSnapshot("s", True, (_NEXT.id,)), ReadArrivals("s"))
    ],
    "target_client": [
        bytes((kind,)) + b"".join(number.to_bytes(8, "big") for number in (1, 2, 3)) for kind in range(4)
    ],
    "target_page": [client.encode(Page((EventRow(_FIRST.raw, 1, True, 2, False),), b"log", 1, 2, (), True))],
}


def target_event(data: bytes) -> None:
    try:
        event = decode(data)
    except Malformed:
        return
    assert event.head + event.content == data
    assert all(link.height < event.height for link in event.links)


def target_message(data: bytes) -> None:
    size = int.from_bytes(data[:2], "big")
    body, payload = data[2 : 2 + size], data[2 + size :]
    try:
        message = peer.decode(body, payload)
    except Malformed:
        return
    assert peer.encode(message) == (body, payload)


def target_request(data: bytes) -> None:
    try:
        request = client.decode_request(data)
    except Malformed:
        return
    assert client.decode_request(client.encode(request)) == request


def target_page(data: bytes) -> None:
    try:
        page = client.decode_answer(data, Page)
    except Malformed:
        return
    assert client.decode_answer(client.encode(page), Page) == page


def make_target_client() -> Callable[[bytes], None]:
    """A reader that goes on in the node's own order, with any numbers: an octet for what it reads, then 8 for each."""
    core, calls = _core(), count(100)

    def target(data: bytes) -> None:
        numbers = [int.from_bytes(data[at : at + 8], "big", signed=True) for at in (1, 9, 17)]
        kind, log = int.from_bytes(data[:1], "big"), core.context.log
        only_read = bool(kind & 2)
        if kind & 1:
            position, wait_ns, _ = numbers
            request: client.GraphRequest = ReadArrivals("notes", only_read, (), log, position, wait_ns)
        else:
            limit, height, wait_ns = numbers
            request = ReadSnapshot("notes", only_read, (_FIRST.id,), log, limit, height, data[:32], wait_ns)
        call = next(calls)
        settled = _settled(core, Requested(call, "ann", client.encode(request), b""))
        assert [one.call for one in settled] in ([], [call])
        for one in settled:
            assert one.kind in ("", "refused")
            assert one.kind or len(client.decode_answer(one.payload, Page).rows) <= 3

    return target


def _core() -> GraphCore:
    """One that has three events on its disk."""
    core = GraphCore(GraphSettings("demo"), _WHO, random.Random(1), now_ns=0, founders=[_WHO.key])
    for call in range(3):
        _settled(core, Requested(call, "ann", client.encode(Append("notes")), b"hello"))
    return core


def _settled(core: GraphCore, event: Requested) -> list[Settled]:
    """What clients are told, on a disk that writes and reads at once."""
    found: list[Settled] = []
    inbox: list[Requested | Drained | Persisted | EventsRead] = [event, Drained()]
    while inbox:
        for effect in core.step(0, inbox.pop(0)):
            if isinstance(effect, Persist):
                inbox += [Persisted(effect.ticket), Drained()]
            elif isinstance(effect, ReadEvents):
                inbox.append(EventsRead(effect.token, tuple(_FIRST.raw for _ in effect.places)))
            elif isinstance(effect, Settled):
                found.append(effect)
    return found
