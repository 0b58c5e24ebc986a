"""Bytes a client may send to the client service, and a node to a client."""

from __future__ import annotations

from chaplain.client_service import messages
from chaplain.client_service.messages import AskQuestion, Done, FireEvent, JoinAPool, PoolItem
from chaplain.errors import Malformed
from chaplain.wire import parcel

SEEDS = {
    "target_request": [
        parcel.decode(messages.encode(1, request)).body
        for request in (AskQuestion(1, "version", 10**9), FireEvent(2, "deployed"), JoinAPool(3, "chat"))
    ],
    "target_reply": [
        parcel.decode(messages.encode(1, reply)).body for reply in (Done(1), PoolItem(2, "chat", 3, "ann", 0))
    ],
}


def target_request(data: bytes) -> None:
    try:
        request = messages.decode_request(data)
    except Malformed:
        return
    assert messages.decode_request(parcel.decode(messages.encode(1, request)).body) == request


def target_reply(data: bytes) -> None:
    try:
        reply = messages.decode_reply(data)
    except Malformed:
        return
    assert messages.decode_reply(parcel.decode(messages.encode(1, reply)).body) == reply
