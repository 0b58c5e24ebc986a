"""What the journals of two nodes say to each other: bodies of parcels of the JOURNAL layer.

    body = protocol 1 | kind 1 | fields of the kind

The parcel's payload is octets that nobody on the way looks at.

Decides which octets are which message. Byte tables and hex examples: docs/protocol/journal-requests.md.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.cluster import DIGEST_BYTES, PROTOCOL, Reference
from chaplain.journal.messages.ingest import put_reference, take_reached, take_reference
from chaplain.wire.primitives import Cursor, put_number

_NO_DIGEST = bytes(DIGEST_BYTES)


class ConsensusFrame(Frozen, frozen=True):
    """A message of the serializers, see `order_message`."""

    message: bytes


class Payload(Frozen, frozen=True):
    """An ingest message: broadcast by its ingest node, or sent to who asked."""

    message: bytes


class AskPayload(Frozen, frozen=True):
    reference: Reference
    digest: bytes
    """Empty: whatever has the reference."""


class Ack(Frozen, frozen=True):
    """Ingest Journal Message Ack: each ingest node's journal, and the index up to which all of it was received."""

    reached: tuple[Reference, ...]


class PassPetition(Frozen, frozen=True):
    """Order this configuration entry, master."""

    entry_type: int
    stage: int
    data: bytes


class IngestDrainedNotice(Frozen, frozen=True):
    """I am blocked as an ingest node, master, and nothing of mine waits to be ordered."""


class Removed(Frozen, frozen=True):
    """You are no member any more, as of some message up to this index."""

    index: int


class Covered(Frozen, frozen=True):
    """How my log can be done without, and where it begins."""

    index: int
    """My latest checkpoint is behind this message, and on my disk; 0: there is none."""
    digest: bytes
    """Of the state in it."""
    size_bytes: int
    first: int
    """My log begins with this message."""
    agreed: int
    """And goes to this one at least."""
    confirmed: bool
    """A quorum has told me the same of this checkpoint."""


class AskState(Frozen, frozen=True):
    """Give me the state of your checkpoint behind this message, from this octet on."""

    index: int
    position: int


class StatePiece(Frozen, frozen=True):
    index: int
    position: int
    data: bytes


PeerMessage: TypeAlias = (
    ConsensusFrame
    | Payload
    | AskPayload
    | Ack
    | PassPetition
    | IngestDrainedNotice
    | Removed
    | Covered
    | AskState
    | StatePiece
)
_ORDER, _PAYLOAD, _ASK, _ACK, _PETITION, _DRAINED, _REMOVED, _COVERED, _ASK_STATE, _STATE = range(1, 11)
_ORDER_BODY, _PAYLOAD_BODY = bytes((PROTOCOL, _ORDER)), bytes((PROTOCOL, _PAYLOAD))
"""Every write has both, and they are nothing but a kind before a payload."""


def encode(message: PeerMessage) -> tuple[bytes, bytes]:
    """Body and payload of the parcel."""
    match message:
        case ConsensusFrame():
            return _ORDER_BODY, message.message
        case Payload():
            return _PAYLOAD_BODY, message.message
        case AskPayload():
            return _body(_ASK, put_reference(message.reference), message.digest or _NO_DIGEST), b""
        case Ack():
            return _body(_ACK, put_number(len(message.reached), 1), *map(put_reference, message.reached)), b""
        case PassPetition():
            return _body(_PETITION, put_number(message.entry_type, 1), put_number(message.stage, 1)), message.data
        case IngestDrainedNotice():
            return _body(_DRAINED), b""
        case Removed():
            return _body(_REMOVED, put_number(message.index, 8)), b""
        case Covered():
            numbers = (message.size_bytes, message.first, message.agreed)
            fields = (put_number(message.index, 8), message.digest, *(put_number(number, 8) for number in numbers))
            return _body(_COVERED, *fields, put_number(message.confirmed, 1)), b""
        case AskState():
            return _body(_ASK_STATE, put_number(message.index, 8), put_number(message.position, 8)), b""
        case StatePiece():
            return _body(_STATE, put_number(message.index, 8), put_number(message.position, 8)), message.data
        case _:
            assert_never(message)


def _body(kind: int, *fields: bytes) -> bytes:
    return b"%c%c%b" % (PROTOCOL, kind, b"".join(fields))


def decode(body: bytes, payload: bytes) -> PeerMessage:
    if body == _ORDER_BODY:
        return ConsensusFrame(payload)
    if body == _PAYLOAD_BODY:
        return Payload(payload)
    cursor = Cursor(body)
    if cursor.number(1, "protocol") != PROTOCOL:
        raise Malformed(f"peer message: this program speaks protocol {PROTOCOL}")
    message = _fields(cursor, cursor.number(1, "kind"), payload)
    cursor.end("peer message")
    if payload and isinstance(message, AskPayload | Ack | IngestDrainedNotice | Removed | Covered | AskState):
        raise Malformed("peer message: a payload where none belongs")
    return message


def _fields(cursor: Cursor, kind: int, payload: bytes) -> PeerMessage:
    match kind:
        case 1 | 2:
            raise Malformed("peer message: fields where none belong")
        case 3:
            reference, digest = take_reference(cursor), cursor.take(DIGEST_BYTES, "digest")
            return AskPayload(reference, b"" if digest == _NO_DIGEST else digest)
        case 4:
            return Ack(take_reached(cursor))
        case 5:
            return PassPetition(cursor.number(1, "entry type"), cursor.number(1, "stage"), payload)
        case 6:
            return IngestDrainedNotice()
        case 7:
            return Removed(cursor.number(8, "index"))
        case 8:
            return _covered(cursor)
        case 9:
            return AskState(cursor.number(8, "index"), cursor.number(8, "position"))
        case 10:
            return StatePiece(cursor.number(8, "index"), cursor.number(8, "position"), payload)
        case _:
            raise Malformed(f"peer message: kind {kind} is not one of 1 to 10")


def _covered(cursor: Cursor) -> Covered:
    index, digest = cursor.number(8, "index"), cursor.take(DIGEST_BYTES, "digest")
    size_bytes, first, agreed = (cursor.number(8, name) for name in ("size", "first", "agreed"))
    return Covered(index, digest, size_bytes, first, agreed, bool(cursor.number(1, "confirmed")))
