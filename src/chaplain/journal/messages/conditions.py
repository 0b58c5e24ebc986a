"""Conditions and tags of a write: headers of the first message of a conditional pack.

    conditions = protocol 1 | count 1 | condition …        condition = kind 1 | fields of the kind
    tags = tag "," tag …

Decides which octets are conditions. Refuses to know whether they hold: `execution.conditions` decides that. Byte tables
and hex examples: docs/protocol/conditions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, assert_never

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.write_request import COLUMNS_AT
from chaplain.segment.headers import decode_headers
from chaplain.segment.layout import Bytes
from chaplain.segment.pack import CONDITIONAL, first_headers, read_head
from chaplain.wire.primitives import ByteReader, put_number, put_string

HEADER = "chaplain-conditions"
"""Header of the first message of such a pack."""
TAGS_HEADER = "chaplain-tags"
"""Header of the first message of such a pack: the tags of the request, if it has any."""
TAGS_MAX = 16
"""Tags of one request."""
TAG_BYTES_MAX = 64
PROTOCOL = 1
CONDITIONS_MAX = 64
KEY_BYTES_MAX = 4096
"""Octets of a key in a condition."""
NAME_BYTES_MAX = 64
NUMBER_MAX = (1 << 63) - 1


class NextOffset(Frozen, frozen=True):
    """The next offset of the stream is this one."""

    offset: int


class KeyUnchanged(Frozen, frozen=True):
    """The stream has no message under this key at this offset or after it."""

    key: bytes
    since: int


class Fence(Frozen, frozen=True):
    """No higher token was seen under this name in the stream."""

    name: str
    token: int


class TagUnchanged(Frozen, frozen=True):
    """The stream has no request with this tag whose last message is at this offset or after it."""

    tag: str
    since: int


Condition: TypeAlias = NextOffset | KeyUnchanged | Fence | TagUnchanged


def encode(conditions: Sequence[Condition]) -> bytes:
    """The value of the header."""
    if len(conditions) > CONDITIONS_MAX:
        raise ValueError(f"a write has at most {CONDITIONS_MAX} conditions, not {len(conditions)}")
    head = put_number(PROTOCOL, 1) + put_number(len(conditions), 1)
    return head + b"".join(map(_encode, conditions))


def _encode(condition: Condition) -> bytes:
    match condition:
        case NextOffset():
            return put_number(1, 1) + put_number(condition.offset, 8)
        case KeyUnchanged():
            size = put_number(len(condition.key), 2)
            return put_number(2, 1) + put_number(condition.since, 8) + size + condition.key
        case Fence():
            return put_number(3, 1) + put_number(condition.token, 8) + put_string(condition.name)
        case TagUnchanged():
            return put_number(4, 1) + put_number(condition.since, 8) + put_string(condition.tag)
        case _:
            assert_never(condition)


def decode(data: bytes) -> tuple[Condition, ...]:
    cursor = ByteReader(data)
    protocol, count = cursor.number(1, "protocol"), cursor.number(1, "count")
    if protocol != PROTOCOL or count > CONDITIONS_MAX:
        raise Malformed(f"conditions: protocol {protocol}, {count} conditions")
    conditions = tuple(_decode(cursor) for _ in range(count))
    cursor.end("conditions")
    return conditions


def _decode(cursor: ByteReader) -> Condition:
    kind, number = cursor.number(1, "kind"), cursor.number(8, "number")
    if number > NUMBER_MAX:
        raise Malformed(f"conditions: the number {number} is too large")
    match kind:
        case 1:
            return NextOffset(number)
        case 2:
            size = cursor.number(2, "size of the key")
            if size > KEY_BYTES_MAX:
                raise Malformed(f"conditions: a key has at most {KEY_BYTES_MAX} octets, not {size}")
            return KeyUnchanged(cursor.take(size, "key"), number)
        case 3:
            name = cursor.string("name")
            if not 1 <= len(name) <= NAME_BYTES_MAX:
                raise Malformed(f"conditions: a name has 1 to {NAME_BYTES_MAX} characters, not {len(name)}")
            return Fence(name, number)
        case 4:
            tag = cursor.string("tag")
            check_tag(tag)
            return TagUnchanged(tag, number)
        case _:
            raise Malformed(f"conditions: kind {kind} is not known")


def check_tag(tag: str) -> None:
    """Raise `Malformed` unless this is a tag."""
    if not 1 <= len(tag) <= TAG_BYTES_MAX or "," in tag or not all("!" <= letter <= "~" for letter in tag):
        raise Malformed(f"conditions: a tag has 1 to {TAG_BYTES_MAX} visible ASCII characters, no comma, not {tag!r}")


def encode_tags(tags: Sequence[str]) -> bytes:
    """The value of the header of tags."""
    return ",".join(tags).encode()


def decode_tags(data: bytes) -> tuple[str, ...]:
    try:
        tags = tuple(data.decode("ascii").split(","))
    except UnicodeDecodeError:
        raise Malformed("conditions: tags are ASCII") from None
    for tag in tags:
        check_tag(tag)
    if len(tags) > TAGS_MAX or len({*tags}) < len(tags):
        raise Malformed(f"conditions: a request has at most {TAGS_MAX} tags, each once")
    return tags


def is_conditional(raw: Bytes) -> bool:
    """True if the pack is written only if its conditions hold."""
    return bool(raw[COLUMNS_AT] & CONDITIONAL)


def conditions_of(raw: Bytes) -> tuple[tuple[Condition, ...], tuple[str, ...]]:
    """The conditions and tags of a conditional pack.

    Raises `Malformed` if the pack is not one request with conditions; their number may be 0.
    """
    if read_head(raw, 0).requests != 1:
        raise Malformed("conditions: a conditional pack is one request")
    cell = first_headers(raw)
    headers = decode_headers(cell) if cell is not None else {}
    if HEADER not in headers:
        raise Malformed(f"conditions: no header {HEADER}")
    return decode(headers[HEADER]), decode_tags(headers[TAGS_HEADER]) if TAGS_HEADER in headers else ()
