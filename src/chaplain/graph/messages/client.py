"""Client messages of the graph layer: bodies of `LookUp` and `Instruct`, and pages of events.

Bodies are tagged MessagePack arrays, as those of the client service. A missing or extra field, or one of another type,
is `Malformed`. A page contains the exact bytes of each event, whose hash is the event's id: a client can verify them
without trusting the node.

Reads are paged, and a reader may continue at another node. In the *agreed* order it reads a snapshot identified by its
leaves. In *arrival* order it names the leaves of what it has. Leaves mean the same on every node; `log` and positions
are a short cut that is valid only at the node that issued them.
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
"""Positions, heights and durations are never negative; a node would iterate upwards from a negative one."""
Id: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
Frontier: TypeAlias = Annotated[tuple[Id, ...], msgspec.Meta(max_length=FRONTIER_MAX)]
LogId: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=LOG_BYTES)]
"""Id of a node's arrival order; empty if the reader has none."""


class _Body(Frozen, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


class Append(_Body, frozen=True):
    """Append the payload as an event. Answered with `Appended` once the event is on the node's disk."""

    stream: str


class ReadSnapshot(_Body, frozen=True):
    """Read the next page of a snapshot in the agreed order.

    If the request names no leaves (events without children), the node takes a new snapshot.
    """

    stream: str
    only_read: bool = False
    leaves: Frontier = ()
    log: LogId = b""
    limit: Number = 0
    after_height: Number = 0
    after_id: Annotated[bytes, msgspec.Meta(max_length=ID_BYTES)] = b""
    wait_ns: Number = 0
    """How long to wait until the node has the whole snapshot."""


class ReadArrivals(_Body, frozen=True):
    """Read the events that the reader lacks, in this node's arrival order."""

    stream: str
    only_read: bool = False
    leaves: Frontier = ()
    """Leaves of the events that the reader has."""
    log: LogId = b""
    position: Number = 0
    wait_ns: Number = 0
    """How long to wait for new events."""


GraphRequest: TypeAlias = Append | ReadSnapshot | ReadArrivals


class Appended(Frozen, frozen=True, array_like=True):
    id: bytes


class EventRow(Frozen, frozen=True, array_like=True):
    raw: bytes
    author: int
    """The author's node number."""
    read: bool
    confirms: int
    forked: bool


class Page(Frozen, frozen=True, array_like=True):
    rows: tuple[EventRow, ...]
    log: bytes
    position: int
    limit: int
    leaves: tuple[bytes, ...]
    done: bool
    """Snapshot: this is the last page. Arrivals: there are no further events yet. An empty page with `done` unset means
    that the node does not yet have everything that the reader read elsewhere.
    """


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


def required_right(body: bytes) -> RequiredRight | None:
    """The right that a request needs. None if the body is malformed: the core that decodes it reports that."""
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
