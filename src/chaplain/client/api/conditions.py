"""Conditions of writes: how the arguments of `write` and `write_many` become the header of a conditional pack."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from chaplain.client.protocol.journal.events import Batch
from chaplain.client.types import validation
from chaplain.errors import Misused
from chaplain.journal.messages.conditions import (
    CONDITIONAL,
    CONDITIONS_MAX,
    HEADER,
    KEY_BYTES_MAX,
    NAME_BYTES_MAX,
    Condition,
    Fence,
    KeyUnchanged,
    NextOffset,
    encode,
)
from chaplain.segment.headers import decode_headers, encode_headers

NEVER = -1
"""As the version of a key: no message has it."""


def conditions(
    expect_offset: int | None, key_versions: Mapping[bytes, int] | None, fence: tuple[str, int] | None
) -> list[Condition]:
    """The conditions that these arguments ask for."""
    asked: list[Condition] = []
    if fence is not None:
        asked.append(_fence(fence))
    if expect_offset is not None:
        asked.append(NextOffset(validation.number("expect_offset", expect_offset, requirement="counts from 0")))
    if key_versions is not None:
        if not isinstance(key_versions, Mapping):
            raise Misused(f"expect_key_versions is a dictionary from keys to offsets, not {key_versions!r:.40}")
        asked += [_key_unchanged(key, version) for key, version in key_versions.items()]
    if len(asked) > CONDITIONS_MAX:
        raise Misused(f"a write has at most {CONDITIONS_MAX} conditions, not {len(asked)}")
    return asked


def key_version(key: bytes | None, version: int | None) -> dict[bytes, int] | None:
    """The condition of a write of one message on its own key."""
    if version is None:
        return None
    if key is None:
        raise Misused("expect_key_version wants a key")
    return {key: version}


def with_conditions(batch: Batch, asked: list[Condition]) -> Batch:
    """The batch, which is written only if these conditions hold."""
    if not asked:
        return batch
    cells = [*(batch.headers or [None] * len(batch.values))]
    first = cells[0]
    headers = {} if first is None else decode_headers(first)
    if HEADER in headers:
        raise Misused(f"the header {HEADER!r} belongs to chaplain")
    headers[HEADER] = encode(asked)
    cell = encode_headers(headers)
    size_bytes = batch.size_bytes + len(cell) - len(first or b"")
    return replace(batch, headers=[cell, *cells[1:]], transaction=True, size_bytes=size_bytes, message_type=CONDITIONAL)


def _key_unchanged(key: bytes, version: int) -> KeyUnchanged:
    key = validation.octets(key)
    if len(key) > KEY_BYTES_MAX:
        raise Misused(f"the key of a condition has at most {KEY_BYTES_MAX} bytes, not {len(key)}")
    wanted = f"is an offset, or {NEVER} for a key without messages"
    return KeyUnchanged(key, validation.number("the version of a key", version, least=NEVER, requirement=wanted) + 1)


def _fence(fence: tuple[str, int]) -> Fence:
    if not isinstance(fence, tuple | list) or len(fence) != 2:
        raise Misused(f"a fence is a name and a token, not {fence!r:.40}")
    name = validation.name("the name of a fence", fence[0])
    if len(name) > NAME_BYTES_MAX:
        raise Misused(f"the name of a fence has at most {NAME_BYTES_MAX} characters, not {len(name)}")
    return Fence(name, validation.number("the token of a fence", fence[1]))
