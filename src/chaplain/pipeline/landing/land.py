"""`land`: copies a stream to a Delta or Parquet table, each message exactly once.

Spark's executors read ranges of the log and write them as Parquet files; then one commit makes the batch visible. The
table itself records its progress. A batch that was written but not committed is written again under other names. Only
one `land` may run for each table at a time.

With each batch, `land` copies what proofs of the new rows need: the signatures of their packs, the tree over the log,
and the newest signed checkpoint, which is also in the metadata of the Delta commit (`tree_copy`).

The driver indexes the log once, and later only the appended part. Consecutive small files are merged, so that a table
that is filled continuously stays fast to read.
"""

from __future__ import annotations

import base64
import re
import shutil
import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from chaplain.core import Frozen
from chaplain.errors import ConfigError, Missing
from chaplain.pipeline.landing.compact import compact
from chaplain.pipeline.landing.tree_copy import TreeCopy, signatures_of, write_signatures
from chaplain.pipeline.source.backends import read_rows
from chaplain.pipeline.source.live import LiveBackend, LiveRange
from chaplain.pipeline.source.offset_index import OffsetIndex, RecordPlace, node_folders
from chaplain.pipeline.source.options import Target
from chaplain.pipeline.source.rows import Range, ranges
from chaplain.pipeline.source.spark_errors import collect
from chaplain.pipeline.tables import (
    STAGING,
    Format,
    ParquetFile,
    Storage,
    append_files,
    arrow_schema,
    commit,
    kind_of,
    landed_offset,
    table_path,
)
from chaplain.segment.arrow import SIGNATURES

BATCH_ROWS = 5_000_000
"""Rows of a batch, that is, of a commit."""
ROWS_A_FILE = 1_000_000
FILES_MIN = 2
"""Files, and thus tasks, of a batch that is not small."""
SMALL_ROWS = 20_000
"""A batch with fewer rows is written to a single file."""
IDLE_S = 0.1
"""Pause before the stream is polled again if it has nothing new."""
COMPACT_FILES = 24
"""Number of consecutive small files at which they are merged."""
_written = msgspec.msgpack.Decoder(ParquetFile)


class LandTask(Frozen, frozen=True):
    """The range that a task reads, and the file that it writes."""

    folder: str
    name: str
    """The file's name, without the random suffix that makes it unique."""
    segment_range: Range | None = None
    """The range to read from segments. Exactly one of `segment_range` and `live_range` is set."""
    live_range: LiveRange | None = None
    fail_on_headers: bool = True


def task_of(wanted: Range | LiveRange, folder: str, name: str, fail_on_headers: bool = True) -> LandTask:
    if isinstance(wanted, Range):
        return LandTask(folder, name, segment_range=wanted, fail_on_headers=fail_on_headers)
    return LandTask(folder, name, live_range=wanted, fail_on_headers=fail_on_headers)


class _Partition(InputPartition):
    def __init__(self, task: LandTask) -> None:
        self.task = task


class LandSource(DataSource):
    """A data source whose tasks write files. It yields one row for each file."""

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
        return [_Partition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield (msgspec.msgpack.encode(write_file(cast("_Partition", partition).task)),)


def write_file(task: LandTask) -> ParquetFile:
    """Write one range to a Parquet file.

    A repeated task writes to another name. Files of failed attempts are never committed.
    """
    schema = arrow_schema()
    wanted = task.segment_range or task.live_range
    assert wanted is not None, "a task has exactly one range"
    remote = "://" in task.folder
    system, folder = fs.FileSystem.from_uri(task.folder) if remote else (fs.LocalFileSystem(), task.folder)
    name = f"{task.name}-{uuid.uuid4().hex}.parquet"
    system.create_dir(str(Path(folder, name).parent), recursive=True)
    path = f"{folder}/{name}"
    signatures: list[Any] = []
    with pq.ParquetWriter(path, schema, filesystem=system, compression="zstd") as writer:
        for batch in read_rows(wanted, [*schema.names, SIGNATURES.name], True, task.fail_on_headers):
            signatures.append(signatures_of(batch))
            writer.write_batch(batch.select(schema.names).cast(schema))
    write_signatures(system, folder, wanted.start, wanted.end, signatures)
    return ParquetFile(name, wanted.start, wanted.end, int(system.get_file_info(path).size))


class SegmentLogs:
    """The logs of local nodes. Each is indexed once, and later only the appended part."""

    def __init__(self, folders: list[Path]) -> None:
        self._indexes = [OffsetIndex(folder) for folder in folders]

    def end(self, stream: str) -> int:
        for index in self._indexes:
            index.refresh()
        return _end(self._places(stream))

    def first(self, stream: str) -> int:
        return _first(self._places(stream))

    def _places(self, stream: str) -> list[RecordPlace]:
        """Return the records of the log with the highest end and, among those, the lowest first offset.

        Any log will do, because committed messages are the same in all of them.
        """
        logs = [index.streams.get(stream, []) for index in self._indexes]
        return max(logs, key=lambda places: (_end(places), -_first(places)))

    def batch_end(self, stream: str, start: int, rows: int) -> int:
        """Return the end of a batch: the end of a record, so that a table never ends within a pack."""
        places = self._places(stream)
        if _end(places) - start <= rows:
            return _end(places)
        at = bisect_right(places, start + rows, key=lambda place: place.first_offset) - 1
        whole = places[at].first_offset
        return whole if whole > start else whole + places[at].count

    def split(self, stream: str, start: int, end: int, parts: int) -> list[Range]:
        places = self._places(stream)
        low = bisect_right(places, start, key=lambda place: place.first_offset) - 1
        high = bisect_left(places, end, key=lambda place: place.first_offset)
        return ranges(places[max(low, 0) : high], stream, start, end, parts)


class LiveLog:
    """The log of a cluster without local segments, read from its nodes."""

    def __init__(self, target: Target) -> None:
        self._live = LiveBackend(target)

    def end(self, stream: str) -> int:
        self._live.refresh(at_once=True)
        return self._live.known_offsets(stream).next

    def first(self, stream: str) -> int:
        return self._live.known_offsets(stream).first

    def batch_end(self, stream: str, start: int, rows: int) -> int:
        """Return the end of a batch: the end of a pack, which a node is asked for."""
        end = self._live.known_offsets(stream).next
        return end if end - start <= rows else self._live.pack_end(stream, start, start + rows)

    def split(self, stream: str, start: int, end: int, parts: int) -> list[LiveRange]:
        return [one for one in self._live.split(stream, start, end, parts) if isinstance(one, LiveRange)]


def open_log(cluster: str, path: str) -> SegmentLogs | LiveLog:
    if bool(cluster) == bool(path):
        raise ConfigError("give either the cluster's folder or a path to segments")
    # Tasks read these places, and the working directories of Spark's workers are others.
    folders = [Path(path).absolute()] if path else node_folders(Path(cluster).absolute())
    there = [folder for folder in folders if folder.is_dir()]
    if there:
        return SegmentLogs(there)
    if path:
        raise Missing(f"there are no segments in {path}: give a node's segments as path")
    return LiveLog(Target(cluster=str(Path(cluster).absolute())))


def _first(places: list[RecordPlace]) -> int:
    return places[0].first_offset if places else 0


def _end(places: list[RecordPlace]) -> int:
    return places[-1].first_offset + places[-1].count if places else 0


def land(
    spark: SparkSession | None,
    *,
    stream: str,
    tables: str | Path,
    cluster: str = "",
    path: str = "",
    once: bool = False,
    format: Format = "delta",  # noqa: A002 Spark's name
    storage_options: Storage = None,
    batch_rows: int = BATCH_ROWS,
    tell: Callable[[int], None] = lambda rows: None,
    until: Callable[[], bool] = lambda: False,
    fail_on_malformed_headers: bool = True,
) -> int:
    """Copy the messages of `stream` that its table does not contain yet; return how many were landed.

    The table is `table_path(tables, stream)`. The function resumes where an earlier call stopped and lands each
    message exactly once. It runs until `until()` returns true, or, with `once`, until the table is up to date. Only
    one call may run for each table at a time.

    Arguments:
        spark: The session whose executors write the files. With None this process writes them itself, one after the
            other, which is enough for low rates and tests.
        stream: The stream to land.
        tables: The folder of the tables, or the URL of one in an object store.
        cluster: The cluster's folder. Its nodes are read if their segments are not on this machine.
        path: A node's folder of segments, instead of `cluster`.
        once: Return when the table contains everything that the stream has now.
        format: `"delta"` or `"parquet"`.
        storage_options: Options of delta-rs for tables in an object store.
        batch_rows: About how many rows a batch has. Each batch is one commit, and ends with a whole pack.
        tell: Called after each batch with the number of messages landed so far in this call.
        until: Called after each batch and while the stream is idle.
        fail_on_malformed_headers: Raise `Malformed` for malformed headers. If false, they land as one header with an
            empty name.

    Raises `ConfigError` for an unknown format; `Missing` if the stream does not exist (with `once`) or if the log
    dropped messages before they were landed.
    """
    if format not in get_args(Format):
        raise ConfigError(f"format is {' or '.join(get_args(Format))}, not {format!r}")
    if batch_rows < 1:
        raise ConfigError(f"batch_rows must be positive, not {batch_rows}")
    log = open_log(cluster, path)
    tree = TreeCopy(cluster, storage_options)
    if spark is not None:
        spark.dataSource.register(LandSource)
    tables = tables if "://" in str(tables) else Path(tables).absolute()
    table = table_path(tables, stream)
    if kind_of(table, storage_options) not in (None, format):
        raise ConfigError(f"{table} is not a table of format {format}: choose another folder, or the other format")
    if format == "delta" and (escape := re.search("%[0-9A-Fa-f]{2}", table)):
        raise ConfigError(f"{table}: a Delta table's path cannot contain {escape[0]}: choose another folder")
    shutil.rmtree(Path(table) / STAGING, ignore_errors=True)  # files that an interrupted call wrote but did not append
    start = landed_offset(tables, stream, storage_options)
    landed, small = 0, COMPACT_FILES
    while True:
        head = log.end(stream)
        if once and not head:
            raise Missing(f"there is no stream {stream!r}")
        if head > start:
            start = _next_to_land(table, stream, start, log.first(stream))
            end = log.batch_end(stream, start, batch_rows)
            wanted: Sequence[Range | LiveRange] = log.split(stream, start, end, _parts(end - start))
            prefix = f"{STAGING}/" if format == "parquet" else ""
            names = [f"{prefix}{one.start:020d}-{one.end:020d}" for one in wanted]
            pairs = zip(wanted, names, strict=True)
            files = _write(spark, [task_of(one, table, name, fail_on_malformed_headers) for one, name in pairs])
            checkpoint = tree.copy_to(table, wait=once and end >= head)
            if format == "delta":
                commit(table, stream, files, arrow_schema(), storage_options, checkpoint=checkpoint)
                small = compact(table, storage_options) if small + 1 >= COMPACT_FILES else small + 1
            else:
                append_files(table, files)
            landed, start = landed + end - start, end
            tell(landed)
        elif once:
            return landed
        else:
            time.sleep(IDLE_S)
        if until():
            return landed


def _next_to_land(table: str, stream: str, landed: int, first: int) -> int:
    """Return the next offset to land. An empty table begins with the log's first offset; a table never gets a gap."""
    if landed and landed < first:
        raise Missing(
            f"offsets {landed} to {first - 1} of {stream!r} were dropped before they landed in {table}: "
            f"land it in another folder, where its table begins with offset {first}"
        )
    return max(landed, first)


def _parts(rows: int) -> int:
    return 1 if rows < SMALL_ROWS else max(FILES_MIN, -(-rows // ROWS_A_FILE))


def _write(spark: SparkSession | None, tasks: list[LandTask]) -> list[ParquetFile]:
    """Run the tasks and return the files that they wrote."""
    if spark is None:
        return [write_file(task) for task in tasks]
    text = base64.b64encode(msgspec.msgpack.encode(tasks)).decode()
    found = collect(spark.read.format("chaplain-land").option("tasks", text).load())
    return sorted((_written.decode(bytes(row.data)) for row in found), key=lambda one: one.start)
