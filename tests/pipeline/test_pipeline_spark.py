"""The source in Spark: what is read is what was written, once and in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from pipeline_stage import journal, put
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from chaplain.errors import ConfigError, Missing
from chaplain.pipeline import find_breaks, fold, land, prove, report, table, table_path, verify


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put(tmp_path_factory.mktemp("cluster") / "node-1" / "segments", journal())


def _read(spark: SparkSession, segments: Path, **options: str) -> DataFrame:
    reader = spark.read.format("chaplain").option("path", str(segments)).option("subscribe", "orders")
    return reader.options(**options).load()


def test_batch_reads_everything_once_in_order(spark: SparkSession, segments: Path) -> None:
    rows = _read(spark, segments, minPartitions="3").collect()
    expected = [b"%d/%d" % (number, row) for number in range(40) if number % 10 != 9 for row in range(25)]
    assert [bytes(row.value) for row in rows] == expected
    assert [row.offset for row in rows] == list(range(900))
    assert {(row.topic, row.partition, row.timestampType, row.key) for row in rows} == {("orders", 0, 1, None)}
    assert all(len(row.pack_digest) == 32 for row in rows)


def test_ranges_and_narrow_schema(spark: SparkSession, segments: Path) -> None:
    options = {"startingOffsets": '{"orders":{"0":10}}', "endingOffsets": '{"orders":{"0":33}}'}
    reader = spark.read.format("chaplain").schema("offset bigint").option("cluster", str(segments.parent.parent))
    found = reader.option("subscribePattern", "ord.*").options(**options).load()
    assert found.columns == ["offset"]
    assert [row.offset for row in found.collect()] == list(range(10, 33))


def test_where_does_not_spoil_the_frame(spark: SparkSession, segments: Path) -> None:
    frame = _read(spark, segments, includeHeaders="true")
    assert frame.where("offset < 20").count() == 20
    assert frame.count() == 900
    assert frame.select("headers").first() == (None,)


def test_unknown_stream_is_an_error(spark: SparkSession, segments: Path) -> None:
    with pytest.raises(PySparkException, match="there is no stream 'nobody'"):
        _read(spark, segments, subscribe="nobody").count()


def test_streaming_reads_everything_in_limited_batches(spark: SparkSession, segments: Path, tmp_path: Path) -> None:
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
    assert sorted(seen) == sorted([("orders", n) for n in range(900)] + [("audit", n) for n in range(100)])


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_land_exactly_once_and_goes_on(spark: SparkSession, tmp_path: Path, kind: Any) -> None:
    groups = journal()
    part, whole = put(tmp_path / "part", groups[:20]), put(tmp_path / "whole", groups)
    tables = tmp_path / "tables"
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
    with pytest.raises(ConfigError, match="is no table of format"):
        land(spark, stream="orders", tables=tables, path=str(whole), once=True, format=cast("Any", other))


def test_fold_keeps_the_latest_row_of_each_key(spark: SparkSession) -> None:
    rows = [("orders", b"a", 1), ("orders", b"b", 2), ("orders", b"a", 3), ("orders", None, 4)]
    folded = fold(spark.createDataFrame(rows, "topic string, key binary, offset bigint")).collect()
    assert sorted((bytes(row.key), row.offset) for row in folded) == [(b"a", 3), (b"b", 2)]


def test_proof_goes_on_from_its_manifest(spark: SparkSession, tmp_path: Path) -> None:
    groups = journal()
    segments, manifest = put(tmp_path / "segments", groups[:30]), tmp_path / "manifest.json"
    first = prove(spark, path=str(segments), manifest=manifest)
    assert (first.breaks, first.rows) == ([], 29 * 25)
    put(segments, groups)
    second = prove(spark, path=str(segments), manifest=manifest)
    assert (second.breaks, second.rows) == ([], 11 * 25)
    note = json.loads(manifest.read_text())
    assert note["rows"] == 40 * 25
    note["rows"], note["signer"] = 7, "A" * 43
    manifest.write_text(json.dumps(note))
    with pytest.raises(ConfigError, match="signed by somebody else"):
        prove(spark, path=str(segments), manifest=manifest)


def test_our_errors_come_back_as_ours(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Missing, match="there are no segments in"):
        verify(spark, path=str(tmp_path))


def test_verify_names_a_gap_and_is_silent_when_whole(spark: SparkSession, segments: Path, tmp_path: Path) -> None:
    assert verify(spark, path=str(segments)).count() == 0
    groups = journal()
    holed = put(tmp_path, groups[:20] + groups[21:])
    found = [(one.stream, one.offset, one.kind) for one in find_breaks(spark, path=str(holed))]
    assert found == [("", 21, "missing"), ("audit", 25, "missing")]
    assert [one.offset for one in find_breaks(spark, path=str(holed), stream="orders")] == [21]
