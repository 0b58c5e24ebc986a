"""Hostile bytes for the link: knocks, greetings, sealed frames, and raw frames into a whole core."""

from __future__ import annotations

import random

from chaplain.core import Arrived, Knocked, Report
from chaplain.errors import Malformed
from chaplain.link.auth import connect_token, hello
from chaplain.link.auth.identity import Identity, from_text
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.events import Register
from chaplain.link.sessions import batching
from chaplain.link.sessions.aead import BUNDLED
from tests.support.link_stage import START_NS, Stage, pair

_STAGE, _ALICE, _BOB = pair()
_CLIENT_IDENTITY = Identity(b"c" * 32)
_BOB.step(Register({_CLIENT_IDENTITY.key: "client"}))
_BETWEEN = _STAGE.between(_ALICE, _BOB)
_ALICE.say(_BOB, b"\xaa\xa1\x06\x00\x02")
_SEALED = _BETWEEN.there.pop()
_BUNDLE = batching.pack([b"one", b"two", b"three"])
_RING = KeyRing(bytes(range(32)))


def _client_greeting() -> bytes:
    stage = Stage(3)
    node = stage.node("node")
    client = stage.client("client", frozenset({node.core.identity.key}), _CLIENT_IDENTITY)
    node.step(Register({_CLIENT_IDENTITY.key: "client"}))
    client.meet(node)
    stage.connect()
    return stage.between(client, node).there[0]


_GREETING = _BETWEEN.log[0]
_CLIENT_GREETING = _client_greeting()
_NODE_KNOCK = connect_token.knock_as_node(_RING, 7, START_NS, random.Random(1))
_CLIENT_KNOCK = connect_token.knock_as_client(_CLIENT_IDENTITY, START_NS, random.Random(1))


def target_knock(data: bytes) -> None:
    try:
        decoded = connect_token.decode(data)
    except Malformed:
        return
    assert connect_token.encode(decoded) == data


def target_door(data: bytes) -> None:
    """Name and proof as one, cut by the first octet: refused unless it is one of ours."""
    size = data[0] if data else 0
    name, proof = data[1 : 1 + size], data[1 + size :]
    (*_, answer) = _BOB.core.step(START_NS, Knocked(b"r", name, proof, "127.0.0.1"))
    assert type(answer).__name__ == "Refuse" or (name, proof) in (_NODE_KNOCK, _CLIENT_KNOCK)


def target_greeting(data: bytes) -> None:
    try:
        envelope = hello.open_envelope(data)
        claim, _ = hello.open_hello(envelope.hello)
    except Malformed:
        return
    assert len(claim.instance) == len(claim.nonce) == 16


def target_hello(data: bytes) -> None:
    try:
        hello.open_hello(data)
    except Malformed:
        return


def target_octets(data: bytes) -> None:
    try:
        from_text(data.decode("latin-1"), 16, "fuzz")
    except Malformed:
        return


def target_identity_file(data: bytes) -> None:
    for parse in (Identity.parse, KeyRing.parse):
        try:
            parse(data.decode("latin-1"))
        except Malformed:
            continue


def target_sealed_frame(data: bytes) -> None:
    """Into an established session: nothing opens but what its peer sealed."""
    session = _BOB.core._tables.sessions[_ALICE.instance]
    before = session.heard
    effects = _BOB.core.step(START_NS, Arrived(_ALICE.core.route, data))
    if data == _SEALED:
        session.heard = before
    else:
        assert session.heard == before
        assert all(isinstance(effect, Report) for effect in effects)


def target_bundle(data: bytes) -> None:
    try:
        commands = batching.unpack(data)
    except Malformed:
        return
    assert batching.pack(commands) == data


def target_sealed_bundle(data: bytes) -> None:
    """From a peer that proved itself and writes nonsense: any counter, any bundle."""
    session = _BOB.core._tables.sessions[_ALICE.instance]
    before = session.heard
    counter = int.from_bytes(data[:8], "big")
    frame = _ALICE.core._tables.sessions[_BOB.instance]._closing.close(counter, 0, data[8:], BUNDLED)
    effects = _BOB.core.step(START_NS, Arrived(_ALICE.core.route, frame))
    assert session.heard == (before if all(isinstance(effect, Report) for effect in effects) else counter)
    session.heard = before


def target_raw_frame(data: bytes) -> None:
    """From a stranger's route: at most a report, or an answer to a genuine greeting."""
    route = b"\x01" + _ALICE.instance if data[:1] == b"\x11" else b"\x01" + bytes(16)
    effects = _BOB.core.step(START_NS, Arrived(route, data))
    if data not in (_GREETING, _CLIENT_GREETING):
        assert all(isinstance(effect, Report) for effect in effects)


SEEDS = {
    "target_knock": [_NODE_KNOCK[0], _CLIENT_KNOCK[0]],
    "target_door": [bytes([len(name)]) + name + proof for name, proof in (_NODE_KNOCK, _CLIENT_KNOCK)],
    "target_greeting": [_GREETING, _CLIENT_GREETING],
    "target_hello": [hello.open_envelope(_GREETING).hello],
    "target_octets": [b"AAAAAAAAAAAAAAAAAAAAAA"],
    "target_identity_file": [_CLIENT_IDENTITY.text().encode(), _RING.text().encode()],
    "target_sealed_frame": [_SEALED],
    "target_bundle": [_BUNDLE],
    "target_sealed_bundle": [(4).to_bytes(8, "big") + _BUNDLE, b"\xff" * 8 + _BUNDLE],
    "target_raw_frame": [_GREETING, _CLIENT_GREETING, _SEALED],
}
