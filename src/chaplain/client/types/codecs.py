"""Codecs: values of a program in, values of a program out, bytes in the log.

A codec is an object with `encode` and `decode`. A stream does not know its codec: each program chooses how it reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from chaplain.errors import PYARROW_MISSING, ConfigError, Misused

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V = TypeVar("V", default=bytes)
    """The type of values: bytes without a codec."""
    T = TypeVar("T")
else:  # Python 3.11 knows no defaults of type variables, and type checkers know this package without installing it
    from typing import TypeVar

    V, T = TypeVar("V"), TypeVar("T")

CodecName: TypeAlias = Literal["json", "arrow"]
_lock = Lock()
"""msgspec builds its type information at the first use of a class and crashes if two threads do so at the same time."""


@runtime_checkable
class Codec(Protocol[T]):
    """Turns values into bytes and back. `decode` may raise any error: the message is then undecodable."""

    def encode(self, value: T, /) -> bytes: ...
    def decode(self, data: bytes, /) -> T: ...


class JsonCodec(Generic[T]):
    """JSON, of any values or of one type that msgspec knows: a `Struct`, a dataclass, `list[int]`."""

    def __init__(self, kind: Any = Any) -> None:
        self._kind = kind
        self._is_record = isinstance(kind, type) and (
            issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)
        )
        try:
            with _lock:
                self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        except TypeError as wrong:
            raise Misused(
                f"a codec is 'json', 'arrow', a type of JSON values, or has encode and decode: {wrong}"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonCodec, (self._kind,)

    def __repr__(self) -> str:
        return "json" if self._kind is Any else f"json of {getattr(self._kind, '__name__', self._kind)}"

    def encode(self, value: T, /) -> bytes:
        if self._is_record and not isinstance(value, self._kind):
            raise Misused(f"values of this journal are of type {self._kind.__name__}, not {type(value).__name__}")
        try:
            return msgspec.json.encode(value)
        except (TypeError, ValueError) as wrong:
            raise Misused(f"the value has no JSON: {wrong}") from None

    def decode(self, data: bytes, /) -> T:
        return self._decoder.decode(data)


class ArrowCodec:
    """Tables of pyarrow in Arrow's streaming format. A record batch is read as a table."""

    def __init__(self) -> None:
        try:
            import pyarrow  # noqa: PLC0415  slow to import and rarely needed
        except ModuleNotFoundError:
            raise ConfigError(PYARROW_MISSING) from None

        self._arrow = pyarrow

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowCodec, ()

    def __repr__(self) -> str:
        return "arrow"

    def encode(self, value: Any, /) -> bytes:
        if not isinstance(value, self._arrow.Table | self._arrow.RecordBatch):
            raise Misused(f"values of this journal are tables of pyarrow, not {type(value).__name__}")
        sink = self._arrow.BufferOutputStream()
        with self._arrow.ipc.new_stream(sink, value.schema) as writer:
            writer.write(value)
        found: bytes = sink.getvalue().to_pybytes()
        return found

    def decode(self, data: bytes, /) -> Any:
        return self._arrow.ipc.open_stream(data).read_all()


def codec_of(given: Any) -> Codec[Any] | None:
    """The codec that an argument names."""
    if given is None:
        return None
    if isinstance(given, str):
        if given not in ("json", "arrow"):
            raise Misused(f"a codec is 'json', 'arrow', a type of JSON values, or has encode and decode, not {given!r}")
        return JsonCodec() if given == "json" else ArrowCodec()
    if not isinstance(given, type) and isinstance(given, Codec):
        return given
    return JsonCodec(given)


def encoded_items(codec: Codec[Any] | None, items: Iterable[Any]) -> Iterator[Any]:
    """The items of `write_many` with encoded values. A tuple is a value with its key, not a value."""
    for item in items:
        if codec is None:
            yield item
        elif isinstance(item, tuple) and item:
            yield (codec.encode(item[0]), *item[1:])
        else:
            yield codec.encode(item)
