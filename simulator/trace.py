"""The trace of a run: readable lines, and one digest for comparing runs.

Two runs are the same run if and only if their digests are equal. The digest covers every byte of every input and
effect; a line shows only the length and first bytes of long values.

Invariant: nothing that differs between processes (object addresses, set orders) enters the digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

import msgspec

_BYTES_SHOWN = 12
_TEXT_SHOWN = 160


class Trace:
    """Hashes and prints every input with its effects; stores no history."""

    __slots__ = ("_encode", "_hash", "_print", "steps")

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._hash = blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder(order="deterministic").encode
        self._print = show
        self.steps = 0

    def record(self, time_ns: int, node: str, process: int, event: object, effects: Sequence[object]) -> None:
        self.steps += 1
        kinds = [type(effect).__name__ for effect in effects]
        self._hash.update(self._encode((time_ns, node, process, type(event).__name__, event, kinds, effects)))
        if self._print is not None:
            self._print(f"{stamp(time_ns)} {node}.{process} < {describe(event)}")
            for effect in effects:
                self._print(f"{' ' * 14} {node}.{process} > {describe(effect)}")

    def note(self, time_ns: int, text: str) -> None:
        """Record an action of the world: a fault, a crash, a heal."""
        self._hash.update(self._encode((time_ns, text)))
        if self._print is not None:
            self._print(f"{stamp(time_ns)} * {text}")

    def digest(self) -> str:
        return self._hash.hexdigest()


def stamp(time_ns: int) -> str:
    return f"{time_ns // 10**9:4d}.{time_ns % 10**9:09d}"


def describe(value: object) -> str:
    """One line for any message: `Arrived(channel=1, frame=<64: 01ab…>)`."""
    if isinstance(value, msgspec.Struct):
        fields = ", ".join(f"{name}={_short(getattr(value, name))}" for name in value.__struct_fields__)
        return f"{type(value).__name__}({fields})"
    return _short(value)


def _short(value: object) -> str:
    if isinstance(value, bytes):
        if len(value) <= _BYTES_SHOWN:
            return value.hex() or "empty"
        return f"<{len(value)}: {value[:_BYTES_SHOWN].hex()}…>"
    if isinstance(value, msgspec.Struct):
        return describe(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_short(item) for item in value[:4]) + (", …]" if len(value) > 4 else "]")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_short(key)}: {_short(value[key])}" for key in list(value)[:8]) + "}"
    text = repr(value)
    return text if len(text) <= _TEXT_SHOWN else text[:_TEXT_SHOWN] + "…"
