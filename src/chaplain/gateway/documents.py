"""The JSON objects of the gateway. Values, keys and headers are text if they are UTF-8, otherwise `{"base64": …}`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from chaplain.client.types.journal import Message, Receipt, StreamRecord
from chaplain.client.types.results import Member
from chaplain.core import Frozen
from chaplain.errors import Misused
from chaplain.gateway.problems import format_request_id
from chaplain.json_values import json_value, timestamp

BATCH_MESSAGES_MAX = 10_000

Octets: TypeAlias = str | dict[str, str]
"""The form of bytes in an answer."""


class NewMessage(Frozen, frozen=True, forbid_unknown_fields=True):
    """One message of a batch."""

    value: Annotated[str | dict[str, Any], Meta(description='Text, `{"base64": …}`, or `{"json": …}` with any JSON')]
    key: str | dict[str, str] | None = None
    headers: dict[str, str | dict[str, str]] = msgspec.field(default_factory=dict)


class NewMessages(Frozen, frozen=True, forbid_unknown_fields=True):
    """Messages that are written as one request: all of them, contiguous and in order, or none."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=BATCH_MESSAGES_MAX)]


class ReceiptDocument(Frozen, frozen=True):
    """Confirms that a message is committed: its place is agreed, and it is on disk at a quorum."""

    stream: str
    offset: Annotated[int, Meta(description="-1 if the message is so old that no node remembers its offset")]
    regime: int
    index: int
    timestamp: str
    hash: str
    client_id: int
    client_message_id: int
    request: Annotated[str, Meta(description="The id of the write request")]


class ReceiptsDocument(Frozen, frozen=True):
    """The receipts of a write, in the order of its messages."""

    receipts: list[ReceiptDocument]


class OutcomeDocument(Frozen, frozen=True):
    """The outcome of a write: with a receipt it is written; without one it is not, and never will be."""

    written: bool
    receipt: ReceiptDocument | None = None


class MessageDocument(Frozen, frozen=True):
    """One message of a stream."""

    stream: str
    offset: int
    key: Octets | None
    value: Octets
    headers: dict[str, Octets]
    timestamp: str
    client_id: int
    client_message_id: int
    message_no: int
    regime: int
    index: int
    ingest_node: int
    type: Annotated[int, Meta(description="The type that its writer gave it: 0 is data, 1 a SQL statement")]


class MessagesDocument(Frozen, frozen=True):
    """A page of messages."""

    messages: list[MessageDocument]
    next: Annotated[int | None, Meta(description="Where the next page begins; null if there is none")]


class StreamDocument(Frozen, frozen=True):
    """A stream: its first retained offset, the offset of the next message, and the hash of its chain."""

    stream: str
    first_offset: int
    next_offset: int
    chain: str


class StreamsDocument(Frozen, frozen=True):
    """A page of the streams that the client may read, by name."""

    streams: list[StreamDocument]
    after: Annotated[str | None, Meta(description="Give it as `after` for the next page; null on the last page")]


class MemberDocument(Frozen, frozen=True):
    """One entry of the membership list of the node that serves the client."""

    id: int
    uri: str
    state: str
    incarnation: int
    identifier: int


class MembersDocument(Frozen, frozen=True):
    """The membership list."""

    members: list[MemberDocument]


class StatusDocument(Frozen, frozen=True):
    """The status of the cluster, as the node that serves the client sees it."""

    status: dict[str, Any]


class HealthDocument(Frozen, frozen=True):
    """The gateway accepts requests."""

    status: str


class ClientHealthDocument(Frozen, frozen=True):
    """The cluster answers the client of the token."""

    status: str
    token: str
    seconds: float


def receipt_document(receipt: Receipt) -> ReceiptDocument:
    return ReceiptDocument(
        stream=receipt.stream,
        offset=receipt.offset,
        regime=receipt.regime,
        index=receipt.index,
        timestamp=timestamp(receipt.timestamp),
        hash=receipt.hash.hex(),
        client_id=receipt.client_id,
        client_message_id=receipt.client_message_id,
        request=format_request_id(receipt.id),
    )


def receipts_document(receipts: Sequence[Receipt]) -> ReceiptsDocument:
    return ReceiptsDocument([receipt_document(receipt) for receipt in receipts])


def message_document(message: Message) -> MessageDocument:
    return MessageDocument(
        stream=message.stream,
        offset=message.offset,
        key=None if message.key is None else json_value(message.key),
        value=json_value(message.value),
        headers={name: json_value(value) for name, value in message.headers.items()},
        timestamp=timestamp(message.timestamp),
        client_id=message.client_id,
        client_message_id=message.client_message_id,
        message_no=message.message_no,
        regime=message.regime,
        index=message.index,
        ingest_node=message.ingest_node,
        type=message.type,
    )


def stream_document(stream: StreamRecord) -> StreamDocument:
    return StreamDocument(stream.stream, stream.first_offset, stream.next_offset, stream.chain)


def member_document(member: Member) -> MemberDocument:
    return MemberDocument(member.id, member.uri, member.state, member.incarnation, member.identifier)


def octets_of(given: str | dict[str, Any], what: str) -> bytes:
    """The bytes that text, `{"base64": …}` or `{"json": …}` stands for."""
    if isinstance(given, str):
        return given.encode()
    match list(given.items()):
        case [("base64", str() as text)]:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise Misused(f"{what} is not valid base64") from None
        case [("json", value)]:
            return msgspec.json.encode(value)
    raise Misused(f'{what} is text, {{"base64": …}} or {{"json": …}}')


def message_of(message: NewMessage) -> tuple[bytes, bytes | None, dict[str, bytes]]:
    """Value, key and headers of a message of a batch."""
    key = None if message.key is None else octets_of(message.key, "a key")
    headers = {name: octets_of(value, "a header") for name, value in message.headers.items()}
    return octets_of(message.value, "a value"), key, headers
