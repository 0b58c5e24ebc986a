"""Converts the rows of a DataFrame to batches for the journal, column by column, split into packs by size.

This module defines the required columns and their types, with the meaning and errors of Spark's Kafka sink. It knows
neither Spark's writers nor the client.

Rows of one stream are collected across Arrow batches, because the journal bounds the number of staged packs: 70 Arrow
batches with 1,000 topics each would otherwise be 70,000 packs of ten rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from chaplain.client.protocol.journal.events import Batch
from chaplain.client.protocol.journal.packing import PACK_MESSAGES, REQUEST_BYTES_MAX, packed_bytes
from chaplain.client.types.validation import journal_stream
from chaplain.errors import ConfigError
from chaplain.journal.execution.two_phase import STAGED
from chaplain.segment.headers import encode_headers

BATCH_BYTES = 128 << 10
BATCH_ROWS = PACK_MESSAGES // 2
BUFFER_BYTES = 32 << 20
"""Bound of the rows that a task collects. At the bound, the largest streams are written until half is free."""
_OCTETS = (BinaryType, StringType)


def check_schema(schema: StructType, topic: str) -> None:
    """Refuse a DataFrame that cannot be written. Unknown columns are ignored, as Kafka's sink does."""
    kinds: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    if "value" not in kinds:
        raise ConfigError("a column value is needed: the content of each message, binary or string")
    if not topic and "topic" not in kinds:
        raise ConfigError("set the option topic, or add a column topic: the stream to write to")
    for name in ("value", "key"):
        if name in kinds and not isinstance(kinds[name], _OCTETS):
            raise ConfigError(f"column {name} must be binary or string, not {kinds[name].simpleString()}")
    if "topic" in kinds and not isinstance(kinds["topic"], StringType):
        raise ConfigError(f"column topic must be a string, not {kinds['topic'].simpleString()}")
    if "headers" in kinds and not _are_headers(kinds["headers"]):
        raise ConfigError("column headers must be array<struct<key:string,value:binary>>")


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    names = {field.name: type(field.dataType) for field in kind.elementType.fields}
    return names == {"key": StringType, "value": BinaryType}


class BatchBuffer:
    """Collects the rows of a task by stream, and yields batches of full size. Keeps the order within a stream."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._pending: dict[str, _PendingRows] = {}
        self._size_bytes = 0

    def add(self, rows: Any) -> Iterator[Batch]:
        """Add one Arrow batch, and yield the batches that are full."""
        if rows.num_rows == 0:
            return
        for stream, part in [(self._topic, rows)] if self._topic else _by_topic(rows):
            pending = self._pending.setdefault(stream, _PendingRows())
            pending.add(part)
            self._size_bytes += part.nbytes
            if pending.rows >= BATCH_ROWS or pending.size_bytes >= BATCH_BYTES:
                yield from self._take(stream, final=False)
        if self._size_bytes > BUFFER_BYTES:
            for stream in sorted(self._pending, key=lambda stream: -self._pending[stream].size_bytes):
                yield from self._take(stream, final=True)
                if self._size_bytes <= BUFFER_BYTES // 2:
                    return

    def flush(self) -> Iterator[Batch]:
        """Yield all that is left."""
        for stream in list(self._pending):
            yield from self._take(stream, final=True)

    def _take(self, stream: str, final: bool) -> Iterator[Batch]:
        """Yield the batches of a stream; unless `final`, keep the last one, which may grow."""
        pending = self._pending.pop(stream)
        self._size_bytes -= pending.size_bytes
        rows = pending.joined()
        found = list(_cut(rows, stream))
        if not final:
            kept = self._pending[stream] = _PendingRows()
            kept.add(rows.slice(rows.num_rows - len(found.pop().values)))
            self._size_bytes += kept.size_bytes
        yield from found


class _PendingRows:
    """Rows of one stream that wait for more."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self.rows = 0
        self.size_bytes = 0

    def add(self, part: Any) -> None:
        self._parts.append(part)
        self.rows += part.num_rows
        self.size_bytes += part.nbytes

    def joined(self) -> Any:
        if len(self._parts) == 1:
            return self._parts[0]
        return pa.Table.from_batches(self._parts).combine_chunks().to_batches()[0]


def batches(rows: Any, topic: str) -> Iterator[Batch]:
    """Convert one Arrow batch, stream by stream. The order of rows within a stream is kept."""
    buffer = BatchBuffer(topic)
    yield from buffer.add(rows)
    yield from buffer.flush()


def _by_topic(rows: Any) -> Iterator[tuple[str, Any]]:
    """Yield the rows of each topic. One sort costs less than a comparison of all rows with each topic."""
    topics = rows.column("topic")
    if topics.null_count:
        raise ConfigError("a row has no topic: set the option topic, or fill the column")
    encoded = topics.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    ordered = rows.take(pa.array(np.argsort(codes, kind="stable")))
    start = 0
    for stream, count in zip(encoded.dictionary.to_pylist(), np.bincount(codes).tolist(), strict=True):
        yield stream, ordered.slice(start, count)
        start += count


def _cut(rows: Any, stream: str) -> Iterator[Batch]:
    journal_stream(stream)
    values = _octets(rows, "value")
    if values.null_count:
        raise ConfigError("a row has no value: a journal has no empty messages; filter such rows out")
    keys, headers = _octets(rows, "key"), _headers(rows)
    sizes = _sizes(values) + (0 if keys is None else _sizes(keys))
    sizes = sizes + (0 if headers is None else np.array([len(one or b"") for one in headers], np.int64))
    for start, end in cut_points(sizes):
        part = slice(start, end)
        batch = Batch(
            stream,
            values[part].to_pylist(),
            None if keys is None else keys[part].to_pylist(),
            None if headers is None else headers[part],
            size_bytes=int(sizes[part].sum()),
            message_type=STAGED,
        )
        if packed_bytes(batch) > REQUEST_BYTES_MAX:
            raise ConfigError(
                f"a row of {batch.size_bytes} bytes is too long: a message has {REQUEST_BYTES_MAX} at most"
            )
        yield batch


def cut_points(sizes: Any) -> Iterator[tuple[int, int]]:
    """Yield the bounds of batches of consecutive rows. A row longer than `BATCH_BYTES` is a batch of its own."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        fit = int(np.searchsorted(ends, before + BATCH_BYTES, "right"))
        end = min(max(start + 1, fit), start + BATCH_ROWS, len(sizes))
        yield start, end
        start = end


def _octets(rows: Any, name: str) -> Any:
    """Return a column as binary; None if it does not exist or is optional and contains only nulls."""
    if name not in rows.schema.names:
        return None
    column = rows.column(name)
    if name != "value" and column.null_count == len(column):
        return None
    return column.cast(pa.binary())


def _sizes(column: Any) -> Any:
    return pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _headers(rows: Any) -> Sequence[bytes | None] | None:
    if "headers" not in rows.schema.names:
        return None
    cells = rows.column("headers").to_pylist()
    if not any(cells):
        return None
    return [_encoded(cell) if cell else None for cell in cells]


def _encoded(cell: Sequence[Mapping[str, Any] | None]) -> bytes:
    """Encode one row's headers. Kafka allows equal names; here the second would replace the first, so it is refused."""
    names = [one["key"] for one in cell if one is not None]
    if len(names) != len(cell) or None in names or len({*names}) != len(names):
        raise ConfigError(f"a row has headers {names}: each header of a row needs a name that is unique in the row")
    try:
        return encode_headers({one["key"]: one["value"] or b"" for one in cell if one is not None})
    except ValueError as error:
        raise ConfigError(f"a row has headers that cannot be written: {error}") from None
