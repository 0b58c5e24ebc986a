"""Converts records to rows for Spark: Arrow batches with the columns of the source, restricted to a range of offsets.

This module defines the columns and their types, and which rows may be absent. It loops over packs and batches, never
over rows.

Invariant: a range yields all its rows, or raises. With `failOnDataLoss=false` it leaves out rows that retention dropped
after the range was planned, and no others. An unreadable file, a refused identity or a lost connection is never treated
as data loss: otherwise a streaming query would record rows as processed that still exist.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from chaplain.core import Frozen
from chaplain.errors import ChaplainError, Dropped, Inaccessible, Malformed, Missing, StorageError
from chaplain.pipeline.source.offset_index import RecordPlace, read_places
from chaplain.segment import arrow
from chaplain.segment.files import list_segments
from chaplain.segment.headers import check, decode_headers, malformed, split
from chaplain.segment.layout import parse_name
from chaplain.segment.record import Record

log = logging.getLogger(__name__)

_HEADERS = "headers array<struct<key:string,value:binary>>"
_FRONT = ("key binary", "value binary", "topic string", "partition int", "offset bigint", "timestamp timestamp")
_BACK = (
    "kind int",
    "client_id bigint",
    "client_message_id bigint",
    "message_no int",
    "regime bigint",
    "message_index bigint",
    "ingest_node int",
    "pack_digest binary",
)
LOG_APPEND_TIME = 1
"""Kafka's `timestampType` of a timestamp that the log assigned, not the producer."""
_CONSTANTS = {"partition": 0, "timestampType": LOG_APPEND_TIME}
MALFORMED_NAME = ""
"""The header name under which a malformed cell is shown, as in the Python client."""
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def fields(headers: bool) -> tuple[str, ...]:
    """Return the columns with their types, as in a Spark DDL schema."""
    return (*_FRONT, "timestampType int", *((_HEADERS,) if headers else ()), *_BACK)


def schema_text(headers: bool) -> str:
    return ", ".join(fields(headers))


class OffsetRange(Frozen, frozen=True):
    """The offsets of a stream from `start` up to, but not including, `end`."""

    stream: str
    start: int
    end: int


class DroppedRows:
    """Counts the rows of a range that retention dropped before they were read."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self.count = 0

    def add(self, start: int, end: int) -> None:
        """Count the offsets from `start` up to, but not including, `end`."""
        if start < end:
            log.warning("%r: offsets %d to %d were dropped, and are left out", self._stream, start, end - 1)
            self.count += end - start


class Range(OffsetRange, frozen=True):
    """A range of offsets, with the places of the records that contain them."""

    places: tuple[RecordPlace, ...]


def ranges(places: Sequence[RecordPlace], stream: str, start: int, end: int, parts: int) -> list[Range]:
    """Split offsets into about `parts` ranges, each with the places of its records."""
    return [_range(places, stream, low, high) for low, high in cuts(start, end, parts)]


def cuts(start: int, end: int, parts: int) -> list[tuple[int, int]]:
    """Split offsets into about `parts` ranges of equal length; none if there are no offsets."""
    step = max(1, -(-(end - start) // max(1, parts)))
    return [(low, min(low + step, end)) for low in range(start, end, step)]


def _range(places: Sequence[RecordPlace], stream: str, start: int, end: int) -> Range:
    held = tuple(one for one in places if one.first_offset < end and one.first_offset + one.count > start)
    return Range(stream, start, end, held)


def read_range(
    wanted: Range, columns: Sequence[str], fail_on_loss: bool = True, fail_on_headers: bool = True
) -> Iterator[Any]:
    """Read the rows of a range as Arrow batches. Without `fail_on_loss` dropped rows are left out."""
    dropped = DroppedRows(wanted.stream)
    return rows_of(_records(wanted, fail_on_loss, dropped), wanted, columns, dropped, fail_on_headers)


def rows_of(
    records: Iterable[Record],
    wanted: OffsetRange,
    columns: Sequence[str],
    dropped: DroppedRows | None = None,
    fail_on_headers: bool = True,
) -> Iterator[Any]:
    """Convert the records' rows within a range, from any backend. Check at the end that only dropped rows are missing.

    The records' reader adds what it finds dropped to `dropped`.
    """
    known = (*arrow.COLUMNS, arrow.SIGNATURES.name)
    needed = [name for name in known if name in columns or name == "offset"]
    rows = 0
    for batch in arrow.to_record_batches(records, needed):
        kept = _kept(batch, batch.column(needed.index("offset")), wanted)
        rows += kept.num_rows
        yield _shaped(kept, columns, wanted.stream, fail_on_headers)
    if rows + (dropped.count if dropped else 0) != wanted.end - wanted.start:
        raise Missing(
            f"{wanted.stream!r}: found {rows} messages instead of offsets {wanted.start} to {wanted.end - 1}: "
            "verify the log, or read another node"
        )


def _kept(batch: Any, column: Any, wanted: OffsetRange) -> Any:
    """Return the rows within the range. It compares with numpy, for the reason that `arrow.numbers` states."""
    offsets = arrow.values_of(column)
    inside = (offsets >= wanted.start) & (offsets < wanted.end)
    if column.null_count:
        inside &= np.asarray(column.is_valid())
    return batch if inside.all() else batch.filter(arrow.flags(inside))


def _records(wanted: Range, fail_on_loss: bool, dropped: DroppedRows) -> Iterator[Record]:
    places = list(wanted.places)
    while places:
        read = 0
        try:
            for record in read_places(places):
                read += 1
                yield record
        except (ChaplainError, OSError) as error:
            here = f"{wanted.stream!r}: offsets {wanted.start} to {wanted.end - 1}"
            if not _is_dropped(places[read]):
                kind = Inaccessible if isinstance(error, OSError) else StorageError
                raise kind(f"{here} cannot be read here ({error}): read another node, or verify the log") from error
            if fail_on_loss:
                raise Dropped(f"{here} were dropped: choose others, or set failOnDataLoss to false") from error
        if read == len(places):
            return
        lost = next((at for at in range(read, len(places)) if places[at].path != places[read].path), len(places))
        last = places[lost - 1]
        dropped.add(max(wanted.start, places[read].first_offset), min(wanted.end, last.first_offset + last.count))
        places = places[lost:]


def _is_dropped(place: RecordPlace) -> bool:
    """Whether retention deleted the segment of a record: the log in its folder begins with a later segment.

    A folder that cannot be listed, or that has no segments, shows nothing about retention. It may not be mounted here.
    """
    path = Path(place.path)
    name, sequence, _ = parse_name(path.name)
    try:
        listed = list_segments(path.parent, name)
    except OSError:
        return False
    return bool(listed) and sequence < listed[0].sequence


def _shaped(batch: Any, columns: Sequence[str], stream: str, fail_on_headers: bool) -> Any:
    """Return a batch with the columns in the order that Spark requested."""
    arrays = [_column(batch, name, stream, fail_on_headers) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _column(batch: Any, name: str, stream: str, fail_on_headers: bool) -> Any:
    if name in _CONSTANTS:
        return arrow.numbers(np.full(batch.num_rows, _CONSTANTS[name], np.int32), pa.int32())
    if name != "headers":
        return batch.column(name)
    try:
        return header_lists(batch.column("headers"))
    except Malformed:
        return _header_lists_with_malformed(batch, stream, fail_on_headers)


def _header_lists_with_malformed(batch: Any, stream: str, fail_on_headers: bool) -> Any:
    """Convert a column with malformed headers: raise an error that names the first one, or convert cell by cell.

    A malformed cell becomes a single header with an empty name, which no valid header has, and the whole cell as its
    value. Ingest nodes refuse malformed headers; earlier versions did not.
    """
    raw, offsets = batch.column("headers").to_pylist(), batch.column("offset")
    malformed_cells = malformed(raw)
    first = min(malformed_cells)
    found = f"{stream!r}: the headers at offset {offsets[first]} cannot be read ({malformed_cells[first]})"
    if fail_on_headers:
        raise Malformed(f"{found}: set failOnMalformedHeaders to false to read them under an empty name")
    for at in malformed_cells:
        log.warning("%r: the headers at offset %s cannot be read; they are under an empty name", stream, offsets[at])
    lists = [None if cell is None else _pairs(cell, at in malformed_cells) for at, cell in enumerate(raw)]
    return pa.array(lists, HEADERS_TYPE)


def _pairs(cell: bytes, is_malformed: bool) -> list[dict[str, Any]]:
    named = {MALFORMED_NAME: cell} if is_malformed else decode_headers(cell)
    return [{"key": name, "value": value} for name, value in named.items()]


def header_lists(cells: Any) -> Any:
    """Convert a column of encoded headers to lists of names and values. Raises `Malformed` if a cell is malformed."""
    if cells.null_count == len(cells):
        return pa.nulls(len(cells), HEADERS_TYPE)
    there = cells.drop_null()
    bounds = np.frombuffer(there.buffers()[1], np.int32)[there.offset : there.offset + len(there) + 1]
    data = np.frombuffer(there.buffers()[2], np.uint8) if there.buffers()[2] is not None else np.empty(0, np.uint8)
    check(data, bounds[:-1], np.diff(bounds))
    parts = split(data, bounds[:-1], np.diff(bounds))
    counts = np.zeros(len(cells), np.int64)
    counts[np.asarray(cells.is_valid())] = parts.counts
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    pairs = pa.StructArray.from_arrays(
        [
            _gathered(data, parts.name_starts, parts.name_sizes).cast(pa.string()),
            _gathered(data, parts.value_starts, parts.value_sizes),
        ],
        ["key", "value"],
    )
    return pa.ListArray.from_arrays(arrow.numbers(ends, pa.int32()), pairs, mask=cells.is_null())


def _gathered(data: Any, starts: Any, sizes: Any) -> Any:
    """Return a binary column of these slices of the data."""
    ends = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    places = np.arange(int(ends[-1])) + np.repeat(starts - ends[:-1], sizes)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data[places]))]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
