"""`format("chaplain")` for Spark: streams of a journal as a table, once or continuously.

Decides how a query's options become ranges of offsets, and nothing about what lies in them. A batch query sees what
was agreed when it was planned. Filters are not pushed down: Spark would reuse a filtered reader for the whole table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from chaplain.errors import ConfigError, Missing
from chaplain.pipeline.index import Index, open_index
from chaplain.pipeline.options import LATEST, PARTITION, Bound, Options, Stretch, parse, resolve
from chaplain.pipeline.rows import Range, fields, ranges, read_range, schema_text

_LOOK_EVERY_S = 0.1
_PARTITIONS = 2
_ROWS_A_TASK = 1_000_000
Offsets = dict[str, dict[str, int]]


class _Part(InputPartition):
    def __init__(self, wanted: Range) -> None:
        self.wanted = wanted


class ChaplainSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "chaplain"

    def schema(self) -> str:
        return schema_text(self.options.get("includeHeaders", "false").lower() == "true")

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 Spark's name
        return _StreamReader(parse(self.options, streaming=True), schema)


def register(spark: SparkSession) -> None:
    """Make `format("chaplain")` known to this session."""
    spark.dataSource.register(ChaplainSource)


def stretch(index: Index, stream: str) -> Stretch:
    places = index.streams.get(stream, [])
    if not places:
        return Stretch(0, 0, ())
    last = places[-1]
    times = [(place.first_offset, place.timestamp_ns) for place in places]
    return Stretch(places[0].first_offset, last.first_offset + last.count, times)


def _columns(schema: StructType, options: Options) -> tuple[str, ...]:
    known = [field.split()[0] for field in fields(options.headers)]
    unknown = [name for name in schema.fieldNames() if name not in known]
    if unknown:
        raise ConfigError(f"there are no columns {', '.join(unknown)}: choose from {', '.join(known)}")
    return tuple(schema.fieldNames())


def _cut(index: Index, stream: str, start: int, end: int, least: int) -> list[Range]:
    parts = max(least or _PARTITIONS, -(-(end - start) // _ROWS_A_TASK))
    return ranges(index.streams.get(stream, []), stream, start, end, parts)


class _Reader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = _columns(schema, options)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        index = open_index(options.folder, options.cluster)
        wanted: list[Range] = []
        for stream in _chosen(options, index):
            known = stretch(index, stream)
            start = resolve(options.starting, stream, known, options.fail_on_loss)
            end = resolve(options.ending, stream, known, options.fail_on_loss)
            wanted += _cut(index, stream, start, end, options.min_partitions)
        return [_Part(one) for one in wanted] or [_Part(Range("", 0, 0, ()))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(cast("_Part", partition).wanted, self._columns, self._options.fail_on_loss)


def _chosen(options: Options, index: Index) -> list[str]:
    if options.pattern:
        return sorted(stream for stream in index.streams if options.wants(stream))
    absent = [stream for stream in options.names if stream not in index.streams]
    if absent and options.fail_on_loss:
        raise Missing(
            f"there is no stream {absent[0]!r}: streams here are {', '.join(sorted(index.streams)) or 'none'}"
        )
    return [stream for stream in options.names if stream in index.streams]


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = _columns(schema, options)
        self._index: Index | None = None
        self._looked = 0.0
        self._goal: Offsets | None = None

    def _fresh(self, at_once: bool = False) -> Index:
        """The index, looked up again at most ten times a second: Spark asks far more often."""
        if self._index is None:
            self._index = open_index(self._options.folder, self._options.cluster)
        elif at_once or time.monotonic() - self._looked > _LOOK_EVERY_S:
            self._index.refresh()
        else:
            return self._index
        self._looked = time.monotonic()
        return self._index

    def _ends(self, bound: Bound, at_once: bool = False) -> Offsets:
        index = self._fresh(at_once)
        named = self._options.names or tuple(sorted(filter(self._options.wants, index.streams)))
        loss = self._options.fail_on_loss
        return {name: {PARTITION: resolve(bound, name, stretch(index, name), loss)} for name in named}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 Spark's name
        return self._ends(self._options.starting)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 Spark's name
        most = self._options.max_offsets
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 Spark's name
        latest = self._goal if self._goal is not None else self._ends(Bound(LATEST))
        if not isinstance(limit, ReadMaxRows):
            return {**start, **_at_least(latest, start)}
        return limited(start, latest, limit.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 Spark's name
        self._goal = self._ends(Bound(LATEST), at_once=True)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        index = self._fresh()
        if any(stretch(index, name).next < place[PARTITION] for name, place in end.items()):
            index = self._fresh(at_once=True)
        wanted: list[Range] = []
        for name, place in end.items():
            first = start.get(name, {PARTITION: stretch(index, name).first})[PARTITION]
            wanted += _cut(index, name, first, place[PARTITION], self._options.min_partitions)
        return [_Part(one) for one in wanted]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(cast("_Part", partition).wanted, self._columns, self._options.fail_on_loss)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the log keeps what it has."""


def _at_least(latest: Offsets, start: Offsets) -> Offsets:
    """Never behind what was read before, even if another node's log is shorter."""
    return {
        name: {PARTITION: max(place[PARTITION], start.get(name, place)[PARTITION])} for name, place in latest.items()
    }


def limited(start: Offsets, latest: Offsets, most: int) -> Offsets:
    """No more than `most` rows in all, shared among streams by how much each has."""
    new = {name: place[PARTITION] - start.get(name, {PARTITION: 0})[PARTITION] for name, place in latest.items()}
    total = sum(max(0, count) for count in new.values())
    if total <= most:
        return {**start, **_at_least(latest, start)}
    ends = dict(start)
    left = most
    for name in sorted(new, key=lambda name: new[name]):
        share = min(max(0, new[name]), left, max(1, most * max(0, new[name]) // total))
        left -= share
        ends[name] = {PARTITION: start.get(name, {PARTITION: 0})[PARTITION] + share}
    return ends
