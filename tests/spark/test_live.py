"""Streams from live nodes: the same rows as from their segments, whatever becomes of a node meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from chaplain import Client
from chaplain.errors import Dropped
from chaplain.pipeline import land
from chaplain.pipeline.source import live
from chaplain.pipeline.source.live import LiveBackend, LiveOffsets, LiveRange
from chaplain.pipeline.source.options import Target
from chaplain.pipeline.source.rows import DroppedRows
from chaplain.segment.pack import heads_of
from tests.integration.journal.support.scenes import three
from tests.support.process_cluster import Cluster, until

pytestmark = pytest.mark.timeout(240)
MESSAGES = 3000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with three(tmp_path_factory.mktemp("live") / "three") as made:
        with Client.connect(made.directory) as client:
            for number in range(3):
                with client.journal("orders").writer() as writer:
                    for row in range(MESSAGES // 3):
                        writer.write(
                            b"%d/%d" % (number, row), key=b"k" if row % 3 else None, headers={"n": b"%d" % row}
                        )
            client.journal("audit").write_many([b"a", b"b"])
        yield made


def _read(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("chaplain").options(**{"subscribe": "orders", "includeHeaders": "true", **options}).load()


def test_live_rows_equal_rows_of_segments(spark: SparkSession, cluster: Cluster) -> None:
    found = _read(spark, cluster=str(cluster.directory), minPartitions="3").collect()
    assert [row.offset for row in found] == list(range(MESSAGES))
    until(lambda: _read(spark, path=str(cluster[1].folder / "segments")).count() == MESSAGES, "the mark is written")
    assert found == _read(spark, path=str(cluster[1].folder / "segments")).collect()


def test_endpoints_and_an_identity_file_are_sufficient(
    spark: SparkSession, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints = ",".join(node.endpoint for node in cluster.file.nodes)
    given = {"endpoints": endpoints, "identityFile": cluster.file.identity, "startingOffsets": '{"orders":{"0":2990}}'}
    assert [row.offset for row in _read(spark, **given).collect()] == list(range(2990, MESSAGES))
    with pytest.raises(PySparkException, match="never an option's value"):
        _read(spark, endpoints=endpoints, identity="abc").count()


def test_time_is_resolved_to_an_offset(cluster: Cluster) -> None:
    target = Target(cluster=str(cluster.directory))
    with Client.connect(cluster.directory) as client:
        messages = list(client.journal("orders").read())
    stretch = LiveBackend(target).known_offsets("orders")
    assert isinstance(stretch, LiveOffsets)
    for message in (messages[0], messages[1500], messages[-1]):
        first = next(one.offset for one in messages if one.timestamp == message.timestamp)
        assert stretch.since(message.timestamp) == first
    assert stretch.since(messages[-1].timestamp + 1) is None


def test_frequent_spark_polls_cause_few_requests_to_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    now_s = [100.0]

    class Fake:
        def streams(self) -> list[object]:
            asked.append(1)
            return []

    monkeypatch.setattr(live, "client_of", lambda _: Fake())
    monkeypatch.setattr(live.time, "monotonic", lambda: now_s[0])
    backend = LiveBackend(Target(cluster="c"))
    for tick in range(1000):
        now_s[0] = 100.0 + tick / 90
        backend.refresh(at_once=False)
    assert len(asked) <= 10 * 1000 / 90 + 2


def test_retained_part_of_a_dropped_range_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    listed = [6, 60]  # the first to answer has more than the one that was read

    def portions(_: object, __: object, start: int, end: int) -> Iterator[object]:
        asked.append(start)
        if start < 60:
            raise Dropped(f"offset {start} was dropped")
        yield SimpleNamespace(stop=end)

    def streams() -> list[object]:
        return [SimpleNamespace(stream="orders", first_offset=listed.pop(0))]

    monkeypatch.setattr(live, "client_of", lambda _: SimpleNamespace(streams=streams))
    monkeypatch.setattr(live, "_chunks", portions)
    monkeypatch.setattr(live, "record_of", lambda _, portion: portion)
    wanted = LiveRange("orders", 20, 100, Target(cluster="c"))
    dropped = DroppedRows("orders")
    assert [one.stop for one in cast("Any", live._records(wanted, False, dropped))] == [100]
    assert asked == [20, 20, 60]
    assert dropped.count == 40
    with pytest.raises(Dropped, match="offset 20"):
        list(live._records(wanted, True, dropped))


def test_land_from_nodes_commits_batches_of_whole_packs(cluster: Cluster, tmp_path: Path) -> None:
    """The nodes' folders are out of reach, as for a driver on another machine."""
    shutil.copytree(cluster.directory, tmp_path / "c", ignore=shutil.ignore_patterns("node-*"))
    told: list[int] = []
    with Client.connect(cluster.directory) as client:
        end = next(one.next_offset for one in client.streams() if one.stream == "orders")
        with client.journal("orders").read() as reader:
            counts = [head.count for chunk in reader.portions() for head in heads_of(chunk.packs)]
    ends = set(accumulate(counts))
    more = {"cluster": str(tmp_path / "c"), "tables": tmp_path / "t", "once": True, "batch_rows": end // 4}
    assert land(None, stream="orders", tell=told.append, **cast("Any", more)) == end
    assert set(told) <= ends
    assert len(told) >= min(3, len(counts))
    assert land(None, stream="orders", **cast("Any", {**more, "batch_rows": 1, "tables": tmp_path / "u"})) == end


def test_streaming_query_continues_when_its_node_is_killed(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """Whichever node the driver and the tasks read from: every node is killed once while the query runs."""
    reader = spark.readStream.format("chaplain").option("cluster", str(cluster.directory))
    frame = reader.option("subscribe", "orders").option("startingOffsets", "earliest").load()
    seen: list[tuple[int, bytes]] = []

    def take(batch: DataFrame, _number: int) -> None:
        seen.extend((row.offset, bytes(row.value)) for row in batch.select("offset", "value").collect())

    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path)).start()
    try:
        with Client.connect(cluster.directory, timeout=30) as client:
            written = MESSAGES
            for node in cluster:
                node.kill()
                client.journal("orders").write_many([b"after %d" % number for number in range(500)])
                written += 500
                until(lambda goal=written: len(seen) >= goal, "rows come through other nodes")
                node.start()
                until(node.ready, "the killed node serves again")
            expected = [(one.offset, one.value) for one in client.journal("orders").read()]
        assert query.exception() is None
        latest = json.loads(query.lastProgress["sources"][0]["latestOffset"])
        assert latest == {"orders": {"0": len(expected)}}
    finally:
        query.stop()
    assert seen == expected
