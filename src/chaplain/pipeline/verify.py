"""`verify`: proves a log in parallel, and names every break.

Decides how a log is cut into runs for tasks. What a break is, `runs` decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, cast

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from chaplain.errors import ChaplainError, ConfigError
from chaplain.pipeline.index import Index, Place, open_index, read_places
from chaplain.pipeline.runs import Break, Checker, Run, stitch
from chaplain.segment.record import Kind, Record

BREAKS = "stream string, offset bigint, kind string, expected string, found string"
_TASKS = 4
_PARTS = (Kind.META, Kind.BATCH)


class _Part(InputPartition):
    def __init__(self, places: tuple[Place, ...] = (), breaks: tuple[Break, ...] = ()) -> None:
        self.places = places
        self.breaks = breaks


class RunsSource(DataSource):
    """One row a task: its run, as msgpack."""

    @classmethod
    def name(cls) -> str:
        return "chaplain-runs"

    def schema(self) -> str:
        return "run binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options.get("path", ""), self.options.get("cluster", ""))


class _Reader(DataSourceReader):
    def __init__(self, folder: str, cluster: str) -> None:
        self._folder = folder
        self._cluster = cluster

    def partitions(self) -> list[InputPartition]:
        index = open_index(self._folder, self._cluster)
        parts = [_Part(places) for places in cut(index.places, _TASKS)]
        return [*parts, _Part(breaks=tuple(hidden(index)))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        part = cast("_Part", partition)
        run = check(part.places)
        run.breaks += part.breaks
        yield (msgspec.msgpack.encode(run),)


def hidden(index: Index) -> Iterator[Break]:
    """What keeps messages from being shown at all, so that no run can come across it."""
    for number in index.agreement.forks:
        yield Break("", number, "fork", "one agreed message", "two that contradict each other")
    for one in index.agreement.incomplete:
        yield Break("", one.index, "incomplete", f"{one.parts} parts", f"{one.seen} parts")
    for path, position in index.damaged:
        yield Break("", -1, "damaged", "a record", f"nothing valid in {path} at position {position}")


def cut(places: Sequence[Place], tasks: int) -> list[tuple[Place, ...]]:
    """Runs of whole messages, of about equal size in octets."""
    wanted = [place for place in places if place.kind in _PARTS]
    share = max(1, sum(place.size_bytes for place in wanted) // tasks)
    runs: list[list[Place]] = []
    filled = share
    for _, message in groupby(wanted, key=lambda place: place.index):
        if filled >= share:
            runs.append([])
            filled = 0
        parts = list(message)
        runs[-1] += parts
        filled += sum(place.size_bytes for place in parts)
    return [tuple(run) for run in runs]


def check(places: Sequence[Place]) -> Run:
    checker = Checker()
    for _, message in groupby(places, key=lambda place: place.index):
        records = _readable(list(message), checker)
        if records and records[0].part == 0:
            checker.message(records)
    return checker.run


def _readable(places: list[Place], checker: Checker) -> list[Record]:
    records: list[Record] = []
    for place in places:
        try:
            records += read_places([place])
        except (ChaplainError, FileNotFoundError) as wrong:
            checker.unreadable(place.stream, place.first_offset if place.stream else place.index, str(wrong))
    return records


def find_breaks(spark: SparkSession, *, cluster: str = "", path: str = "", stream: str = "") -> list[Break]:
    """All breaks of the log; with a stream, those of other streams are left out."""
    if bool(cluster) == bool(path):
        raise ConfigError("give either the cluster's folder or a path to segments")
    spark.dataSource.register(RunsSource)
    reader = spark.read.format("chaplain-runs")
    frame = reader.option("cluster", cluster).load() if cluster else reader.option("path", path).load()
    runs = [msgspec.msgpack.decode(bytes(row.run), type=Run) for row in frame.collect()]
    return [one for one in stitch(runs) if not stream or one.stream in ("", stream)]


def verify(spark: SparkSession, *, cluster: str = "", path: str = "", stream: str = "") -> DataFrame:
    """A table of breaks: stream, offset, kind, expected, found. Empty if the log is whole.

    Where `stream` is empty, the break is in the cluster's chain and `offset` is the index of the message.
    """
    breaks = find_breaks(spark, cluster=cluster, path=path, stream=stream)
    rows = [(one.stream, one.offset, one.kind, one.expected, one.found) for one in breaks]
    return spark.createDataFrame(rows, BREAKS)
