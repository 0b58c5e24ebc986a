"""Conditions of writes: how the arguments of `write` and `write_many` become the header of a conditional pack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from chaplain.client.protocol.journal.events import Batch
from chaplain.client.types import validation
from chaplain.core import Frozen
from chaplain.errors import Malformed, Misused
from chaplain.journal.messages.conditions import (
    CONDITIONS_MAX,
    HEADER,
    KEY_BYTES_MAX,
    NAME_BYTES_MAX,
    NUMBER_MAX,
    TAGS_HEADER,
    TAGS_MAX,
    Condition,
    Fence,
    KeyUnchanged,
    NextOffset,
    TagUnchanged,
    check_tag,
    encode,
    encode_tags,
)
from chaplain.segment.headers import decode_headers, encode_headers

NEVER = -1
"""As the version of a key: no message has it."""


class Terms(Frozen, frozen=True):
    """The conditions and the tags of a write."""

    conditions: tuple[Condition, ...] = ()
    tags: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.conditions or self.tags)


def terms(
    expect_offset: int | None = None,
    key_versions: Mapping[bytes, int] | None = None,
    fence: tuple[str, int] | None = None,
    tags: Iterable[str] | None = None,
    expect_tags: Mapping[str, int] | None = None,
) -> Terms:
    """The conditions and tags that these arguments ask for."""
    asked: list[Condition] = []
    if fence is not None:
        asked.append(_fence(fence))
    if expect_offset is not None:
        asked.append(NextOffset(validation.number("expect_offset", expect_offset, requirement="counts from 0")))
    if key_versions is not None:
        if not isinstance(key_versions, Mapping):
            raise Misused(f"expect_key_versions is a dictionary from keys to offsets, not {key_versions!r:.40}")
        asked += [_key_unchanged(key, version) for key, version in key_versions.items()]
    if expect_tags is not None:
        if not isinstance(expect_tags, Mapping):
            raise Misused(f"expect_tags is a dictionary from tags to offsets, not {expect_tags!r:.40}")
        asked += [TagUnchanged(_tag(tag), _since("the version of a tag", at)) for tag, at in expect_tags.items()]
    if len(asked) > CONDITIONS_MAX:
        raise Misused(f"a write has at most {CONDITIONS_MAX} conditions, not {len(asked)}")
    own = tuple(map(_tag, () if tags is None else validation.several("tags", tags)))
    if len(own) > TAGS_MAX or len({*own}) < len(own):
        raise Misused(f"a write has at most {TAGS_MAX} tags, each once")
    return Terms(tuple(asked), own)


def key_version(key: bytes | None, version: int | None) -> dict[bytes, int] | None:
    """The condition of a write of one message on its own key."""
    if version is None:
        return None
    if key is None:
        raise Misused("expect_key_version wants a key")
    return {key: version}


def with_terms(batch: Batch, asked: Terms) -> Batch:
    """The batch with these tags, which is written only if these conditions hold."""
    if not asked:
        return batch
    return _conditional(batch, asked, {})


def with_acknowledgement(batch: Batch, header: Mapping[str, bytes]) -> Batch:
    """The batch, which is written only if this acknowledgement of a consumed message counts."""
    return _conditional(batch, Terms(), header)


def _conditional(batch: Batch, asked: Terms, more: Mapping[str, bytes]) -> Batch:
    added = {HEADER: encode(asked.conditions), **more}
    if asked.tags:
        added[TAGS_HEADER] = encode_tags(asked.tags)
    cells = [*(batch.headers or [None] * len(batch.values))]
    first = cells[0]
    headers = {} if first is None else decode_headers(first)
    if taken := sorted(headers.keys() & {HEADER, TAGS_HEADER, *more}):
        raise Misused(f"the header {taken[0]!r} belongs to chaplain")
    cell = encode_headers({**headers, **added})
    size_bytes = batch.size_bytes + len(cell) - len(first or b"")
    return replace(batch, headers=[cell, *cells[1:]], transaction=True, size_bytes=size_bytes, conditional=True)


def _key_unchanged(key: bytes, version: int) -> KeyUnchanged:
    key = validation.octets(key)
    if len(key) > KEY_BYTES_MAX:
        raise Misused(f"the key of a condition has at most {KEY_BYTES_MAX} bytes, not {len(key)}")
    return KeyUnchanged(key, _since("the version of a key", version))


def _since(what: str, version: int) -> int:
    """The first offset after this version."""
    wanted = f"is an offset, or {NEVER} for none"
    return validation.number(what, version, NEVER, NUMBER_MAX - 1, wanted) + 1


def _tag(given: str) -> str:
    try:
        check_tag(given if isinstance(given, str) else "")
    except Malformed as wrong:
        raise Misused(str(wrong)) from None
    return given


def _fence(fence: tuple[str, int]) -> Fence:
    if not isinstance(fence, tuple | list) or len(fence) != 2:
        raise Misused(f"a fence is a name and a token, not {fence!r:.40}")
    name = validation.name("the name of a fence", fence[0])
    if len(name) > NAME_BYTES_MAX:
        raise Misused(f"the name of a fence has at most {NAME_BYTES_MAX} characters, not {len(name)}")
    return Fence(name, validation.number("the token of a fence", fence[1]))
