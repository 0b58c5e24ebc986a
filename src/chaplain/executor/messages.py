"""Messages between clients and executors, and among executors.

Each is a tagged MessagePack array. A client's messages go through its node's client service as bodies for this layer;
the payload of `Query` is a statement (`statement`). Messages among executors are bodies of EXECUTOR parcels.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from chaplain.core import Frozen
from chaplain.wire.limits import STRING_BYTES_MAX
from chaplain.wire.packed import unpack

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""The range of integers in databases."""
LANES_MAX = 4096
"""Lanes in one `ReadThrough`."""
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=STRING_BYTES_MAX)]
"""A stream name. Bounded, because executors remember some of the names that peers send."""
Lanes: TypeAlias = Annotated[tuple[tuple[Number, Number], ...], msgspec.Meta(max_length=LANES_MAX)]
"""Lanes, each with the last id whose result was read."""


class _Message(Frozen, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


# From clients.


class AskResults(_Message, frozen=True):
    """Request the outcomes of requests, once this executor has applied message `index`. Answered with runs of
    outcomes.
    """

    stream: Name
    client_id: Number
    """The lane; 0: all lanes of the identity, whatever their ids."""
    first_id: Number
    last_id: Number
    index: Number


class ReadThrough(_Message, frozen=True):
    """The results of these lanes, up to an id each, may be deleted. Repeating it, or sending a lower id, is
    harmless.
    """

    stream: Name
    through: Lanes


class Query(_Message, frozen=True):
    """The payload is a read-only statement. Answered with rows."""

    stream: Name
    index: Number
    """Answer only after this message was applied."""
    fresh: bool
    """True: answer only after applying every message that was agreed when the query arrived."""


ClientMessage: TypeAlias = AskResults | ReadThrough | Query


# Among executors.


class AskReach(_Message, frozen=True):
    """Request for the last message in the receiver's log. Answered with `Reach`."""

    token: Number


class Reach(_Message, frozen=True):
    token: Number
    index: Number


class Print(_Message, frozen=True):
    """The sender's database of the stream has this fingerprint after this message."""

    stream: Name
    index: Number
    fingerprint: bytes


class WereRead(_Message, frozen=True):
    """A client of the sender has read results."""

    stream: Name
    acl: bytes
    through: Lanes


class AskCopy(_Message, frozen=True):
    """Request for the receiver's copy of the database, from this byte on: the log no longer has the messages that the
    sender lacks.
    """

    stream: Name
    position: Number


class CopyPiece(_Message, frozen=True):
    """The payload is a piece of the sender's copy of the database."""

    stream: Name
    index: Number
    """The last message in the copy."""
    position: Number
    size_bytes: Number
    digest: bytes
    """SHA-256 of the whole copy."""


PeerMessage: TypeAlias = AskReach | Reach | Print | WereRead | AskCopy | CopyPiece

_of_client: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
_of_peer: msgspec.msgpack.Decoder[PeerMessage] = msgspec.msgpack.Decoder(PeerMessage)
_runs = msgspec.msgpack.Decoder(list[bytes])
_encoder = msgspec.msgpack.Encoder()


def encode(message: ClientMessage | PeerMessage) -> bytes:
    return _encoder.encode(message)


def decode_client(body: bytes) -> ClientMessage:
    return unpack(_of_client, body, "executor")


def decode_peer(body: bytes) -> PeerMessage:
    return unpack(_of_peer, body, "executor")


def encode_runs(runs: list[bytes]) -> bytes:
    return _encoder.encode(runs)


def decode_runs(payload: bytes) -> list[bytes]:
    return unpack(_runs, payload, "executor")
