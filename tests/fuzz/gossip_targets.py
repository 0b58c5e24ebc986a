"""Bytes that a proven peer may send as gossip."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

from chaplain.core import Woken
from chaplain.errors import Malformed
from chaplain.gossip import codec, payloads
from chaplain.gossip import member_record as cards
from chaplain.gossip.codec import (
    Accuse,
    Action,
    Cards,
    Compare,
    DiscoveredAck,
    EntryStanding,
    Have,
    ListEntry,
    MessageType,
    WantMessages,
)
from chaplain.gossip.core import GossipCore
from chaplain.gossip.events import EventId, GossipParcel, KeyStep, RegisterQuestion
from chaplain.gossip.payloads import Health, KeyRotationStep, LastHeard, QueryPayload, Response, UserEvent
from chaplain.gossip.seen import SeenMessages
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered
from chaplain.units import SECOND_NS
from chaplain.wire.parcel import Layer, Parcel

NOW_NS = 10**12
OWN, PEER = Identity(b"o" * 32), Identity(b"p" * 32)
_PEER = Peer(b"p" * 16, PEER.identifier, PEER.key, "tcp://127.0.0.1:7001")
_ID = EventId(PEER.identifier, 1, 5)
_CARD = cards.make(PEER, _PEER.endpoint, 2)
_CONTENTS = {
    MessageType.DISCOVERED: payloads.put_card(_CARD),
    MessageType.JOINED: payloads.put_card(_CARD),
    MessageType.HEALTH: payloads.put_health(Health(OWN.identifier, 1)),
    MessageType.STATUS: payloads.put_status(LastHeard(PEER.identifier, 1, 100)),
    MessageType.REFUTED: payloads.put_card(_CARD),
    MessageType.QUERY: payloads.put_query(QueryPayload("load", b"")),
    MessageType.ANSWER: payloads.put_response(Response(EventId(OWN.identifier, 1, 1), 1, True, b"x")),
    MessageType.USER: payloads.put_user(UserEvent("x", b"y")),
}
_KEYS = [payloads.put_key(KeyRotationStep(step, b"id", b"k" * 32)) for step in KeyStep]
_TYPED = [*_CONTENTS.items(), *((kind, key) for key in _KEYS for kind in (MessageType.KEY, MessageType.KEY_CONFIRMED))]
_MESSAGES = [codec.sign_message(PEER, _ID, kind, content, action=Action.NONE, target=0) for kind, content in _TYPED]
_LEAVES = [codec.sign_leave(PEER, _ID, subject, 1) for subject in (PEER.identifier, OWN.identifier)]
_OTHERS = [
    DiscoveredAck(_ID, _CARD),
    Cards((_CARD,), tuple(_LEAVES)),
    Compare(
        1,
        0,
        True,
        (ListEntry(PEER.identifier, 1, EntryStanding.LOST), ListEntry(OWN.identifier, 1, EntryStanding.GONE)),
    ),
    Have((_ID,)),
    WantMessages((_ID,)),
    Accuse(1),
]

SEEDS = {
    "target_told": [codec.encode(body) for body in (*_MESSAGES, *_LEAVES, *_OTHERS)],
    "target_decode": [codec.encode(body) for body in (*_MESSAGES, *_LEAVES, *_OTHERS)],
    "target_told_signed": [bytes((kind,)) + content for kind, content in _TYPED],
}


class _Hasty(Identity):
    """Signs nothing: every signature passes, so that what lies behind it is reached."""

    def sign(self, label: bytes, message: bytes) -> bytes:
        return bytes(64)


_HASTY_OWN, _HASTY_PEER = _Hasty(b"o" * 32), _Hasty(b"p" * 32)


def _any(key: bytes, label: bytes, message: bytes, signature: bytes) -> bool:
    return True


def _core() -> GossipCore:
    settings = GossipSettings(members_max=32, hearsay_max=8, left_max=4)
    core = GossipCore(_HASTY_OWN, b"o" * 16, "tcp://127.0.0.1:7000", settings, random.Random(1), NOW_NS, check=_any)
    core.step(NOW_NS, RegisterQuestion("load"))
    core.step(NOW_NS, Entered(_PEER, {}))
    core.step(NOW_NS, GossipParcel(_PEER, Parcel(PEER.identifier, Layer.GOSSIP, codec.encode(Cards((_CARD,))))))
    return core


def make_target_told() -> Callable[[bytes], None]:
    """A whole body, and a tick after it; now and then more of them, until a silent peer is suspected."""
    core = _core()
    now_ns, turns = NOW_NS, count(1)

    def target(data: bytes) -> None:
        nonlocal now_ns
        # A new memory for each input, or each message would be new only once.
        core._dissemination.seen = SeenMessages(core._settings, core._members.is_present)
        if PEER.identifier not in core._dissemination.sessions:
            core.step(now_ns, Entered(_PEER, {}))
        core.step(now_ns, GossipParcel(_PEER, Parcel(PEER.identifier, Layer.GOSSIP, data)))
        for _ in range(1 if next(turns) % 5 else 3):
            now_ns += 2 * SECOND_NS
            core.step(now_ns, Woken())
        assert len(core.members()) <= 36

    return target


def make_target_told_signed() -> Callable[[bytes], None]:
    """Content of any type, well signed: first octet the type, then the content."""
    told = make_target_told()

    def target(data: bytes) -> None:
        if data:
            signed = codec.sign_message(_HASTY_PEER, _ID, MessageType.USER, data[1:], action=Action.NONE, target=0)
            body = bytearray(codec.encode(signed))
            body[62] = data[0]
            told(bytes(body))

    return target


def target_decode(data: bytes) -> None:
    try:
        codec.encode(codec.decode(data))
    except Malformed:
        return
