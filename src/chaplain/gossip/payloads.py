"""The contents of gossip messages, by message type. Texts are UTF-8, preceded by two octets of length.

Byte tables: docs/protocol/gossip.md.
"""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.gossip import member_record as cards
from chaplain.gossip.events import EventId, KeyStep
from chaplain.gossip.member_record import MemberRecord
from chaplain.wire.primitives import ByteReader, put_number

NAME_BYTES_MAX = 255
"""Maximum size of an event's type or a question."""

_STEPS = (KeyStep.INSTALL, KeyStep.USE, KeyStep.REMOVE)


class Health(Frozen, frozen=True):
    """Asks which members have heard the subject, at this incarnation."""

    subject: int
    incarnation: int


class LastHeard(Frozen, frozen=True):
    """The sender itself heard the subject `age_ms` ago."""

    subject: int
    incarnation: int
    age_ms: int


class QueryPayload(Frozen, frozen=True):
    question: str
    content: bytes


class Response(Frozen, frozen=True):
    query: EventId
    number: int
    """Counts one node's answers to one query: the highest is the newest."""
    known: bool
    """False: the node does not know the question."""
    value: bytes


class UserEvent(Frozen, frozen=True):
    type: str
    content: bytes


class KeyRotationStep(Frozen, frozen=True):
    """One step of a rotation."""

    step: KeyStep
    key_id: bytes
    key: bytes = b""
    """The key itself, to install it; the successor's id, to remove one; else empty."""


def put_card(card: MemberRecord) -> bytes:
    return cards.encode(card)


def take_card(content: bytes) -> MemberRecord:
    cursor = ByteReader(content)
    card = cards.take(cursor)
    cursor.end("card")
    return card


def put_health(health: Health) -> bytes:
    return put_number(health.subject, 4) + put_number(health.incarnation, 8)


def take_health(content: bytes) -> Health:
    cursor = ByteReader(content)
    health = Health(cursor.number(4, "subject"), cursor.number(8, "incarnation"))
    cursor.end("health")
    return health


def put_status(status: LastHeard) -> bytes:
    return put_health(Health(status.subject, status.incarnation)) + put_number(status.age_ms, 4)


def take_status(content: bytes) -> LastHeard:
    cursor = ByteReader(content)
    status = LastHeard(cursor.number(4, "subject"), cursor.number(8, "incarnation"), cursor.number(4, "age"))
    cursor.end("status")
    return status


def put_query(query: QueryPayload) -> bytes:
    return _put_text(query.question) + query.content


def take_query(content: bytes) -> QueryPayload:
    cursor = ByteReader(content)
    return QueryPayload(_take_text(cursor, "question"), cursor.rest())


def put_response(response: Response) -> bytes:
    query = response.query
    number = put_number(response.number, 4)
    head = put_number(query.origin, 4) + put_number(query.epoch, 8) + put_number(query.counter, 8)
    return head + number + bytes((response.known,)) + response.value


def take_response(content: bytes) -> Response:
    cursor = ByteReader(content)
    query = EventId(cursor.number(4, "origin"), cursor.number(8, "epoch"), cursor.number(8, "counter"))
    number, known = cursor.number(4, "number"), cursor.number(1, "known")
    if known > 1:
        raise Malformed("response: known must be 0 or 1")
    return Response(query, number, bool(known), cursor.rest())


def put_user(user: UserEvent) -> bytes:
    return _put_text(user.type) + user.content


def take_user(content: bytes) -> UserEvent:
    cursor = ByteReader(content)
    return UserEvent(_take_text(cursor, "event type"), cursor.rest())


def put_key(key: KeyRotationStep) -> bytes:
    return bytes((_STEPS.index(key.step), len(key.key_id))) + key.key_id + key.key


def take_key(content: bytes) -> KeyRotationStep:
    cursor = ByteReader(content)
    step = cursor.number(1, "key step")
    if step >= len(_STEPS):
        raise Malformed(f"key step: {step} is not one of 0 to 2")
    key_id = cursor.take(cursor.number(1, "key id"), "key id")
    return KeyRotationStep(_STEPS[step], key_id, cursor.rest())


def is_name(text: str) -> bool:
    """Whether this can be an event's type or a question."""
    try:
        return 0 < len(text.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _put_text(text: str) -> bytes:
    encoded = text.encode()
    return put_number(len(encoded), 2) + encoded


def _take_text(cursor: ByteReader, what: str) -> str:
    taken = cursor.take(cursor.number(2, what), what)
    if not 0 < len(taken) <= NAME_BYTES_MAX:
        raise Malformed(f"{what}: 1 to {NAME_BYTES_MAX} octets, not {len(taken)}")
    try:
        return taken.decode()
    except UnicodeDecodeError:
        raise Malformed(f"{what}: not UTF-8") from None
