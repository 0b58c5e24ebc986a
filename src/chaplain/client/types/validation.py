"""Checks of arguments.

Each function takes an argument as the caller gave it and returns its value, or raises `Misused`. Both clients call
these before anything is sent, so a mistake is reported where it was made, with what is expected. Types are not trusted,
because callers need not use a type checker. Integers may be numpy's.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from chaplain.client_service.messages import NAME_BYTES_MAX
from chaplain.errors import Malformed, Misused
from chaplain.journal.messages.write_request import REQUEST_ID_MAX, check_stream
from chaplain.link.auth.identity import KEY_BYTES, from_text
from chaplain.link.endpoint import split_endpoint

T = TypeVar("T")

NUMBER_MAX = (1 << 63) - 1
"""Largest number that is accepted."""
TIMEOUT_S_MAX = 86_400
"""Longest timeout of a call: a day."""
WAIT_S_MAX = 1_000_000_000
"""Longest wait for new items."""


def name(what: str, given: str) -> str:
    """Check a name. Names are encoded in the string format of mesh.txt: visible ASCII, at most 255 octets."""
    if isinstance(given, str) and 0 < len(given) <= NAME_BYTES_MAX and all("!" <= letter <= "~" for letter in given):
        return given
    raise Misused(f"{what} has 1 to {NAME_BYTES_MAX} visible ASCII characters without blanks, not {str(given)[:40]!r}")


def journal_stream(given: str) -> str:
    """The name of a stream that clients may write to."""
    name("a stream's name", given)
    try:
        check_stream(given)
    except Malformed as wrong:
        raise Misused(str(wrong)) from None
    return given


def octets(given: bytes) -> bytes:
    """Check bytes and copy mutable ones."""
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise Misused(f"bytes are wanted, not {_kind(given)}: encode text with .encode()")


def number(what: str, given: int, least: int = 0, most: int = NUMBER_MAX, requirement: str = "") -> int:
    """Check an integer. `requirement` replaces "is a number from .. on" in the error."""
    try:
        taken = operator.index(given)
    except TypeError:
        taken = least - 1
    if least <= taken <= most:
        return taken
    wanted = requirement or f"is a number from {least} " + ("on" if most == NUMBER_MAX else f"to {most}")
    raise Misused(f"{what} {wanted}, not {given!r}")


def timeout_s(given: float) -> float:
    """Check the time limit of a call."""
    if isinstance(given, int | float) and 0 < given <= TIMEOUT_S_MAX:
        return given
    raise Misused(f"a timeout is a number of seconds above 0 and up to a day, not {given!r}")


def wait_s(given: float | None) -> float | None:
    """Check how long to wait for something new; None means forever."""
    if given is None or (isinstance(given, int | float) and 0 <= given <= WAIT_S_MAX):
        return given
    raise Misused(f"a timeout is a number of seconds from 0 on, or None to wait for ever, not {given!r}")


def several(what: str, given: Iterable[T]) -> list[T]:
    """Check a list. A str, bytes or mapping is one value that the caller forgot to put into a list."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray | memoryview | Mapping):
        return list(given)
    raise Misused(f"a list of {what} is wanted, not {_kind(given)}: write [...] around a single one")


def path(given: str | Path) -> Path:
    if isinstance(given, str | os.PathLike):
        return Path(given)
    raise Misused(f"a path is wanted, not {_kind(given)}")


def endpoint(given: str) -> str:
    if not isinstance(given, str):
        raise Misused(f"an endpoint is tcp://address:port, not {given!r}")
    split_endpoint(given)
    return given


def key(what: str, given: str | bytes) -> bytes:
    """Check a public key, given as text or as bytes."""
    if isinstance(given, str):
        return from_text(given, KEY_BYTES, what)
    if not isinstance(given, bytes):
        raise Misused(f"a key is its text or its bytes, not {_kind(given)}")
    if len(given) != KEY_BYTES:
        raise Misused(f"{what} has {KEY_BYTES} bytes, not {len(given)}")
    return given


def request_id(given: Any) -> tuple[int, int]:
    """Check a request id."""
    parts = given if isinstance(given, tuple | list) else ()
    if [type(part) for part in parts] == [int, int] and min(parts) >= 1 and max(parts) <= REQUEST_ID_MAX:
        return parts[0], parts[1]
    raise Misused(f"a request's id is two numbers from 1 on, as the `id` of an `Unknown`, not {given!r}")


def _kind(given: object) -> str:
    return type(given).__name__
