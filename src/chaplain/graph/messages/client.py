"""What a client asks of the graph, and what it is answered: bodies of `LookUp` and `Instruct`, and pages of events.

Bodies are MessagePack arrays that name themselves, as the desk's are; a field too many, too few or of another type is
`Malformed`. A page holds events as the exact bytes that their ids are the hashes of: nobody need believe the node.

Reading is paged, and a reader may go on at another node. In the *agreed* order it reads a snapshot named by leaves;
in the order of *arrival* it names the leaves of what it has. Both mean the same everywhere; `log` and numbers are a
short cut for the node that gave them.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.graph.messages.event import ID_BYTES
from chaplain.rights import RequiredRight, Right
from chaplain.wire.packed import UNREADABLE, unpack
from chaplain.wire.primitives import put_string

FRONTIER_MAX = 4096
LOG_BYTES = 16

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Places, heights and spans of time are never below 0: a node would walk up from there."""
Id: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
Frontier: TypeAlias = Annotated[tuple[Id, ...], msgspec.Meta(max_length=FRONTIER_MAX)]
LogId: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=LOG_BYTES)]
"""Names a node's order of arrival; empty if the reader has none."""


class _Body(Frozen, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


class Append(_Body, frozen=True):
    """Write the payload as an event. Answered, when it is on the node's disk, with `Appended`."""

    stream: str


class ReadSnapshot(_Body, frozen=True):
    """The next page of a snapshot in the agreed order; without leaves, of one that is made now."""

    stream: str
    only_read: bool = False
    leaves: Frontier = ()
    log: LogId = b""
    limit: Number = 0
    after_height: Number = 0
    after_id: Annotated[bytes, msgspec.Meta(max_length=ID_BYTES)] = b""
    wait_ns: Number = 0
    """How long to wait until the node has all of the snapshot."""


class ReadArrivals(_Body, frozen=True):
    """What came after what the reader has, in the order in which this node got it."""

    stream: str
    only_read: bool = False
    leaves: Frontier = ()
    """Of what the reader has."""
    log: LogId = b""
    position: Number = 0
    wait_ns: Number = 0
    """How long to wait for news."""


GraphRequest: TypeAlias = Append | ReadSnapshot | ReadArrivals


class Appended(Frozen, frozen=True, array_like=True):
    id: bytes


class Row(Frozen, frozen=True, array_like=True):
    raw: bytes
    author: int
    """The number that people know the author by."""
    read: bool
    confirms: int
    forked: bool


class Page(Frozen, frozen=True, array_like=True):
    rows: tuple[Row, ...]
    log: bytes
    position: int
    limit: int
    leaves: tuple[bytes, ...]
    done: bool
    """Snapshot: this is its last page. Arrivals: nothing more has come yet. If not so, and without rows: the node has
    not yet got all that was read elsewhere."""


_requests: msgspec.msgpack.Decoder[GraphRequest] = msgspec.msgpack.Decoder(GraphRequest)
_answers: dict[type, msgspec.msgpack.Decoder[Any]] = {kind: msgspec.msgpack.Decoder(kind) for kind in (Appended, Page)}
_encoder = msgspec.msgpack.Encoder()
T = TypeVar("T")


def encode(message: GraphRequest | Appended | Page) -> bytes:
    return _encoder.encode(message)


def decode_request(body: bytes) -> GraphRequest:
    request = unpack(_requests, body, "graph request")
    try:
        put_string(request.stream)
    except ValueError as wrong:
        raise Malformed(f"graph request: {wrong}") from None
    return request


def wanted(body: bytes) -> RequiredRight | None:
    """The right that a request takes; none if it is no request, which is told by who reads it."""
    try:
        request = decode_request(body)
    except Malformed:
        return None
    return RequiredRight(Right.WRITE if isinstance(request, Append) else Right.READ, request.stream)


def decode_answer(payload: bytes, kind: type[T]) -> T:
    try:
        answer: T = _answers[kind].decode(payload)
    except UNREADABLE as error:
        raise Malformed(f"the node's answer: {error}; are client and node of the same version?") from None
    return answer
