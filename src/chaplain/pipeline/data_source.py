"""The Spark data source `format("chaplain")`: reads streams of a journal in batch and streaming queries, and writes
them.

This module decides how a query's options become ranges of offsets, and how ranges become partitions. It does not read
rows itself. A batch query sees the messages that were committed when it was planned. Filters are not pushed down,
because Spark would reuse a filtered reader for the whole table.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from chaplain.errors import ConfigError, Missing
from chaplain.pipeline.sink.sink import SinkWriter, StreamWriter, parse_sink
from chaplain.pipeline.source.backends import SourceBackend, open_backend, read_rows
from chaplain.pipeline.source.options import (
    LATEST,
    PARTITION,
    Bound,
    Options,
    check,
    check_named,
    parse,
    resolve,
    resolve_end,
    skip_dropped,
    table_options,
)
from chaplain.pipeline.source.rows import OffsetRange, Range, fields, schema_text

__all__ = ["ChaplainSource", "limit_rows", "offsets_behind_latest", "register"]

_PARTITIONS = 2
"""Partitions of a stream if `minPartitions` is not set."""
_ROWS_A_TASK = 1_000_000
"""Larger ranges are split into more partitions."""
Offsets = dict[str, dict[str, int]]
_OPTIONS = "chaplain.options"
"""Metadata key of the options of a table that was made by CREATE TABLE."""
_TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}
"""The types in the schema text. Only a process with Java could parse it."""


class _Partition(InputPartition):
    def __init__(self, wanted: OffsetRange) -> None:
        self.wanted = wanted


class ChaplainSource(DataSource):
    """The data source `chaplain`. `options.SOURCE` lists the options for reading, `sink.SINK` those for writing."""

    @classmethod
    def name(cls) -> str:
        return "chaplain"

    def schema(self) -> str | StructType:
        options = table_options(self.options)
        given = self.options if options is None else options
        check(given)  # reports wrong options already at `load`, not at the first action
        headers = next((value for key, value in given.items() if key.lower() == "includeheaders"), "false")
        text = schema_text(headers.lower() == "true")
        return text if options is None else _with_options(fields(headers.lower() == "true"), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(parse(self._given(schema), streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 Spark's name
        return _StreamReader(parse(self._given(schema), streaming=True), schema)

    def _given(self, schema: StructType) -> dict[str, str]:
        """Return the options of the query, or those of its table: Spark reads a table of its catalog without any."""
        stored = next((field.metadata[_OPTIONS] for field in schema.fields if _OPTIONS in field.metadata), "{}")
        return {**json.loads(stored), **self.options}

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return SinkWriter(parse_sink(self.options, streaming=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 Spark's name
        return StreamWriter(parse_sink(self.options, streaming=True), schema, overwrite)


def _with_options(columns: Sequence[str], options: Mapping[str, str]) -> StructType:
    """Return the schema of a table, with the options of CREATE TABLE in the metadata of its first column.

    The catalog stores the schema of a table, but Spark does not pass the table's options to the reader. They contain no
    secret: an identity is a path.
    """
    found = [StructField(name, _TYPES[kind]) for name, kind in (column.split(" ", 1) for column in columns)]
    found[0].metadata = {_OPTIONS: json.dumps(dict(options))}
    return StructType(found)


def register(spark: SparkSession) -> None:
    """Register `format("chaplain")` in this Spark session.

    In a local session it also makes Spark's Python workers use this interpreter, unless `PYSPARK_PYTHON` or
    `spark.pyspark.python` is set, so that they can import chaplain. `local_session` calls it already.
    """
    _use_this_python(spark)
    spark.dataSource.register(ChaplainSource)


def _use_this_python(spark: SparkSession) -> None:
    """Make local workers use this interpreter: the default, `python3` in the PATH, may not have chaplain installed."""
    try:
        context = spark.sparkContext
    except PySparkException:  # a Connect session has no context: the server decides which Python its workers use
        return
    configured = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if not configured and (context.master or "").startswith("local"):
        context.pythonExec = sys.executable


def _columns(schema: StructType) -> tuple[str, ...]:
    known = dict(field.split(" ", 1) for field in fields(headers=True))  # a schema with headers asks for them
    unknown = [name for name in schema.fieldNames() if name not in known]
    if unknown:
        raise ConfigError(f"there are no columns {', '.join(unknown)}: choose from {', '.join(known)}")
    for field in schema.fields:  # Spark does not compare the user's schema with ours, and would fail in the tasks
        requested, declared = field.dataType.simpleString(), known[field.name]
        if requested != declared or not field.nullable:
            requested += "" if field.nullable else " not null"
            raise ConfigError(f"column {field.name} is {declared}, not {requested}: cast it once it is read")
    return tuple(schema.fieldNames())


def _split(backend: SourceBackend, stream: str, start: int, end: int, least: int) -> Sequence[OffsetRange]:
    parts = max(least or _PARTITIONS, -(-(end - start) // _ROWS_A_TASK))
    return backend.split(stream, start, end, parts)


class _Reader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = _columns(schema)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        backend = open_backend(options.target, options.reconnect_s)
        wanted: list[OffsetRange] = []
        chosen = _select_streams(options, backend)
        check_named(options, chosen)
        for stream in chosen:
            known = backend.known_offsets(stream)
            start = resolve(options.starting, stream, known, options.fail_on_loss)
            end = resolve_end(options.ending, stream, known, options.fail_on_loss)
            wanted += _split(backend, stream, start, end, options.min_partitions)
        return [_Partition(one) for one in wanted] or [_Partition(Range("", 0, 0, ()))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        options = self._options
        return read_rows(
            cast("_Partition", partition).wanted, self._columns, options.fail_on_loss, options.fail_on_headers
        )


def _select_streams(options: Options, backend: SourceBackend) -> list[str]:
    there = backend.streams
    if options.pattern:
        return [stream for stream in there if options.wants(stream)]
    absent = [stream for stream in options.names if stream not in there]
    folder = options.target.folder
    if absent and folder and not there:
        raise Missing(f"there are no streams in {folder}: give a node's segments{_suggestion(Path(folder))}")
    for stream in absent:  # a stream that this client may not read is not a lost one
        backend.check_access(stream)
    if absent and options.fail_on_loss:
        raise Missing(f"there is no stream {absent[0]!r}: streams here are {', '.join(there) or 'none'}")
    return [stream for stream in options.names if stream in there]


def _suggestion(folder: Path) -> str:
    """Suggest a folder of segments at or below `folder`, if there is one."""
    near = [one for one in (folder / "segments", *sorted(folder.glob("node-*/segments"))) if one.is_dir()]
    return f", such as {near[0]}" if near else ""


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = _columns(schema)
        self._backend: SourceBackend | None = None
        self._available_now_end: Offsets | None = None
        self._triggered_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the backend on the driver: tasks need only their range."""
        return {**self.__dict__, "_backend": None}

    def _refreshed(self, at_once: bool = False) -> SourceBackend:
        if self._backend is None:
            self._backend = open_backend(self._options.target, self._options.reconnect_s)
            for stream in self._options.names:
                if stream not in self._backend.streams:  # a stream that this client may not read is not an empty one
                    self._backend.check_access(stream)
        self._backend.refresh(at_once)
        return self._backend

    def _resolve_all(self, bound: Bound, at_once: bool = False) -> Offsets:
        backend = self._refreshed(at_once)
        named = self._options.names or tuple(filter(self._options.wants, backend.streams))
        loss = self._options.fail_on_loss
        return {name: {PARTITION: resolve(bound, name, backend.known_offsets(name), loss)} for name in named}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 Spark's name
        starts = self._resolve_all(self._options.starting)
        check_named(self._options, list(starts))
        return starts

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 Spark's name
        most = self._options.max_offsets
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 Spark's name
        latest = self._available_now_end if self._available_now_end is not None else self._resolve_all(Bound(LATEST))
        starts = {**start, **{name: {PARTITION: self._start_of(name, start)} for name in latest}}
        if self._available_now_end is None and self._too_early(starts, latest):
            return start
        if not isinstance(limit, ReadMaxRows):
            return {**starts, **_at_least(latest, starts)}
        return limit_rows(starts, latest, limit.max_rows)

    def _start_of(self, stream: str, start: Offsets) -> int:
        """Return the offset at which the next batch starts. Dropped offsets do not count towards the batch's limit."""
        first = self._refreshed().known_offsets(stream).first
        return max(start[stream][PARTITION], first) if stream in start else first

    def _too_early(self, start: Offsets, latest: Offsets) -> bool:
        """Whether to wait: fewer rows than `minOffsetsPerTrigger` are new, and `maxTriggerDelay` has not passed."""
        now_s = time.monotonic()
        young = self._triggered_s is not None and now_s - self._triggered_s < self._options.max_delay_s
        rows = sum(max(0, count) for count in _new_rows(start, latest).values())
        if young and rows < self._options.min_offsets:
            return True
        self._triggered_s = now_s
        return False

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 Spark's name
        """Return the ends of the streams, regardless of the limit of a batch."""
        return self._resolve_all(Bound(LATEST))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 Spark's name
        self._available_now_end = self._resolve_all(Bound(LATEST), at_once=True)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        backend = self._refreshed()
        if any(backend.known_offsets(name).next < place[PARTITION] for name, place in end.items()):
            backend.refresh()
        wanted: list[OffsetRange] = []
        for name, place in end.items():
            known = backend.known_offsets(name)
            first = start.get(name, {PARTITION: known.first})[PARTITION]
            if first < place[PARTITION]:
                first = skip_dropped(name, first, known, self._options.fail_on_loss)
            wanted += _split(backend, name, first, place[PARTITION], self._options.min_partitions)
        return [_Partition(one) for one in wanted]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        options = self._options
        return read_rows(
            cast("_Partition", partition).wanted, self._columns, options.fail_on_loss, options.fail_on_headers
        )

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the log's retention does not depend on its readers."""


def _at_least(latest: Offsets, start: Offsets) -> Offsets:
    """Return the latest offsets, but none before `start`: another node's log may be shorter than the last one read."""
    return {
        name: {PARTITION: max(place[PARTITION], start.get(name, place)[PARTITION])} for name, place in latest.items()
    }


def _new_rows(start: Offsets, latest: Offsets) -> dict[str, int]:
    return {name: place[PARTITION] - start.get(name, {PARTITION: 0})[PARTITION] for name, place in latest.items()}


def limit_rows(start: Offsets, latest: Offsets, most: int) -> Offsets:
    """Return end offsets for at most `most` rows in total, distributed in proportion to the streams' new rows."""
    new = _new_rows(start, latest)
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


def offsets_behind_latest(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return by stream how many offsets a streaming query was behind when it made this progress, `query.lastProgress`.

    PySpark has no interface with which a source in Python reports metrics of its own.
    """
    behind: dict[str, int] = {}
    for source in progress["sources"]:
        latest, end = (_offsets(source[name]) for name in ("latestOffset", "endOffset"))
        for stream, place in latest.items():
            reached = end.get(stream, {PARTITION: 0})[PARTITION]
            behind[stream] = behind.get(stream, 0) + max(0, place[PARTITION] - reached)
    return behind


def _offsets(found: Any) -> Offsets:
    """Return the offsets of a progress report, which contains them as JSON or as an object."""
    decoded: Offsets = json.loads(found) if isinstance(found, str) else found
    return decoded or {}
