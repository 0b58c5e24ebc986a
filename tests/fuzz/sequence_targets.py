"""Bytes that another node, a client or a node's answer may bring to the sequence."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

from chaplain.core import Drained, Requested, Settled
from chaplain.errors import Malformed
from chaplain.sequence.core import SequenceCore
from chaplain.sequence.messages import client, peer
from chaplain.sequence.messages.client import PageRun, PublishRequest, ReadRequest, SequencePage
from chaplain.sequence.messages.entry import (
    Ballot,
    EntryKind,
    SeatedMember,
    WorkSetChange,
    decode_entries,
    encode_change,
    encode_members,
    encode_run,
    make_entry,
)
from chaplain.sequence.messages.peer import DscReq, EntryBatch, Lock, LockGranted, LockRefused, PeerState, Seq, Why
from chaplain.sequence.service import SequenceLayer
from chaplain.sequence.settings import SequenceSettings

NOW_NS = 10**12
_PEER_STATE = PeerState(seat=7, history=9)
_BALLOT = Ballot(3, 7)
_ENTRIES = [
    make_entry(EntryKind.EVENTS, _BALLOT, 1, 7, encode_run("s", "ann", [b"a", b""]) + encode_run("t", "", [b"b"])),
    make_entry(EntryKind.CHANGE, _BALLOT, 1, 7, encode_change(WorkSetChange(SeatedMember(5, 6), joins=True))),
    make_entry(EntryKind.FOUND, _BALLOT, 1, 7, encode_members([SeatedMember(1, 2), SeatedMember(3, 0)])),
    make_entry(EntryKind.PASS, _BALLOT, 1, 8),
]
_MESSAGES = [
    DscReq(_PEER_STATE, {1: "tcp://127.0.0.1:1"}),
    Seq(_PEER_STATE, 1, bytes(32), _BALLOT, 7, (SeatedMember(1, 2),), {"s": (3, bytes(32))}),
    EntryBatch(_PEER_STATE, 1, bytes(32), _ENTRIES[0].encoded),
    Lock(_PEER_STATE),
    LockGranted(_PEER_STATE, _BALLOT, 1, bytes(32), b""),
    LockRefused(_PEER_STATE, Why.STALE),
]


def _packed(body: bytes, payload: bytes) -> bytes:
    return len(body).to_bytes(2, "big") + body + payload


SEEDS = {
    "target_message": [_packed(*peer.encode(message)) for message in _MESSAGES],
    "target_entries": [entry.encoded for entry in _ENTRIES] + [b"".join(entry.encoded for entry in _ENTRIES)],
    "target_request": [
        client.encode(PublishRequest("ticks", [1, 2])),
        client.encode(ReadRequest("ticks", 1, 0, 0)),
    ],
    "target_client": [
        bytes((kind,)) + b"".join(number.to_bytes(8, "big") for number in (1, 2, 3)) for kind in range(2)
    ],
    "target_page": [client.encode(SequencePage(1, 1, 2, [PageRun(1, "ann", bytes(32), [b"a", b"b"])]))],
}


def target_message(data: bytes) -> None:
    size = int.from_bytes(data[:2], "big")
    body, payload = data[2 : 2 + size], data[2 + size :]
    try:
        message = peer.decode(body, payload)
    except Malformed:
        return
    assert peer.encode(message) == (body, payload)


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
        request = client.decode_request(data)
    except Malformed:
        return
    assert client.decode_request(client.encode(request)) == request


def target_page(data: bytes) -> None:
    try:
        page = client.decode_page(data)
    except Malformed:
        return
    assert client.decode_page(client.encode(page)) == page


def make_target_client() -> Callable[[bytes], None]:
    """Any numbers: an octet says whether they are what a reader asks for or lengths of events, then 8 octets each."""
    layer, calls = _layer(), count(100)

    def target(data: bytes) -> None:
        numbers = [int.from_bytes(data[at : at + 8], "big", signed=True) for at in (1, 9, 17)]
        request = ReadRequest("ticks", *numbers) if data[:1] < b"\x01" else PublishRequest("ticks", numbers)
        call = next(calls)
        effects = layer.step(NOW_NS, Requested(call, "ann", client.encode(request), b"abcdef"))
        effects += layer.step(NOW_NS, Drained())
        settled = [one for one in effects if isinstance(one, Settled) and one.call == call]
        assert len(settled) <= 1
        for one in settled:
            assert one.kind or isinstance(request, PublishRequest) or client.decode_page(one.payload).history

    return target


def _layer() -> SequenceLayer:
    """Of a node that is alone and has numbered three events."""
    core = SequenceCore(SequenceSettings(7, lonely_ns=0), random.Random(1), NOW_NS)
    layer = SequenceLayer(core)
    layer.step(NOW_NS, Drained())
    layer.step(NOW_NS, Requested(1, "ann", client.encode(PublishRequest("ticks", [1, 1, 1])), b"abc"))
    layer.step(NOW_NS, Drained())
    assert layer.core.context.events == 3
    return layer
