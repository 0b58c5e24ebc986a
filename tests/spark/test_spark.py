"""The source in Spark: what is read is what was written, once and in order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from chaplain.errors import ConfigError, Inaccessible, Missing
from chaplain.pipeline import (
    find_breaks,
    fold,
    land,
    offsets_behind_latest,
    report,
    table,
    table_path,
    verify,
)
from chaplain.pipeline.tables import STAGING, arrow_schema
from tests.spark.support.stage import journal, put


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put(tmp_path_factory.mktemp("cluster") / "node-1" / "segments", journal())


def _read(spark: SparkSession, segments: Path, **options: str) -> DataFrame:
    reader = spark.read.format("chaplain").option("path", str(segments)).option("subscribe", "orders")
    return reader.options(**options).load()


def test_batch_read_returns_every_message_once_in_order(spark: SparkSession, segments: Path) -> None:
    rows = _read(spark, segments, minPartitions="3").collect()
    expected = [b"%d/%d" % (number, row) for number in range(40) if number % 10 != 9 for row in range(25)]
    assert [bytes(row.value) for row in rows] == expected
    assert [row.offset for row in rows] == list(range(900))
    assert {(row.topic, row.partition, row.timestampType, row.key) for row in rows} == {("orders", 0, 1, None)}
    assert all(len(row.pack_digest) == 32 for row in rows)


def test_read_of_a_range_with_a_narrow_schema_returns_its_columns(spark: SparkSession, segments: Path) -> None:
    options = {"startingOffsets": '{"orders":{"0":10}}', "endingOffsets": '{"orders":{"0":33}}'}
    reader = spark.read.format("chaplain").schema("offset bigint").option("cluster", str(segments.parent.parent))
    found = reader.option("subscribePattern", "ord.*").options(**options).load()
    assert found.columns == ["offset"]
    assert [row.offset for row in found.collect()] == list(range(10, 33))


def test_filtering_a_frame_leaves_it_reusable(spark: SparkSession, segments: Path) -> None:
    frame = _read(spark, segments, includeHeaders="true")
    assert frame.where("offset < 20").count() == 20
    assert frame.count() == 900
    assert frame.select("headers").first() == (None,)


def test_wrong_options_are_reported_at_load(spark: SparkSession, segments: Path) -> None:
    with pytest.raises(PySparkException, match="exactly one of the options subscribe"):
        spark.read.format("chaplain").option("path", str(segments)).load()
    with pytest.raises(PySparkException, match="'oders', which is not subscribed to"):
        _read(spark, segments, startingOffsets='{"orders":{"0":1},"oders":{"0":1}}').count()


_PLAIN = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
from chaplain.pipeline import register
register(spark)
print(spark.read.format("chaplain").option("path", sys.argv[1]).option("subscribe", "orders").load().count())
"""


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="a session of the user's own needs a Java of the user's own")
def test_source_works_in_a_spark_session_of_the_user(segments: Path) -> None:
    """Whatever `python3` is on the path: workers use the interpreter that registered it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment["PATH"] = os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if folder != str(Path(sys.executable).parent)
    )
    command = [sys.executable, "-c", _PLAIN, str(segments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540, check=False)
    assert done.stdout.split() == ["900"], done.stderr


def test_table_of_the_catalog_keeps_its_options(spark: SparkSession, segments: Path, tmp_path: Path) -> None:
    options = f"path '{segments}', subscribe 'orders', includeHeaders 'true', minPartitions '1'"
    spark.sql(f"CREATE TABLE catalogued USING chaplain OPTIONS ({options})")
    try:
        assert spark.sql("SELECT count(*), max(offset) FROM catalogued").first() == (900, 899)
        assert "headers" in spark.table("catalogued").columns
        frame = spark.readStream.option("startingOffsets", "earliest").table("catalogued")
        seen: list[int] = []
        query = frame.writeStream.foreachBatch(lambda batch, _: seen.append(batch.count()))
        running = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert running.awaitTermination(60)
        assert sum(seen) == 900
    finally:
        spark.sql("DROP TABLE catalogued")
    with pytest.raises(PySparkException, match="did you mean subscribe"):
        spark.sql(f"CREATE TABLE wrong USING chaplain OPTIONS (path '{segments}', subscibe 'orders')")


def test_schema_with_headers_needs_no_option(spark: SparkSession, segments: Path) -> None:
    columns = "offset bigint, headers array<struct<key:string,value:binary>>"
    reader = spark.read.format("chaplain").schema(columns).option("path", str(segments)).option("subscribe", "orders")
    assert reader.load().where("offset = 7").collect() == [(7, None)]


def test_unknown_stream_is_an_error(spark: SparkSession, segments: Path) -> None:
    with pytest.raises(PySparkException, match="there is no stream 'nobody'"):
        _read(spark, segments, subscribe="nobody").count()


def test_streaming_read_returns_every_message_in_limited_batches(
    spark: SparkSession, segments: Path, tmp_path: Path
) -> None:
    reader = spark.readStream.format("chaplain").option("path", str(segments)).option("subscribe", "orders,audit")
    frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "400").load()
    sizes: list[int] = []
    seen: list[tuple[str, int]] = []

    def take(batch: DataFrame, _number: int) -> None:
        rows = [(row.topic, row.offset) for row in batch.select("topic", "offset").collect()]
        sizes.append(len(rows))
        seen.extend(rows)

    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
    running = query.trigger(availableNow=True).start()
    assert running.awaitTermination(60)
    assert max(sizes) <= 400
    assert offsets_behind_latest(running.recentProgress[0]) == {"orders": 540, "audit": 60}
    assert offsets_behind_latest(running.lastProgress) == {"orders": 0, "audit": 0}
    assert sorted(seen) == sorted([("orders", n) for n in range(900)] + [("audit", n) for n in range(100)])


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_land_writes_each_message_once_and_continues(spark: SparkSession, tmp_path: Path, kind: Any) -> None:
    groups = journal()
    part, whole = put(tmp_path / "part", groups[:20]), put(tmp_path / "whole", groups)
    tables = tmp_path / "my tables [ü] {1}*"  # as people call folders; nothing in it is an escape or a pattern
    told: list[int] = []
    assert land(spark, stream="orders", tables=tables, path=str(part), once=True, format=kind) == 450
    more = {"once": True, "format": kind, "batch_rows": 130, "tell": told.append}
    assert land(spark, stream="orders", tables=tables, path=str(whole), **more) == 450
    assert land(spark, stream="orders", tables=tables, path=str(whole), **more) == 0
    assert told == [125, 250, 375, 450]
    landed = table(spark, table_path(tables, "orders"))
    assert sorted(row.offset for row in landed.select("offset").collect()) == list(range(900))
    assert find_breaks(spark, tables=tables) == []
    report(spark, tables=tables, out=tmp_path / "report.html", stream="orders", path=str(whole))
    assert "900" in (tmp_path / "report.html").read_text()
    other = {"delta": "parquet", "parquet": "delta"}[kind]
    with pytest.raises(ConfigError, match="is not a table of format"):
        land(spark, stream="orders", tables=tables, path=str(whole), once=True, format=cast("Any", other))
    with pytest.raises(ConfigError, match="format is delta or parquet, not 'csv'"):
        land(spark, stream="new", tables=tables, path=str(whole), once=True, format=cast("Any", "csv"))


def test_fold_returns_the_latest_row_of_each_key(spark: SparkSession) -> None:
    rows = [("orders", b"a", 1), ("orders", b"b", 2), ("orders", b"a", 3), ("orders", None, 4)]
    folded = fold(spark.createDataFrame(rows, "topic string, key binary, offset bigint")).collect()
    assert sorted((bytes(row.key), row.offset) for row in folded) == [(b"a", 3), (b"b", 2)]


def test_errors_of_tasks_keep_their_class(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Missing, match="there are no segments in"):
        verify(spark, path=str(tmp_path))
    with pytest.raises(Inaccessible, match=f"^cannot read {tmp_path}/nowhere: No such file or directory$"):
        verify(spark, path=str(tmp_path / "nowhere"))


def test_verify_names_a_gap_and_returns_nothing_for_an_intact_log(
    spark: SparkSession, segments: Path, tmp_path: Path
) -> None:
    assert verify(spark, path=str(segments)).count() == 0
    groups = journal()
    holed = put(tmp_path, groups[:20] + groups[21:])
    found = [(one.stream, one.offset, one.kind) for one in find_breaks(spark, path=str(holed))]
    assert found == [("", 21, "missing"), ("audit", 25, "missing")]
    assert [one.offset for one in find_breaks(spark, path=str(holed), stream="orders")] == [21]


def test_tables_that_are_not_there_are_named(spark: SparkSession, segments: Path, tmp_path: Path) -> None:
    for nowhere in (tmp_path / "nothing" / "orders", tmp_path, "file:///nowhere/orders"):
        with pytest.raises(Missing, match=f"there is no table at {nowhere}"):
            table(spark, nowhere)
    land(spark, path=str(segments), stream="orders", tables=tmp_path, once=True)
    with pytest.raises(Missing, match="there are no tables of 'oders' in"):
        verify(spark, tables=tmp_path, stream="oders")
    assert table(spark, tmp_path).count() == table(spark, tmp_path / "orders").count() == 900
    with pytest.raises(Missing, match="there are tables of orders beside it"):
        table(spark, tmp_path / "oders")
    land(spark, path=str(segments), stream="audit", tables=tmp_path, once=True)
    with pytest.raises(Missing, match="there are tables of audit, orders in it"):
        table(spark, tmp_path)


def test_table_without_rows_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "delta"), schema=arrow_schema())
    (tmp_path / "begun" / STAGING).mkdir(parents=True)
    for name in ("delta", "begun"):
        empty = table(spark, tmp_path / name)
        assert (empty.count(), "offset" in empty.columns) == (0, True)
    report(spark, tables=tmp_path, out=tmp_path / "report.html")
    assert "nothing has landed yet" in (tmp_path / "report.html").read_text()


def test_fold_of_one_stream_needs_no_stream_name(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(b"k", b"1", 0), (b"k", b"2", 1)], "key binary, value binary, offset bigint")
    assert [bytes(row.value) for row in fold(rows).collect()] == [b"2"]
