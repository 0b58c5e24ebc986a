"""`land`: a stream becomes a table that other tools read, each message exactly once.

Executors read ranges of the log and write them as Parquet files; then one commit makes a batch visible. What was landed
is known from the table alone; a batch that was written but not committed is written again under other names. One
`land` for each table at a time.

The log is looked through where this runs, once, and then only where it grew. Many small files become one as they
follow one another, so that a table that is filled continuously stays quick to read.
"""

from __future__ import annotations

import base64
import shutil
import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from chaplain.core import Frozen
from chaplain.errors import ConfigError, Missing
from chaplain.pipeline.compact import compact
from chaplain.pipeline.index import Index, Place
from chaplain.pipeline.rows import Range, ranges, read_range
from chaplain.pipeline.tables import (
    STAGING,
    Format,
    Storage,
    Written,
    arrow_schema,
    commit,
    kind_of,
    landed_offset,
    move_in,
    table_path,
)

BATCH_ROWS = 5_000_000
ROWS_A_FILE = 1_000_000
FILES_MIN = 2
SMALL_ROWS = 20_000
"""A batch of fewer rows is one file: two would only be smaller."""
IDLE_S = 0.1
COMPACT_FILES = 24
"""Small files behind one another before they are made one."""


class LandTask(Frozen, frozen=True):
    wanted: Range
    folder: str
    name: str


class _Part(InputPartition):
    def __init__(self, task: LandTask) -> None:
        self.task = task


class LandSource(DataSource):
    """One row for each file that a task wrote."""

    @classmethod
    def name(cls) -> str:
        return "chaplain-land"

    def schema(self) -> str:
        return "data binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(msgspec.msgpack.decode(base64.b64decode(self.options["tasks"]), type=list[LandTask]))


class _Reader(DataSourceReader):
    def __init__(self, tasks: list[LandTask]) -> None:
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        return [_Part(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield (msgspec.msgpack.encode(write_file(cast("_Part", partition).task)),)


def write_file(task: LandTask) -> Written:
    """Write one range. A task that is run again writes under another name: what it left is never committed."""
    schema = arrow_schema()
    remote = "://" in task.folder
    system, folder = fs.FileSystem.from_uri(task.folder) if remote else (fs.LocalFileSystem(), task.folder)
    name = f"{task.name}-{uuid.uuid4().hex}.parquet"
    system.create_dir(str(Path(folder, name).parent), recursive=True)
    path = f"{folder}/{name}"
    with pq.ParquetWriter(path, schema, filesystem=system, compression="zstd") as writer:
        for batch in read_range(task.wanted, schema.names):
            writer.write_batch(batch.cast(schema))
    return Written(name, task.wanted.start, task.wanted.end, int(system.get_file_info(path).size))


class Watch:
    """The logs from which a stream is read, each looked through once and then only where it grew."""

    def __init__(self, cluster: str = "", path: str = "") -> None:
        if bool(cluster) == bool(path):
            raise ConfigError("give either the cluster's folder or a path to segments")
        folders = [Path(path)] if path else sorted(Path(cluster).glob("node-*/segments"))
        self._indexes = [Index(folder) for folder in folders if folder.is_dir()]
        if not self._indexes:
            raise Missing(f"there are no segments in {path or cluster}: give a node's segments as path")

    def places(self, stream: str) -> list[Place]:
        """Of the log that has got furthest: agreed messages are the same in all."""
        for index in self._indexes:
            index.refresh()
        return max((index.streams.get(stream, []) for index in self._indexes), key=_end)


def _end(places: list[Place]) -> int:
    return places[-1].first_offset + places[-1].count if places else 0


def land(
    spark: SparkSession,
    *,
    stream: str,
    tables: str | Path,
    cluster: str = "",
    path: str = "",
    once: bool = False,
    format: Format = "delta",  # noqa: A002 as Spark calls it
    storage_options: Storage = None,
    batch_rows: int = BATCH_ROWS,
    tell: Callable[[int], None] = lambda rows: None,
    until: Callable[[], bool] = lambda: False,
) -> int:
    """Land what the stream has that its table has not; with `once`, or when `until` says so, return how many that was.

    `tell` is given how many messages were landed in all, after each batch.
    """
    watch = Watch(cluster, path)
    spark.dataSource.register(LandSource)
    table = table_path(tables, stream)
    if kind_of(table, storage_options) not in (None, format):
        raise ConfigError(f"{table} is no table of format {format}: choose another folder, or the other format")
    shutil.rmtree(Path(table) / STAGING, ignore_errors=True)  # what an earlier run wrote and did not move in
    start = landed_offset(tables, stream, storage_options)
    landed, small = 0, COMPACT_FILES
    while True:
        places = watch.places(stream)
        end = _batch_end(places, start, batch_rows)
        if once and not _end(places):
            raise Missing(f"there is no stream {stream!r}")
        if end > start:
            files = _write(spark, table, places, (start, end), plain=format == "parquet")
            if format == "delta":
                commit(table, stream, files, arrow_schema(), storage_options)
                small = compact(table, storage_options) if small + 1 >= COMPACT_FILES else small + 1
            else:
                move_in(table, files)
            landed, start = landed + end - start, end
            tell(landed)
        elif once or until():
            return landed
        else:
            time.sleep(IDLE_S)


def _batch_end(places: list[Place], start: int, rows: int) -> int:
    """Where a batch from `start` ends: behind a record, so that no table ends within a pack."""
    if _end(places) - start <= rows:
        return _end(places)
    at = bisect_right(places, start + rows, key=lambda place: place.first_offset) - 1
    whole = places[at].first_offset
    return whole if whole > start else whole + places[at].count


def _write(spark: SparkSession, table: str, held: list[Place], bounds: tuple[int, int], plain: bool) -> list[Written]:
    """Have these offsets written to files, as many as there are tasks."""
    start, end = bounds
    low = bisect_right(held, start, key=lambda place: place.first_offset) - 1
    high = bisect_left(held, end, key=lambda place: place.first_offset)
    rows = end - start
    parts = 1 if rows < SMALL_ROWS else max(FILES_MIN, -(-rows // ROWS_A_FILE))
    cut = ranges(held[max(low, 0) : high], held[0].stream, start, end, parts)
    prefix = f"{STAGING}/" if plain else ""
    tasks = [LandTask(one, table, f"{prefix}{one.start:020d}-{one.end:020d}") for one in cut]
    text = base64.b64encode(msgspec.msgpack.encode(tasks)).decode()
    found = spark.read.format("chaplain-land").option("tasks", text).load().collect()
    return sorted((msgspec.msgpack.decode(bytes(row.data), type=Written) for row in found), key=lambda one: one.start)
