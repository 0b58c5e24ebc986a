"""A stretch of a stream as an Arrow table, for readers without Spark. Decoded by column: nobody looks at single rows.

Always bounded: what does not fit the bound is an error, never a table that ends too early.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chaplain.client.protocol.journal.events import ReadChunk
from chaplain.client.types import validation
from chaplain.errors import ConfigError, Misused
from chaplain.segment import arrow
from chaplain.segment.pack import heads_of
from chaplain.segment.record import Kind, Record

COLUMNS = tuple(name for name in arrow.COLUMNS if name != "headers")


class TableReader:
    """Give it the portions of one reading; `table` is what they hold."""

    def __init__(self, stream: str, columns: Sequence[str] | None, limit: int) -> None:
        self.columns = list(COLUMNS) if columns is None else validation.several("columns", columns)
        unknown = [name for name in self.columns if name not in COLUMNS]
        if unknown:
            raise Misused(f"no column {', '.join(map(repr, unknown))}; there are: {', '.join(COLUMNS)}")
        self._stream = stream
        self._limit = validation.number("a limit", limit, 1, said="is a number of rows from 1 on")
        self._rows = 0
        self._batches: list[Any] = []

    def take(self, portion: ReadChunk) -> None:
        self._rows += portion.stop - portion.start
        if self._rows > self._limit:
            there = f"{self._stream!r} has more than {self._limit} messages there"
            raise Misused(f"{there}: give stop= or a larger limit=, or use Spark")
        wanted = [*self.columns, *(["offset"] if "offset" not in self.columns else [])]
        for batch in arrow.to_record_batches([record_of(self._stream, portion)], wanted):
            offsets = batch.column(wanted.index("offset"))
            inside = pc.and_(pc.greater_equal(offsets, portion.start), pc.less(offsets, portion.stop))
            self._batches.append(batch.filter(inside).select(self.columns))

    def table(self) -> Any:
        schema = pa.schema([arrow.SCHEMA.field(name) for name in self.columns])
        return pa.Table.from_batches(self._batches, schema)


def record_of(stream: str, portion: ReadChunk) -> Record:
    """The portion as a record of a segment, which the decoder takes."""
    return Record(
        Kind.BATCH,
        portion.packs,
        index=portion.index,
        first_offset=portion.first_offset,
        timestamp_ns=portion.timestamp_ns,
        count=sum(head.count for head in heads_of(portion.packs)),
        regime=portion.regime,
        stream=stream,
        origin_node=portion.ingest_node,
    )


def to_polars(table: Any) -> Any:
    """A polars frame of a table."""
    try:
        import polars  # noqa: PLC0415  optional
    except ImportError:
        raise ConfigError("polars is not installed: pip install polars") from None
    return polars.from_arrow(table)
