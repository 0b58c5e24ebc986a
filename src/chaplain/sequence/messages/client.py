"""Client requests to the sequence, and pages of events. Bodies are MessagePack arrays, as those of the client service.

The values of a publish are concatenated in the payload; the body contains their lengths. A page has a
maximum size. The reader may request the next page from the same node or from another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, TypeAlias

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.rights import RequiredRight, Right
from chaplain.wire.limits import STRING_BYTES_MAX
from chaplain.wire.packed import unpack
from chaplain.wire.primitives import VCHAR

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""MessagePack integers have at most 64 bits, as history ids do."""


class PublishRequest(Frozen, frozen=True, array_like=True, tag="publish", forbid_unknown_fields=True):
    stream: str
    lengths: list[Number]


class ReadRequest(Frozen, frozen=True, array_like=True, tag="read", forbid_unknown_fields=True):
    stream: str
    start: Number
    """Number of the first event wanted; 0: the oldest one that the node retains."""
    wait_ns: Number
    """How long to wait for an event if there is none yet."""
    history: Number
    """The history that the reader has read so far, 0 for any. In another history the same number is another event."""
    whole: bool = False
    """Return whole runs, also the one in whose middle `start` is: the stream's hash chain has one link for each run."""
    fresh: bool = False
    """Answer with everything that was decided anywhere when the request arrived."""


SequenceRequest: TypeAlias = PublishRequest | ReadRequest


class PageRun(Frozen, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Consecutive events of one publisher."""

    first: int
    publisher: str
    before: bytes
    """The hash that the first event is linked to."""
    values: list[bytes]


class SequencePage(Frozen, frozen=True, array_like=True, forbid_unknown_fields=True):
    history: int
    first: int
    """The oldest number that the node keeps; one above the head if it keeps none."""
    head: int
    """The last number; 0 before the first event."""
    runs: list[PageRun]


class Numbered(Frozen, frozen=True, array_like=True, forbid_unknown_fields=True):
    first: int
    hash: bytes
    """The hash of the first event."""


_requests: msgspec.msgpack.Decoder[SequenceRequest] = msgspec.msgpack.Decoder(SequenceRequest)
_pages = msgspec.msgpack.Decoder(SequencePage)
_numbers = msgspec.msgpack.Decoder(Numbered)
_encoder = msgspec.msgpack.Encoder()


def encode(message: SequenceRequest | SequencePage | Numbered) -> bytes:
    return _encoder.encode(message)


def decode_request(body: bytes) -> SequenceRequest:
    request = unpack(_requests, body, "sequence request")
    name = request.stream.encode(errors="replace")
    if not name or len(name) > STRING_BYTES_MAX or name.translate(None, VCHAR):
        raise Malformed(f"a stream's name has 1 to {STRING_BYTES_MAX} visible ASCII characters")
    return request


def required_right(body: bytes) -> RequiredRight | None:
    """The right that a request needs. None if the body is malformed: the layer that decodes it reports that."""
    try:
        request = decode_request(body)
    except Malformed:
        return None
    return RequiredRight(Right.WRITE if isinstance(request, PublishRequest) else Right.READ, request.stream)


def decode_page(payload: bytes) -> SequencePage:
    return unpack(_pages, payload, "sequence page")


def decode_numbered(payload: bytes) -> Numbered:
    return unpack(_numbers, payload, "sequence number")


def split(lengths: Sequence[int], payload: bytes) -> tuple[bytes, ...]:
    """The values of a publish request."""
    if not lengths or sum(lengths) != len(payload):
        raise Malformed("sequence request: the lengths do not add up to the values")
    return tuple(payload[end - size : end] for size, end in zip(lengths, accumulate(lengths), strict=True))
