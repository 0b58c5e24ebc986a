"""Collects the messages of one write until they are submitted as a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from chaplain.client.protocol.journal.events import Batch
from chaplain.client.protocol.journal.packing import PACK_BYTES, PACK_MESSAGES, REQUEST_BYTES_MAX, packed_bytes
from chaplain.client.types import validation
from chaplain.errors import Misused
from chaplain.segment.headers import encode_headers

Headers: TypeAlias = Mapping[str, bytes]


CHUNK_BYTES = PACK_BYTES // 2
"""A writer submits its collected messages at this size."""


CHUNK_MESSAGES = PACK_MESSAGES // 2
"""A writer submits its collected messages at this count."""


def _encode(headers: Headers) -> bytes:
    if not isinstance(headers, Mapping):
        raise Misused(f"headers are a dictionary from names to bytes, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str):
            raise Misused(f"a header's name is a str, not {name!r}")
        if not isinstance(value, bytes | bytearray | memoryview):
            raise Misused(f"the value of header {name!r} is bytes, not {type(value).__name__}: use .encode()")
    try:
        return encode_headers(headers)
    except ValueError as wrong:
        raise Misused(str(wrong)) from None


class BatchBuilder:
    """Collects messages. The columns for keys and headers exist only once a message has one."""

    __slots__ = ("_headers", "_keys", "_values", "size_bytes")

    def __init__(self) -> None:
        self._values: list[bytes] = []
        self._keys: list[bytes | None] | None = None
        self._headers: list[bytes | None] | None = None
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def full(self) -> bool:
        """True if the messages should be submitted now."""
        return self.size_bytes >= CHUNK_BYTES or len(self._values) >= CHUNK_MESSAGES

    def add(self, value: bytes, key: bytes | None = None, headers: Headers | None = None) -> None:
        """Add one message. Raises `Misused` before anything of the message is added.

        The value is added last. If an exception interrupts the method before that, at most a key or headers are left
        over; later calls discard them.
        """
        if type(value) is not bytes:
            value = validation.octets(value)
        size, encoded = len(value), _encode(headers) if headers else None
        if key is not None or self._keys is not None:
            size += self._add_key(key)
        if encoded is not None or self._headers is not None:
            size += self._add_headers(encoded)
        if size > CHUNK_BYTES:
            _checked(Batch("", [value], [key], [encoded], size_bytes=size))
        self._values.append(value)
        self.size_bytes += size

    def extend(self, values: list[bytes]) -> None:
        """Add values without keys and headers. The builder must have neither."""
        assert self._keys is None
        assert self._headers is None
        self._values += values
        self.size_bytes += sum(map(len, values))

    def _add_key(self, key: bytes | None) -> int:
        taken = None if key is None else validation.octets(key)
        if self._keys is None:
            self._keys = [None] * len(self._values)
        del self._keys[len(self._values) :]
        self._keys.append(taken)
        return len(taken or b"")

    def _add_headers(self, encoded: bytes | None) -> int:
        if self._headers is None:
            self._headers = [None] * len(self._values)
        del self._headers[len(self._values) :]
        self._headers.append(encoded)
        return len(encoded or b"")

    def batches(self, stream: str, message_type: int) -> Iterator[Batch]:
        """Return the collected messages as batches.

        Only the last message can be large. It gets a batch of its own.
        """
        large = self._last_bytes() > CHUNK_BYTES
        last = self._split_last() if large and len(self) > 1 else None
        yield self.batch(stream, message_type=message_type)
        if last is not None:
            yield last.batch(stream, message_type=message_type)

    def _last_bytes(self) -> int:
        columns, last = (self._values, self._keys, self._headers), len(self) - 1
        return sum(len(column[last] or b"") for column in columns if column is not None)

    def _split_last(self) -> BatchBuilder:
        last = BatchBuilder()
        last.size_bytes = self._last_bytes()
        self.size_bytes -= last.size_bytes
        last._values = [self._values.pop()]
        last._keys = None if self._keys is None else [self._keys[len(self)]]
        last._headers = None if self._headers is None else [self._headers[len(self)]]
        return last

    def batch(self, stream: str, *, transaction: bool = False, message_type: int = 0) -> Batch:
        """Return all messages as one batch. Raises `Misused` if they are too large for one request."""
        for column in (self._keys, self._headers):
            if column is not None:
                del column[len(self) :]
        return _checked(
            Batch(stream, self._values, self._keys, self._headers, transaction, self.size_bytes, message_type)
        )


def _checked(batch: Batch) -> Batch:
    """Raise `Misused` if the batch is too large for one request."""
    needed = packed_bytes(batch)
    if needed > REQUEST_BYTES_MAX:
        raise Misused(
            f"{batch.size_bytes} bytes in {len(batch.values)} messages are too much for one request: encoded they"
            f" take {needed} bytes, and the limit is {REQUEST_BYTES_MAX}; write them in parts"
        )
    return batch
