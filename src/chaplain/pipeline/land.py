"""`land`: a stream becomes a table that other tools read, each message exactly once.

Executors write Parquet files; then one commit of the Delta log makes a batch visible. The commit also records, as a
transaction of this stream, the offset behind the batch: what was landed is known from the table alone, and a
batch that was written but not committed is written again under other names. One `land` per table at a time.
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it

from chaplain.errors import ConfigError, Missing
from chaplain.pipeline.index import open_index
from chaplain.pipeline.rows import schema_text
from chaplain.pipeline.source import register, stretch

BATCH_ROWS = 5_000_000
_IDLE_S = 1.0


def table_path(tables: str | Path, stream: str) -> Path:
    return Path(tables) / stream.replace("/", "%2F")


def land(
    spark: SparkSession,
    *,
    stream: str,
    tables: str | Path,
    cluster: str = "",
    path: str = "",
    once: bool = False,
    batch_rows: int = BATCH_ROWS,
) -> int:
    """Land what the stream has that its table has not; with `once`, return how many messages that was."""
    if bool(cluster) == bool(path):
        raise ConfigError("give either the cluster's folder or a path to segments")
    register(spark)
    # Delta's times are microseconds; Spark's own default is an older form.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    landed = 0
    while True:
        known = stretch(open_index(path, cluster), stream)
        if once and known.next == 0:
            raise Missing(f"there is no stream {stream!r}")
        start = landed_offset(table_path(tables, stream), stream)
        end = min(known.next, start + batch_rows)
        if end > start:
            landed += _land(_reader(spark, stream, cluster, path), stream, table_path(tables, stream), start, end)
        elif once:
            return landed
        else:
            time.sleep(_IDLE_S)


def landed_offset(table: Path, stream: str) -> int:
    """The first offset that the table does not hold."""
    if not DeltaTable.is_deltatable(str(table)):
        return 0
    version = DeltaTable(str(table)).transaction_version(_app(stream))
    return 0 if version is None else int(version)


def _app(stream: str) -> str:
    return f"chaplain/{stream}"


def _reader(spark: SparkSession, stream: str, cluster: str, path: str) -> DataFrameReader:
    place = ("cluster", cluster) if cluster else ("path", path)
    return spark.read.format("chaplain").option(*place).option("subscribe", stream).option("includeHeaders", "true")


def _land(reader: DataFrameReader, stream: str, table: Path, start: int, end: int) -> int:
    bounds = {"startingOffsets": start, "endingOffsets": end}
    for name, offset in bounds.items():
        reader = reader.option(name, json.dumps({stream: {"0": offset}}))
    folder = f"batch-{start:020d}-{uuid.uuid4().hex}"
    reader.load().write.parquet(str(table / folder))
    files = sorted((table / folder).glob("*.parquet"))
    rows = sum(int(pq.read_metadata(file).num_rows) for file in files)
    if rows != end - start:
        raise Missing(f"{stream!r}: {rows} messages were read where {end - start} should be: nothing was committed")
    _commit(stream, table, files, end)
    return rows


def _commit(stream: str, table: Path, files: list[Path], end: int) -> None:
    if not DeltaTable.is_deltatable(str(table)):
        DeltaTable.create(str(table), schema=pq.read_schema(files[0]).remove_metadata())
    delta = DeltaTable(str(table))
    delta.create_write_transaction(
        [_added(table, file) for file in files],
        mode="append",
        schema=delta.schema(),
        partition_by=[],
        commit_properties=CommitProperties(app_transactions=[Transaction(_app(stream), end)]),
    )


def _added(table: Path, file: Path) -> Any:
    stats = json.dumps({"numRecords": pq.read_metadata(file).num_rows})
    name = str(file.relative_to(table))
    return AddAction(name, file.stat().st_size, {}, int(file.stat().st_mtime * 1000), True, stats)


def table(spark: SparkSession, path: str | Path) -> DataFrame:
    """A landed table, as its log says it is now. Never read its folder as plain Parquet: it may hold more."""
    files = DeltaTable(str(path)).file_uris()
    if not files:
        return spark.createDataFrame([], schema_text(headers=True))
    return spark.read.parquet(*sorted(files))


def fold(rows: DataFrame) -> DataFrame:
    """The latest row of each key of each stream. Rows without a key are left out."""
    latest = F.max_by(F.struct(*rows.columns), F.col("offset")).alias("latest")
    return rows.where("key is not null").groupBy("topic", "key").agg(latest).select("latest.*")
