"""Decoding of msgpack messages: raises `Malformed` for unreadable input, and nothing else."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from chaplain.errors import Malformed

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The exceptions that msgspec raises for unreadable input."""


def unpack(decoder: msgspec.msgpack.Decoder[T], data: bytes, what: str) -> T:
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise Malformed(f"{what}: {error}") from None
