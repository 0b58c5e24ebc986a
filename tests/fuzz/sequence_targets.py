"""Bytes that another node, a client or a node's answer may bring to the sequence."""

from __future__ import annotations

from chaplain.errors import Malformed
from chaplain.sequence import messages, requests
from chaplain.sequence.entry import (
    Ballot,
    Change,
    EntryKind,
    Member,
    decode_entries,
    encode_change,
    encode_members,
    encode_run,
    make_entry,
)
from chaplain.sequence.messages import Bearing, DscReq, Events, Grant, Lock, Refuse, Seq, Why
from chaplain.sequence.requests import Page, PageRun, PublishRequest, ReadRequest

_BEARING = Bearing(seat=7, history=9)
_BALLOT = Ballot(3, 7)
_ENTRIES = [
    make_entry(EntryKind.EVENTS, _BALLOT, 1, 7, encode_run("s", "ann", [b"a", b""]) + encode_run("t", "", [b"b"])),
    make_entry(EntryKind.CHANGE, _BALLOT, 1, 7, encode_change(Change(Member(5, 6), joins=True))),
    make_entry(EntryKind.FOUND, _BALLOT, 1, 7, encode_members([Member(1, 2), Member(3, 0)])),
    make_entry(EntryKind.PASS, _BALLOT, 1, 8),
]
_MESSAGES = [
    DscReq(_BEARING, {1: "tcp://127.0.0.1:1"}),
    Seq(_BEARING, 1, bytes(32), _BALLOT, 7, (Member(1, 2),), {"s": (3, bytes(32))}),
    Events(_BEARING, 1, bytes(32), _ENTRIES[0].encoded),
    Lock(_BEARING),
    Grant(_BEARING, _BALLOT, 1, bytes(32), b""),
    Refuse(_BEARING, Why.STALE),
]


def _packed(body: bytes, payload: bytes) -> bytes:
    return len(body).to_bytes(2, "big") + body + payload


SEEDS = {
    "target_message": [_packed(*messages.encode(message)) for message in _MESSAGES],
    "target_entries": [entry.encoded for entry in _ENTRIES] + [b"".join(entry.encoded for entry in _ENTRIES)],
    "target_request": [
        requests.encode(PublishRequest("ticks", [1, 2])),
        requests.encode(ReadRequest("ticks", 1, 0, 0)),
    ],
    "target_page": [requests.encode(Page(1, 1, 2, [PageRun(1, "ann", bytes(32), [b"a", b"b"])]))],
}


def target_message(data: bytes) -> None:
    size = int.from_bytes(data[:2], "big")
    body, payload = data[2 : 2 + size], data[2 + size :]
    try:
        message = messages.decode(body, payload)
    except Malformed:
        return
    assert messages.encode(message) == (body, payload)


def target_entries(data: bytes) -> None:
    try:
        entries = decode_entries(data)
    except Malformed:
        return
    assert b"".join(entry.encoded for entry in entries) == data
    for entry in entries:
        for run in entry.runs:
            assert sum(map(len, run.values())) == run.end - run.at


def target_request(data: bytes) -> None:
    try:
        request = requests.decode_request(data)
    except Malformed:
        return
    assert requests.decode_request(requests.encode(request)) == request


def target_page(data: bytes) -> None:
    try:
        page = requests.decode_page(data)
    except Malformed:
        return
    assert requests.decode_page(requests.encode(page)) == page
