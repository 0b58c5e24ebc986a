"""Converts BATCH records to Arrow: loops over packs, never over messages.

A column of a chunk consists of slices of packs: numpy joins and sums the tables of sizes, and one copy joins the
octets.
It uses only types that Spark accepts: binary, string, int32, int64, timestamp in microseconds.

For any body, the result is either correct or `Malformed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from chaplain.errors import Malformed
from chaplain.segment.layout import HASH_BYTES, NO_OFFSET, Octets, octets
from chaplain.segment.pack import HEADERS, KEYS, NOTHING, PACK_HEAD_BYTES, PackHead, heads_of
from chaplain.segment.record import Kind, Record

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.binary()),
        ("kind", pa.int32()),
        ("client_id", pa.int64()),
        ("client_message_id", pa.int64()),
        ("message_no", pa.int32()),
        ("regime", pa.int64()),
        ("message_index", pa.int64()),
        ("ingest_node", pa.int32()),
        ("pack_digest", pa.binary()),
    ]
)
COLUMNS = tuple(SCHEMA.names)
SIGNATURES = pa.field("pack_signature", pa.binary())
"""A column that a caller can request beside these: the signature of each pack, in the row of its first message."""
ROWS_MAX = 65_536
"""The default size of a batch in rows."""
CHUNK_BYTES_MAX = 1 << 30
_INT64_MAX = (1 << 63) - 1
Ints = npt.NDArray[np.int64]


def to_record_batches(
    records: Iterable[Record], columns: Sequence[str] = COLUMNS, rows_max: int = ROWS_MAX
) -> Iterator[Any]:
    """Arrow record batches of the messages in these records, in order. Records of other kinds are skipped.

    A batch ends after the record with which it reaches `rows_max`: records are not split.
    """
    schema = pa.schema([SIGNATURES if name == SIGNATURES.name else SCHEMA.field(name) for name in columns])
    chunk: list[Record] = []
    rows = size_bytes = 0
    for record in records:
        if record.kind != Kind.BATCH:
            continue
        if chunk and (rows + record.count > rows_max or size_bytes + len(record.body) > CHUNK_BYTES_MAX):
            yield _Chunk(chunk).batch(schema)
            chunk, rows, size_bytes = [], 0, 0
        chunk.append(record)
        rows += record.count
        size_bytes += len(record.body)
    if chunk:
        yield _Chunk(chunk).batch(schema)


class _Chunk:
    """Some records that become one Arrow batch. Each column has a method of its name."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self._packs: list[tuple[Octets, PackHead]] = []
        for record in records:
            self._split(record)
        heads = [head for _, head in self._packs]
        self._counts = np.array([head.count for head in heads], np.int64)
        self._rows = int(self._counts.sum())
        self._row_starts = np.cumsum(self._counts) - self._counts
        self._record_counts = np.array([record.count for record in records], np.int64)
        self._cells = _Cells(self._packs, self._row_starts)

    def _split(self, record: Record) -> None:
        view = octets(record.body)
        heads = heads_of(view)
        if sum(head.count for head in heads) != record.count:
            raise Malformed(f"batch: its packs do not hold the {record.count} messages it counts")
        if record.index > _INT64_MAX or _INT64_MAX - record.count < record.first_offset != NO_OFFSET:
            raise Malformed("batch: index or offset is out of range")
        self._packs += [(view, head) for head in heads]

    def batch(self, schema: Any) -> Any:
        arrays = [getattr(self, f"_{field.name}")() for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _per_record(self, values: list[int], kind: Any = np.int64) -> npt.NDArray[Any]:
        return np.repeat(np.array(values, kind), self._record_counts)

    def _per_pack(self, values: list[int], kind: Any = np.int64) -> npt.NDArray[Any]:
        return np.repeat(np.array(values, kind), self._counts)

    def _key(self) -> Any:
        return self._cells.column(1)

    def _value(self) -> Any:
        return self._cells.column(0)

    def _headers(self) -> Any:
        return self._cells.column(2)

    def _topic(self) -> Any:
        names = [record.stream.encode() for record in self._records]
        data = b"".join([name * record.count for name, record in zip(names, self._records, strict=True)])
        return _binary(self._per_record([len(name) for name in names]), data, None, pa.string())

    def _offset(self) -> Any:
        """Row number plus, for each record, the difference between its first offset and its first row."""
        starts = np.cumsum(self._record_counts) - self._record_counts
        firsts = [record.first_offset for record in self._records]
        unknown = np.array([first == NO_OFFSET for first in firsts], bool)
        known = np.array([0 if first == NO_OFFSET else first for first in firsts], np.int64)
        offsets = np.arange(self._rows, dtype=np.int64) + np.repeat(known - starts, self._record_counts)
        return numbers(offsets, pa.int64(), np.repeat(unknown, self._record_counts) if unknown.any() else None)

    def _timestamp(self) -> Any:
        times = self._per_record([record.timestamp_ns // 1000 for record in self._records])
        return numbers(times, SCHEMA.field("timestamp").type)

    def _kind(self) -> Any:
        return numbers(self._per_pack([head.message_type for _, head in self._packs], np.int32), pa.int32())

    def _client_id(self) -> Any:
        return numbers(self._per_pack([head.client_id for _, head in self._packs]), pa.int64())

    def _client_message_id(self) -> Any:
        firsts = np.array([head.first_id for _, head in self._packs], np.int64)
        if not self._tabled():
            return numbers(np.arange(self._rows) + np.repeat(firsts - self._row_starts, self._counts), pa.int64())
        requests = np.array([head.requests for _, head in self._packs], np.int64)
        ids = np.arange(int(requests.sum())) + np.repeat(firsts - (np.cumsum(requests) - requests), requests)
        return numbers(np.repeat(ids, self._cells.request_counts()), pa.int64())

    def _message_no(self) -> Any:
        """The number of the message within its request, from 0."""
        if not self._tabled():
            return numbers(np.zeros(self._rows, np.int32), pa.int32())
        counts = self._cells.request_counts()
        positions = np.arange(self._rows) - np.repeat(np.cumsum(counts) - counts, counts)
        return numbers(positions.astype(np.int32), pa.int32())

    def _tabled(self) -> bool:
        return any(head.tabled_requests for _, head in self._packs)

    def _regime(self) -> Any:
        return numbers(self._per_record([record.regime for record in self._records]), pa.int64())

    def _message_index(self) -> Any:
        return numbers(self._per_record([record.index for record in self._records]), pa.int64())

    def _ingest_node(self) -> Any:
        return numbers(self._per_record([record.origin_node for record in self._records], np.int32), pa.int32())

    def _pack_digest(self) -> Any:
        digests = b"".join([view[head.digest_at : head.digest_at + HASH_BYTES].data for view, head in self._packs])
        rows = np.repeat(np.frombuffer(digests, f"V{HASH_BYTES}"), self._counts)
        return _binary(np.full(self._rows, HASH_BYTES, np.int64), rows.tobytes(), None, pa.binary())

    def _pack_signature(self) -> Any:
        starts = [head.start + PACK_HEAD_BYTES for _, head in self._packs]
        sizes = np.zeros(self._rows, np.int64)
        sizes[self._row_starts] = [head.signature_bytes for _, head in self._packs]
        missing = np.ones(self._rows, bool)
        missing[self._row_starts] = False
        signatures = [
            view[start : start + head.signature_bytes].tobytes()
            for (view, head), start in zip(self._packs, starts, strict=True)
        ]
        return _binary(sizes, b"".join(signatures), missing, SIGNATURES.type)


class _Cells:
    """The variable-size parts of packs: which octets belong to which column. All sizes are checked."""

    def __init__(self, packs: list[tuple[Octets, PackHead]], row_starts: Ints) -> None:
        self._packs = packs
        self._row_starts = row_starts
        self._tables = [_tables(view, head) for view, head in packs]
        self._sizes: list[Ints | None] = [self._joined(column) for column in range(3)]
        self._missing = [None if sizes is None else sizes == NOTHING for sizes in self._sizes]
        for sizes, missing in zip(self._sizes, self._missing, strict=True):
            if sizes is not None and missing is not None:
                sizes[missing] = 0
        self._totals = [
            np.zeros(len(packs), np.int64) if sizes is None or not packs else np.add.reduceat(sizes, row_starts)
            for sizes in self._sizes
        ]
        self._starts = self._checked_starts()

    def _joined(self, column: int) -> Ints | None:
        """The sizes of one column over all packs, or None if no pack has it."""
        if not any(len(tables[column + 1]) for tables in self._tables):
            return None
        pieces = [
            tables[column + 1] if len(tables[column + 1]) else np.full(head.count, NOTHING, np.uint32)
            for tables, (_, head) in zip(self._tables, self._packs, strict=True)
        ]
        return np.concatenate(pieces).astype(np.int64)

    def _checked_starts(self) -> list[Ints]:
        """Where each column of each pack begins. The last one must end, padded, where the pack ends."""
        missing_values = self._missing[0]
        if missing_values is not None and missing_values.any():
            raise Malformed("pack: a value must be there")
        position = np.array([head.data_at for _, head in self._packs], np.int64)
        starts = []
        for totals in self._totals:
            starts.append(position)
            position = position + totals
        if (((position + 7) & -8) != np.array([head.end for _, head in self._packs], np.int64)).any():
            raise Malformed("pack: sizes do not add up")
        return starts

    def column(self, column: int) -> Any:
        sizes, missing = self._sizes[column], self._missing[column]
        if sizes is None:
            return pa.nulls(int(sum(head.count for _, head in self._packs)), pa.binary())
        starts = self._starts[column]
        ends = (starts + self._totals[column]).tolist()
        slices = [view[a:b].data for (view, _), a, b in zip(self._packs, starts.tolist(), ends, strict=True)]
        return _binary(sizes, b"".join(slices), missing, pa.binary())

    def request_counts(self) -> Ints:
        """The number of messages of every request, over all packs."""
        pieces = []
        for tables, (_, head) in zip(self._tables, self._packs, strict=True):
            counts = tables[0].astype(np.int64) if len(tables[0]) else np.ones(head.count, np.int64)
            if counts.sum() != head.count or not counts.all():
                raise Malformed("pack: the request table does not add up")
            pieces.append(counts)
        return np.concatenate(pieces)


def _tables(view: Octets, head: PackHead) -> tuple[npt.NDArray[np.uint32], ...]:
    """Request table, sizes of values, keys and headers; empty where the pack has none."""
    words = np.frombuffer(view, "<u4", (head.data_at - head.tables_at) // 4, head.tables_at)
    first, count = head.tabled_requests, head.count
    keys = first + count + (count if head.columns & KEYS else 0)
    headers = keys + (count if head.columns & HEADERS else 0)
    return words[:first], words[first : first + count], words[first + count : keys], words[keys:headers]


def numbers(values: npt.NDArray[Any], kind: Any, missing: npt.NDArray[np.bool_] | None = None) -> Any:
    """A column of numbers, from their representation in memory.

    It avoids `pa.array`, which imports pandas to test whether its argument is a pandas object. A Spark process that
    reads a few rows would spend most of its time on that import.
    """
    return pa.Array.from_buffers(kind, len(values), [_valid(missing), pa.py_buffer(np.ascontiguousarray(values))])


def cell_of(data: bytes, kind: Any) -> Any:
    """A column with one cell."""
    return _binary(np.array([len(data)], np.int64), data, None, kind)


def flags(values: npt.NDArray[np.bool_]) -> Any:
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])


def values_of(column: Any) -> Ints:
    """The numbers of a 64-bit column. Rows that are null have arbitrary values."""
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]


def _valid(missing: npt.NDArray[np.bool_] | None) -> Any:
    if missing is None or not missing.any():
        return None
    return pa.py_buffer(np.packbits(~missing, bitorder="little"))


def _binary(sizes: Ints, data: bytes, missing: npt.NDArray[np.bool_] | None, kind: Any) -> Any:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(kind, len(sizes), [_valid(missing), pa.py_buffer(offsets), pa.py_buffer(data)])
