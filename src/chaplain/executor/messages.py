"""What clients and executors, and executors among themselves, say to each other.

Each is a MessagePack array whose first element names it. A client's go through its node's desk, as bodies for this
layer; the payload of `Query` is a statement (`statement`). Executors' are bodies of parcels of the EXECUTOR layer.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from chaplain.core import Frozen
from chaplain.wire.limits import STRING_BYTES_MAX
from chaplain.wire.packed import unpack

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""What databases can count to."""
LANES_MAX = 4096
"""Lanes in one `ReadThrough`."""
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=STRING_BYTES_MAX)]
"""Of a stream: executors remember some of those that they were told."""
Lanes: TypeAlias = Annotated[tuple[tuple[Number, Number], ...], msgspec.Meta(max_length=LANES_MAX)]
"""Of each the last id whose result was read."""


class _Message(Frozen, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


# Of a client.


class AskResults(_Message, frozen=True):
    """What became of requests, once this executor has applied message `index`. Answered with runs of outcomes."""

    stream: Name
    client_id: Number
    """The lane; 0: all of the identity's, whatever their ids."""
    first_id: Number
    last_id: Number
    index: Number


class ReadThrough(_Message, frozen=True):
    """Results of these lanes, up to an id each, need not be kept. Saying it again, or less, does no harm."""

    stream: Name
    through: Lanes


class Query(_Message, frozen=True):
    """The payload is a statement that changes nothing. Answered with rows."""

    stream: Name
    index: Number
    """After this message at least."""
    fresh: bool
    """After everything that was agreed when the question came."""


ClientMessage: TypeAlias = AskResults | ReadThrough | Query


# Of an executor, to another.


class AskReach(_Message, frozen=True):
    """How far might the order be, as far as you hold it? Answered with `Reach`."""

    token: Number


class Reach(_Message, frozen=True):
    token: Number
    index: Number


class Print(_Message, frozen=True):
    """My database of the stream has this fingerprint after that message."""

    stream: Name
    index: Number
    fingerprint: bytes


class WereRead(_Message, frozen=True):
    """A client of mine has read its results."""

    stream: Name
    acl: bytes
    through: Lanes


class AskCopy(_Message, frozen=True):
    """The messages that my database lacks are dropped: give me yours, from this octet on."""

    stream: Name
    position: Number


class CopyPiece(_Message, frozen=True):
    """The payload is a piece of my copy of a database."""

    stream: Name
    index: Number
    """The last message in it."""
    position: Number
    size_bytes: Number
    digest: bytes
    """SHA-256 of all of it."""


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
