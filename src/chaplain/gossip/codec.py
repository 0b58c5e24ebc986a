"""The bodies of gossip parcels. Every body begins with: major 1 | minor 1 | kind 1.

LEAVE has the same layout in every version, for ever, so that every node can always be taken off the list. All other
kinds are decoded only from senders of our major version; `decode` raises `OtherVersion` for the rest.

MESSAGE and LEAVE are forwarded. They carry their origin's signature over exactly the octets after `hops`, and are
forwarded unchanged. The other kinds live for one hop, where the link's seal authenticates the sender.
Byte tables and hex examples: docs/protocol/gossip.md.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TypeAlias, assert_never

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.gossip import member_record as cards
from chaplain.gossip.events import EventId
from chaplain.gossip.member_record import VERSION, GossipSigner, MemberRecord, Verify
from chaplain.link.auth.identity import SIGNATURE_BYTES, identifier_of
from chaplain.wire.primitives import ByteReader, put_number

_LEAVE, _MESSAGE, _ACKNOWLEDGE, _CARDS, _COMPARE, _HAVE, _WANT, _ACCUSE = range(1, 9)
_LEAVE_FIELDS = struct.Struct(">IQQ32sIQ")
_MESSAGE_FIELDS = struct.Struct(">BBIQQ32sIBB")
_ENTRY = struct.Struct(">IQB")
LEAVE_BYTES = _LEAVE_FIELDS.size + SIGNATURE_BYTES
_MESSAGE_LABEL = b"gossip message"
_LEAVE_LABEL = b"gossip leave"


class OtherVersion(Malformed):
    """The sender uses another major version."""

    def __init__(self, major: int, minor: int) -> None:
        super().__init__(f"gossip: they speak version {major}.{minor}, we speak {VERSION[0]}.{VERSION[1]}")
        self.version = (major, minor)


class MessageType(IntEnum):
    """The subject of a message."""

    DISCOVERED = 1
    JOINED = 2
    HEALTH = 3
    STATUS = 4
    REFUTED = 5
    QUERY = 6
    ANSWER = 7
    USER = 8
    KEY = 9
    KEY_CONFIRMED = 10


class Action(IntEnum):
    """The action that a receiver is expected to take beside forwarding."""

    NONE = 0
    ACKNOWLEDGE = 1
    UPDATE = 2
    STATUS = 3
    ANSWER = 4
    CONFIRM = 5


class EntryStanding(IntEnum):
    PRESENT = 0
    LOST = 1
    """Another member declared that this member has left."""
    GONE = 2
    """The member announced its own leave."""


class GossipMessage(Frozen, frozen=True):
    hops: int
    id: EventId
    key: bytes
    target: int
    type: int
    action: int
    content: bytes
    signed: bytes
    signature: bytes


class LeaveMessage(Frozen, frozen=True):
    """`id.origin` announces that `subject` has left. `subject` is the origin itself, or a silent member."""

    hops: int
    id: EventId
    key: bytes
    subject: int
    incarnation: int
    signature: bytes

    @property
    def graceful(self) -> bool:
        return self.id.origin == self.subject


class DiscoveredAck(Frozen, frozen=True):
    """The answer to a DISCOVERED: the message's id, and the card of the sender."""

    id: EventId
    card: MemberRecord


class Cards(Frozen, frozen=True):
    """Cards of some members, each signed by its owner."""

    cards: tuple[MemberRecord, ...]
    leaves: tuple[LeaveMessage, ...] = ()


class ListEntry(Frozen, frozen=True):
    identifier: int
    incarnation: int
    standing: EntryStanding


class Compare(Frozen, frozen=True):
    """The sender's entries in one part of the identifier space: part `bucket` of `buckets` equal ones."""

    buckets: int
    bucket: int
    reply: bool
    """Whether the receiver shall send its own entries if they differ."""
    entries: tuple[ListEntry, ...]


class Have(Frozen, frozen=True):
    """Ids of messages that the sender has seen recently."""

    ids: tuple[EventId, ...]


class WantMessages(Frozen, frozen=True):
    """Ids of advertised messages that the sender lacks."""

    ids: tuple[EventId, ...]


class Accuse(Frozen, frozen=True):
    """The sender's list has the receiver as lost, at this incarnation of the receiver."""

    incarnation: int


Body: TypeAlias = LeaveMessage | GossipMessage | DiscoveredAck | Cards | Compare | Have | WantMessages | Accuse


def sign_message(
    signer: GossipSigner, event_id: EventId, message_type: MessageType, content: bytes, *, action: Action, target: int
) -> GossipMessage:
    fields = _MESSAGE_FIELDS.pack(
        *VERSION, event_id.origin, event_id.epoch, event_id.counter, signer.key, target, message_type, action
    )
    signed = fields + content
    signature = signer.sign(_MESSAGE_LABEL, signed)
    return GossipMessage(0, event_id, signer.key, target, message_type, action, content, signed, signature)


def sign_leave(signer: GossipSigner, event_id: EventId, subject: int, incarnation: int) -> LeaveMessage:
    unsigned = LeaveMessage(0, event_id, signer.key, subject, incarnation, b"")
    signature = signer.sign(_LEAVE_LABEL, _leave_fields(unsigned))
    return LeaveMessage(0, event_id, signer.key, subject, incarnation, signature)


def is_genuine(body: GossipMessage | LeaveMessage, check: Verify) -> bool:
    """Whether the named origin signed this."""
    if body.id.origin != identifier_of(body.key):
        return False
    if isinstance(body, GossipMessage):
        return check(body.key, _MESSAGE_LABEL, body.signed, body.signature)
    return check(body.key, _LEAVE_LABEL, _leave_fields(body), body.signature)


def encode(body: Body) -> bytes:
    match body:
        case LeaveMessage():
            kind, fields = _LEAVE, bytes((body.hops,)) + _leave_fields(body) + body.signature
        case GossipMessage():
            kind, fields = _MESSAGE, bytes((body.hops,)) + body.signed + body.signature
        case DiscoveredAck():
            kind, fields = _ACKNOWLEDGE, _put_id(body.id) + cards.encode(body.card)
        case Cards():
            parts = [bytes((len(body.cards),)), *map(cards.encode, body.cards), bytes((len(body.leaves),))]
            parts += [_leave_fields(leave) + leave.signature for leave in body.leaves]
            kind, fields = _CARDS, b"".join(parts)
        case Compare():
            head = put_number(body.buckets, 2) + put_number(body.bucket, 2) + bytes((body.reply,))
            entries = [_ENTRY.pack(entry.identifier, entry.incarnation, entry.standing) for entry in body.entries]
            kind, fields = _COMPARE, head + put_number(len(entries), 2) + b"".join(entries)
        case Have():
            kind, fields = _HAVE, bytes((len(body.ids),)) + b"".join(map(_put_id, body.ids))
        case WantMessages():
            kind, fields = _WANT, bytes((len(body.ids),)) + b"".join(map(_put_id, body.ids))
        case Accuse():
            kind, fields = _ACCUSE, put_number(body.incarnation, 8)
        case _:
            assert_never(body)
    return bytes((*VERSION, kind)) + fields


def decode(data: bytes) -> Body:
    cursor = ByteReader(data)
    major, minor = cursor.number(1, "major"), cursor.number(1, "minor")
    kind = cursor.number(1, "kind")
    if kind == _LEAVE:
        # A later version may append fields to the fixed layout; they are ignored.
        return _take_leave(cursor, cursor.number(1, "hops"))
    if major != VERSION[0]:
        raise OtherVersion(major, minor)
    body: Body
    match kind:
        case 2:
            return _take_message(cursor)
        case 3:
            body = DiscoveredAck(_take_id(cursor), cards.take(cursor))
        case 4:
            listed = tuple(cards.take(cursor) for _ in range(cursor.number(1, "cards")))
            body = Cards(listed, tuple(_take_leave(cursor, 0) for _ in range(cursor.number(1, "leaves"))))
        case 5:
            body = _take_compare(cursor)
        case 6:
            body = Have(_take_ids(cursor))
        case 7:
            body = WantMessages(_take_ids(cursor))
        case 8:
            body = Accuse(cursor.number(8, "incarnation"))
        case _:
            raise Malformed(f"gossip: {kind:#04x} is not one of 0x01 to 0x08")
    cursor.end("gossip")
    return body


def _leave_fields(leave: LeaveMessage) -> bytes:
    event_id = leave.id
    return _LEAVE_FIELDS.pack(
        event_id.origin, event_id.epoch, event_id.counter, leave.key, leave.subject, leave.incarnation
    )


def _take_leave(cursor: ByteReader, hops: int) -> LeaveMessage:
    origin, epoch, counter, key, subject, incarnation = _LEAVE_FIELDS.unpack(cursor.take(_LEAVE_FIELDS.size, "leave"))
    signature = cursor.take(SIGNATURE_BYTES, "leave signature")
    return LeaveMessage(hops, EventId(origin, epoch, counter), key, subject, incarnation, signature)


def _take_message(cursor: ByteReader) -> GossipMessage:
    hops = cursor.number(1, "hops")
    rest = cursor.rest()
    if len(rest) < _MESSAGE_FIELDS.size + SIGNATURE_BYTES:
        raise Malformed(f"message: {len(rest)} octets are too few")
    major, minor, origin, epoch, counter, key, target, message_type, action = _MESSAGE_FIELDS.unpack_from(rest)
    if major != VERSION[0]:
        raise OtherVersion(major, minor)
    signed, signature = rest[:-SIGNATURE_BYTES], rest[-SIGNATURE_BYTES:]
    content = signed[_MESSAGE_FIELDS.size :]
    event_id = EventId(origin, epoch, counter)
    return GossipMessage(hops, event_id, key, target, message_type, action, content, signed, signature)


def _take_compare(cursor: ByteReader) -> Compare:
    buckets, bucket = cursor.number(2, "buckets"), cursor.number(2, "bucket")
    reply = cursor.number(1, "reply")
    if bucket >= buckets or reply > 1:
        raise Malformed("compare: bucket must be below buckets, reply 0 or 1")
    count = cursor.number(2, "entries")
    entries = []
    for identifier, incarnation, standing in _ENTRY.iter_unpack(cursor.take(count * _ENTRY.size, "entries")):
        if standing > EntryStanding.GONE:
            raise Malformed(f"compare: standing {standing} is not one of 0 to 2")
        entries.append(ListEntry(identifier, incarnation, EntryStanding(standing)))
    return Compare(buckets, bucket, bool(reply), tuple(entries))


def _put_id(event_id: EventId) -> bytes:
    return put_number(event_id.origin, 4) + put_number(event_id.epoch, 8) + put_number(event_id.counter, 8)


def _take_id(cursor: ByteReader) -> EventId:
    return EventId(cursor.number(4, "origin"), cursor.number(8, "epoch"), cursor.number(8, "counter"))


def _take_ids(cursor: ByteReader) -> tuple[EventId, ...]:
    return tuple(_take_id(cursor) for _ in range(cursor.number(1, "ids")))
