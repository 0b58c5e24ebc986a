"""Bytes that nodes and clients may send to the graph."""

from __future__ import annotations

from chaplain.errors import Malformed
from chaplain.graph import messages, requests
from chaplain.graph.event import Draft, Link, decode, sign
from chaplain.graph.messages import Confirmation, Events, Fetch, Fetched, GetData, Inv, Item, Leaves, SyncEvent
from chaplain.graph.requests import Append, Page, ReadArrivals, ReadSnapshot, Row
from chaplain.link.identity import Identity

_WHO = Identity(bytes(32))
_FIRST = sign(Draft("notes", b"hello", 1), _WHO, "demo")
_NEXT = sign(Draft("notes", b"", 2, Link(_FIRST.id, 0), (Link(bytes(31) + b"\1", 3),), "ann"), _WHO, "demo")
_MESSAGES = (
    Events((Item(_FIRST.raw, ((_WHO.key, bytes(64)),)), Item(_NEXT.raw)), 1),
    Inv("notes", (Confirmation(_WHO.key, _FIRST.id, bytes(64)),)),
    GetData("notes", (_FIRST.id, _NEXT.id)),
    SyncEvent((Leaves("notes", 1, 2, (_NEXT.id,)), Leaves("other", 0, 0, ()))),
    Fetch("notes", 7, 0, (_FIRST.id,)),
    Fetched("notes", 7, 1, True, 0, (Item(_FIRST.raw),)),
)


def _joined(message: messages.GraphMessage) -> bytes:
    body, payload = messages.encode(message)
    return len(body).to_bytes(2, "big") + body + payload


SEEDS = {
    "target_event": [_FIRST.raw, _NEXT.raw],
    "target_message": [_joined(message) for message in _MESSAGES],
    "target_request": [
        requests.encode(one) for one in (Append("s"), ReadSnapshot("s", True, (_NEXT.id,)), ReadArrivals("s"))
    ],
    "target_page": [requests.encode(Page((Row(_FIRST.raw, 1, True, 2, False),), b"log", 1, 2, (), True))],
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
        message = messages.decode(body, payload)
    except Malformed:
        return
    assert messages.encode(message) == (body, payload)


def target_request(data: bytes) -> None:
    try:
        request = requests.decode_request(data)
    except Malformed:
        return
    assert requests.decode_request(requests.encode(request)) == request


def target_page(data: bytes) -> None:
    try:
        page = requests.decode_answer(data, Page)
    except Malformed:
        return
    assert requests.decode_answer(requests.encode(page), Page) == page
