"""Read a range of a stream as an Arrow table, for programs without Spark.

Packs are decoded by column; no code runs per row. The table is always bounded: a range with too many messages raises
`Misused` and never returns a truncated table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaplain.client.protocol.journal.events import ReadChunk
from chaplain.client.types import validation
from chaplain.errors import PYARROW_MISSING, ConfigError, Misused
from chaplain.segment.pack import heads_of
from chaplain.segment.record import Kind, Record

try:
    import pyarrow as pa
    import pyarrow.compute as pc

    from chaplain.segment import arrow
except ModuleNotFoundError:
    raise ConfigError(PYARROW_MISSING) from None

COLUMNS = tuple(name for name in arrow.COLUMNS if name != "headers")


class TableReader:
    """Collects the chunks of one read; `table` returns their messages."""

    def __init__(self, stream: str, columns: Sequence[str] | None, limit: int) -> None:
        self.columns = list(COLUMNS) if columns is None else validation.several("columns", columns)
        unknown = [name for name in self.columns if name not in COLUMNS]
        if unknown:
            raise Misused(f"no column {', '.join(map(repr, unknown))}; there are: {', '.join(COLUMNS)}")
        self._stream = stream
        self._limit = validation.number("a limit", limit, 1, requirement="is a number of rows from 1 on")
        self._rows = 0
        self._batches: list[Any] = []

    def take(self, chunk: ReadChunk) -> None:
        """Add a chunk. Raises `Misused` beyond the limit of rows."""
        self._rows += chunk.stop - chunk.start
        if self._rows > self._limit:
            there = f"{self._stream!r} has more than {self._limit} messages there"
            raise Misused(f"{there}: give stop= or a larger limit=, or use Spark")
        wanted = [*self.columns, *(["offset"] if "offset" not in self.columns else [])]
        for batch in arrow.to_record_batches([record_of(self._stream, chunk)], wanted):
            offsets = batch.column(wanted.index("offset"))
            inside = pc.and_(pc.greater_equal(offsets, chunk.start), pc.less(offsets, chunk.stop))
            self._batches.append(batch.filter(inside).select(self.columns))

    def table(self) -> Any:
        schema = pa.schema([arrow.SCHEMA.field(name) for name in self.columns])
        return pa.Table.from_batches(self._batches, schema)


def record_of(stream: str, chunk: ReadChunk) -> Record:
    """The chunk as a segment record, the input of the columnar decoder."""
    return Record(
        Kind.BATCH,
        chunk.packs,
        index=chunk.index,
        first_offset=chunk.first_offset,
        timestamp_ns=chunk.timestamp_ns,
        count=sum(head.count for head in heads_of(chunk.packs)),
        regime=chunk.regime,
        stream=stream,
        origin_node=chunk.ingest_node,
    )


def to_polars(table: Any) -> Any:
    """Convert a table to a polars DataFrame."""
    try:
        import polars  # noqa: PLC0415  optional
    except ImportError:
        raise ConfigError("polars is not installed: pip install polars") from None
    return polars.from_arrow(table)
