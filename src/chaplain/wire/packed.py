"""Messages that msgspec packs: what cannot be read is `Malformed`, and nothing else is ever raised."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from chaplain.errors import Malformed

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for octets that it cannot read."""


def unpack(decoder: msgspec.msgpack.Decoder[T], data: bytes, what: str) -> T:
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise Malformed(f"{what}: {error}") from None
