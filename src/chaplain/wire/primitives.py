"""Big-endian primitives, each with exactly one encoding.

`ByteReader` reads them. It checks every length before it uses it, and raises `Malformed` and nothing else. The `put_*`
functions write them and raise `ValueError` for a value out of range, which is the caller's mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from chaplain.errors import Malformed
from chaplain.wire.limits import STRING_BYTES_MAX, STRINGS_MAX

VCHAR = bytes(range(0x21, 0x7F))


class ByteReader:
    """Reads primitives from the front of a byte string."""

    __slots__ = ("_data", "_size", "position")

    def __init__(self, data: bytes | memoryview, position: int = 0) -> None:
        self._data: bytes | memoryview = data if type(data) is bytes else memoryview(data)
        self._size = len(data)
        self.position = position

    def take(self, size: int, what: str) -> bytes:
        return bytes(self._next(size, what))

    def number(self, octets: int, what: str) -> int:
        # Hot path: every field of every message is read here, so this method avoids the call of `_next`.
        end = self.position + octets
        if end > self._size:
            raise self._too_short(octets, what)
        number = int.from_bytes(self._data[self.position : end], "big")
        self.position = end
        return number

    def _next(self, size: int, what: str) -> bytes | memoryview:
        end = self.position + size
        if end > self._size:
            raise self._too_short(size, what)
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def _too_short(self, size: int, what: str) -> Malformed:
        return Malformed(f"{what}: {size} octets wanted, {self._size - self.position} left")

    def string(self, what: str) -> str:
        taken = self.take(self.number(1, what), what)
        if taken.translate(None, VCHAR):
            raise Malformed(f"{what}: only visible ASCII is allowed")
        return taken.decode("ascii")

    def strings(self, what: str) -> tuple[str, ...]:
        return tuple(self.string(what) for _ in range(self.number(1, what)))

    def dictionary(self, what: str) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for line in self.strings(what):
            name, equals, value = line.partition("=")
            if not equals or not name or name in pairs:
                raise Malformed(f"{what}: each entry must be a new name=value")
            pairs[name] = value
        return pairs

    def rest(self) -> bytes:
        taken = bytes(self._data[self.position :])
        self.position = self._size
        return taken

    def end(self, what: str) -> None:
        left = self._size - self.position
        if left:
            raise Malformed(f"{what}: {left} octets too many")


def put_number(value: int, octets: int) -> bytes:
    try:
        return value.to_bytes(octets, "big")
    except OverflowError:
        raise ValueError(f"{value} does not fit in {octets} octets") from None


@lru_cache(maxsize=1024)
def put_string(value: str) -> bytes:
    """Encode a string. The cache helps because messages repeat few names: of clusters, pools and streams."""
    encoded = value.encode()
    if encoded.translate(None, VCHAR):
        raise ValueError(f"only visible ASCII is allowed, not {value!r}")
    if len(encoded) > STRING_BYTES_MAX:
        raise ValueError(f"a string holds at most {STRING_BYTES_MAX} octets, not {len(encoded)}")
    return bytes((len(encoded),)) + encoded


def put_strings(values: Iterable[str]) -> bytes:
    parts = [put_string(value) for value in values]
    if len(parts) > STRINGS_MAX:
        raise ValueError(f"a list holds at most {STRINGS_MAX} strings, not {len(parts)}")
    return bytes((len(parts),)) + b"".join(parts)


def put_dictionary(pairs: Mapping[str, str]) -> bytes:
    for name in pairs:
        if not name or "=" in name:
            raise ValueError(f"a name must be neither empty nor hold '=': {name!r}")
    return put_strings(f"{name}={value}" for name, value in pairs.items())
