"""One event: the bytes whose hash is its id, and the fields that they encode.

Decides which bytes are a well-formed event. Does not know whether the parents are present, who the author is, or the
current time. Byte table and hex example: docs/protocol/graph.md.

Invariants: an id is the SHA-256 of the exact bytes; an event has exactly one encoding; its height is one more than the
greatest height it states for a parent, so cycles cannot be encoded.
"""

from __future__ import annotations

import hashlib
import struct
from itertools import pairwise

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.link.auth.identity import KEY_BYTES, SIGNATURE_BYTES, Identity
from chaplain.wire.primitives import ByteReader, put_number, put_string

VERSION = 1
ID_BYTES = 32
LINK_BYTES = 4 + ID_BYTES
PARENTS_MAX = 64
CONTENT_BYTES_MAX = 1 << 20
HEIGHT_MAX = (1 << 32) - 1
NO_ID = bytes(ID_BYTES)
_FIXED = struct.Struct(">B32s64sQI I32sB")
FIXED_BYTES = _FIXED.size
assert FIXED_BYTES == 146
_SIGNED_FROM = 1 + KEY_BYTES + SIGNATURE_BYTES
EVENT_BYTES_MAX = FIXED_BYTES + PARENTS_MAX * LINK_BYTES + 2 * 256 + CONTENT_BYTES_MAX
_EVENT_LABEL = b"chaplain graph event "
_CONFIRM_LABEL = b"chaplain graph confirm "


class ParentLink(Frozen, frozen=True, order=True):
    """A parent's id, and the height that the child states for it."""

    id: bytes
    height: int


class SignedEvent(Frozen, frozen=True):
    author: bytes
    signature: bytes
    timestamp_ns: int
    height: int
    previous: ParentLink | None
    """The author's preceding event in this stream; None for its first."""
    parents: tuple[ParentLink, ...]
    """Further parents: the leaves that the author knew, in the order of their ids."""
    stream: str
    writer: str
    """The client on whose behalf the author wrote the event; may be empty."""
    content: bytes
    raw: bytes
    id: bytes

    @property
    def links(self) -> tuple[ParentLink, ...]:
        return self.parents if self.previous is None else (self.previous, *self.parents)

    @property
    def head(self) -> bytes:
        """The bytes before the content."""
        return self.raw[: len(self.raw) - len(self.content)]


class EventDraft(Frozen, frozen=True):
    """An event before it is signed."""

    stream: str
    content: bytes
    timestamp_ns: int
    previous: ParentLink | None = None
    parents: tuple[ParentLink, ...] = ()
    writer: str = ""


def sign(draft: EventDraft, identity: Identity, cluster: str) -> SignedEvent:
    links = [*draft.parents, *([draft.previous] if draft.previous is not None else [])]
    height = max((link.height for link in links), default=-1) + 1
    previous = draft.previous or ParentLink(NO_ID, 0)
    tail = b"".join(
        (
            draft.timestamp_ns.to_bytes(8, "big"),
            height.to_bytes(4, "big"),
            _link(previous),
            put_number(len(draft.parents), 1),
            *map(_link, sorted(draft.parents)),
            put_string(draft.stream),
            put_string(draft.writer),
            draft.content,
        )
    )
    front = bytes((VERSION,)) + identity.key
    signature = identity.sign(event_label(cluster), front + tail)
    return decode(front + signature + tail)


def _link(link: ParentLink) -> bytes:
    return link.height.to_bytes(4, "big") + link.id


def event_label(cluster: str) -> bytes:
    return _EVENT_LABEL + cluster.encode()


def confirm_label(cluster: str) -> bytes:
    return _CONFIRM_LABEL + cluster.encode()


def signed_part(event: SignedEvent) -> bytes:
    """The bytes that the author's signature covers: all except the signature itself."""
    return event.raw[: 1 + KEY_BYTES] + event.raw[_SIGNED_FROM:]


def timestamp_of(raw: bytes) -> int:
    """The author's timestamp of a well-formed event."""
    return int.from_bytes(raw[_SIGNED_FROM : _SIGNED_FROM + 8], "big")


def decode(raw: bytes) -> SignedEvent:
    if not FIXED_BYTES <= len(raw) <= EVENT_BYTES_MAX:
        raise Malformed(f"event: {len(raw)} octets are too few or too many")
    fields = _FIXED.unpack_from(raw)
    version, author, signature, timestamp_ns, height, previous_height, previous_id, count = fields
    if version != VERSION:
        raise Malformed(f"event: version {version}, this program reads {VERSION}")
    previous = None if previous_id == NO_ID else ParentLink(previous_id, previous_height)
    cursor = ByteReader(raw, FIXED_BYTES)
    parents = _parents(raw, cursor, count)
    _check_links(height, previous, previous_height, parents)
    stream, writer = cursor.string("stream"), cursor.string("writer")
    content = raw[cursor.position :]
    if not stream or len(content) > CONTENT_BYTES_MAX:
        raise Malformed("event: a stream has a name, and content has its bound")
    return SignedEvent(
        author,
        signature,
        timestamp_ns,
        height,
        previous,
        parents,
        stream,
        writer,
        content,
        raw,
        hashlib.sha256(raw).digest(),
    )


def _parents(raw: bytes, cursor: ByteReader, count: int) -> tuple[ParentLink, ...]:
    if count > PARENTS_MAX:
        raise Malformed(f"event: {count} further parents, at most {PARENTS_MAX} are allowed")
    links = []
    for _ in range(count):
        height = cursor.number(4, "parent")
        links.append(ParentLink(cursor.take(ID_BYTES, "parent"), height))
    return tuple(links)


def _check_links(
    height: int, previous: ParentLink | None, previous_height: int, parents: tuple[ParentLink, ...]
) -> None:
    if previous is None and previous_height:
        raise Malformed("event: no previous event has no height")
    ids = [link.id for link in parents]
    if any(a >= b for a, b in pairwise(ids)) or NO_ID in ids:
        raise Malformed("event: parents are not in the order of their ids, each once")
    if previous is not None and previous.id in ids:
        raise Malformed("event: the previous event is named twice")
    links = parents if previous is None else (previous, *parents)
    if height != max((link.height for link in links), default=-1) + 1:
        raise Malformed(f"event: height {height} does not follow from its parents'")
