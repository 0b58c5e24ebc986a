"""The sink: rows become messages, a batch is written once, whatever is killed and tried again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from chaplain import Client
from chaplain.client.two_phase import joined
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.errors import ConfigError, Refused
from chaplain.journal.execution.two_phase import RequestRange
from chaplain.pipeline.sink import rows as sink_rows
from chaplain.pipeline.sink import sink
from chaplain.pipeline.sink.rows import BatchBuffer, batches, check_schema, cut_points
from chaplain.pipeline.sink.sink import SinkWriter, StagedRows, commit_all, parse_sink, query_of, scoped, stage
from chaplain.segment.headers import decode_headers
from tests.integration.journal.support.scenes import three
from tests.spark.support import sink_driver
from tests.spark.support.sink_scenes import STARTS, fill, kill_drivers, kill_writers
from tests.support.process_cluster import Cluster

pytestmark = pytest.mark.timeout(600)
BASE = {"cluster": "c", "topic": "t"}


# Without Spark.


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"path": "s"}, "read-only"),
        ({**BASE, "txnAppId": "a"}, "must be set together"),
        ({**BASE, "txnVersion": "1"}, "must be set together"),
        ({**BASE, "txnAppId": "a", "txnVersion": "-1"}, "a number from 0 on"),
        ({**BASE, "txnAppId": "query:1", "txnVersion": "1"}, "visible ASCII"),
        ({**BASE, "txnAppId": "a b", "txnVersion": "1"}, "visible ASCII"),
        ({"topic": "t"}, "exactly one of the options cluster"),
    ],
)
def test_wrong_sink_options_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_sink(given, streaming=False)


def test_version_option_is_for_batch_writes_only() -> None:
    with pytest.raises(ConfigError, match="for batch writes"):
        parse_sink({**BASE, "txnAppId": "a", "txnVersion": "1"}, streaming=True)


@pytest.mark.parametrize(
    ("fields", "topic", "words"),
    [
        ({"key": BinaryType()}, "t", "a column value is needed"),
        ({"value": StringType()}, "", "set the option topic"),
        ({"value": IntegerType()}, "t", "binary or string"),
        ({"value": BinaryType(), "key": IntegerType()}, "t", "column key must be"),
        ({"value": BinaryType(), "topic": IntegerType()}, "", "column topic must be"),
        ({"value": BinaryType(), "headers": ArrayType(StringType())}, "t", "array<struct"),
    ],
)
def test_wrong_columns_are_refused(fields: dict[str, DataType], topic: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_schema(_schema(fields), topic)


def test_valid_columns_are_accepted() -> None:
    headers = ArrayType(_schema({"key": StringType(), "value": BinaryType()}))
    plain = {"value": StringType(), "key": BinaryType(), "topic": StringType(), "other": IntegerType()}
    check_schema(_schema({**plain, "headers": headers}), "")


def _schema(fields: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def test_rows_are_grouped_into_batches_by_stream() -> None:
    headers = pa.array([[{"key": "h", "value": b"1"}], None, None], sink_rows_type())
    rows = pa.RecordBatch.from_pydict(
        {"value": ["a", "b", "c"], "key": [None, b"k", None], "topic": ["x", "y", "x"], "headers": headers}
    )
    x, y = batches(rows, "")
    assert (x.stream, x.values, x.keys) == ("x", [b"a", b"c"], None)
    assert x.headers is not None
    assert x.headers[0] is not None
    assert (decode_headers(x.headers[0]), x.headers[1]) == ({"h": b"1"}, None)
    assert (y.stream, y.values, y.keys, y.headers) == ("y", [b"b"], [b"k"], None)
    (one,) = batches(rows, "all")
    assert (one.values, one.keys) == ([b"a", b"b", b"c"], [None, b"k", None])
    assert one.size_bytes == 3 + 1 + len(x.headers[0])


def sink_rows_type() -> pa.DataType:
    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _headers(*pairs: tuple[str | None, bytes] | None) -> pa.Array:
    """A column of one row."""
    return pa.array([[pair and dict(zip(("key", "value"), pair, strict=True)) for pair in pairs]], sink_rows_type())


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"value": [b"a", None], "topic": ["t", "t"]}, "has no value"),
        ({"value": [b"a"], "topic": pa.array([None], pa.string())}, "has no topic"),
        ({"value": [bytes(5 << 20)], "topic": ["t"]}, "too long"),
        ({"value": [b"a"], "headers": _headers(("h", b"1"), ("h", b"2")), "topic": ["t"]}, "unique in the row"),
        ({"value": [b"a"], "headers": _headers((None, b"1")), "topic": ["t"]}, "each header of a row needs a name"),
        ({"value": [b"a"], "headers": _headers(None), "topic": ["t"]}, "each header of a row needs a name"),
        ({"value": [b"a"], "headers": _headers(("", b"1")), "topic": ["t"]}, "cannot be written: at most"),
    ],
)
def test_wrong_rows_are_refused(columns: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        list(batches(pa.RecordBatch.from_pydict(columns), ""))


def test_batches_are_cut_by_size_and_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rows, "BATCH_BYTES", 10)
    monkeypatch.setattr(sink_rows, "BATCH_ROWS", 4)
    assert list(cut_points([4, 4, 4, 30, 1, 1, 1, 1, 1, 9, 2])) == [(0, 2), (2, 3), (3, 4), (4, 8), (8, 10), (10, 11)]
    assert list(cut_points([])) == []


def _batch_of(topics: Sequence[str], number: int) -> pa.RecordBatch:
    values = [b"%s/%d" % (topic.encode(), number) for topic in topics]
    return pa.RecordBatch.from_pydict({"value": values, "topic": list(topics)})


def test_rows_of_many_topics_are_collected_across_arrow_batches() -> None:
    topics = [f"t{number}" for number in range(100)]
    buffer = BatchBuffer("")
    found = [batch for number in range(70) for batch in buffer.add(_batch_of(topics, number))]
    assert not found, "a batch of each topic is far from full"
    found = list(buffer.flush())
    assert [batch.stream for batch in found] == topics
    assert all(batch.values == [b"%s/%d" % (batch.stream.encode(), number) for number in range(70)] for batch in found)


def test_collected_rows_keep_their_order_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rows, "BATCH_ROWS", 4)
    buffer = BatchBuffer("")
    sizes, rows = [], {"a": [], "b": [], "c": []}  # type: ignore[var-annotated]
    chosen = ["a", "a", "b", "a", "c"] * 3

    def take(found: Iterator[Any]) -> None:
        for batch in found:
            sizes.append(len(batch.values))
            rows[batch.stream] += batch.values

    for number in range(20):
        if number == 10:
            monkeypatch.setattr(sink_rows, "BUFFER_BYTES", 1)
        take(buffer.add(_batch_of(chosen, number)))
        assert buffer._size_bytes <= (1 if number >= 10 else sink_rows.BUFFER_BYTES)
    take(buffer.flush())
    assert max(sizes) == 4
    expected = [(topic, number) for number in range(20) for topic in chosen]
    assert rows == {
        name: [b"%s/%d" % (name.encode(), number) for topic, number in expected if topic == name] for name in rows
    }


def test_versions_of_an_app_are_kept_for_each_topic() -> None:
    names = {scoped("a", ""), scoped("a", "b"), scoped("a", "c"), scoped("a:b", ""), scoped("a" * 255, "b" * 255)}
    assert len(names) == 5
    assert all(len(name) <= 255 for name in names)
    assert scoped("", "t") == "", "a write without an app is written as often as it is run"


def test_staged_ids_are_joined_to_ranges() -> None:
    places = [
        ReceiptPlace(1, 1, 5, "x", -1, 5),
        ReceiptPlace(1, 6, 1, "y", -1, 1),
        ReceiptPlace(2, 1, 2, "x", -1, 2),
        ReceiptPlace(1, 9, 1, "x", -1, 1),
    ]
    assert joined(places) == (RequestRange(1, 1, 6), RequestRange(2, 1, 2), RequestRange(1, 9, 9))


def test_streaming_query_is_identified_by_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"abc-1"}')
    assert query_of(str(tmp_path)) == query_of(f"file:{tmp_path}") == "query:abc-1"
    for wrong in ("", "hdfs://far/away", str(tmp_path / "nothing")):
        with pytest.raises(ConfigError, match="set txnAppId"):
            query_of(wrong)


# With nodes.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with three(tmp_path_factory.mktemp("sink") / "three") as made:
        yield made


def _values(cluster: Cluster, stream: str) -> list[bytes]:
    with Client.connect(cluster.directory) as client:
        return [one.value for one in client.journal(stream).read()]


def test_repeated_task_attempts_and_a_lost_node_commit_once(cluster: Cluster) -> None:
    """Attempts that are given up, one that is committed, twice; a node is lost between staging and commit."""
    options = parse_sink({"cluster": str(cluster.directory), "topic": "tried"}, streaming=False)

    def attempt(values: list[bytes]) -> StagedRows:
        return stage(options, iter([pa.RecordBatch.from_pydict({"value": values})]))

    rows = [[b"%d/%d" % (task, row) for row in range(3000)] for task in range(2)]
    attempt(rows[0][:100])
    done = [attempt(rows[0][::-1]), attempt(rows[1])]
    cluster[1].kill()
    commit_all(options, [*done], "job", 0)
    cluster[1].start()
    again = [attempt(rows[1]), attempt(rows[0])]
    commit_all(options, [*again], "job", 0)
    assert _values(cluster, "tried") == rows[0][::-1] + rows[1]
    with pytest.raises(Exception, match="not everything that is to be committed is staged"):
        commit_all(options, [*done], "job", 1)
    with pytest.raises(Refused, match="not everything that is to be committed is staged"):
        commit_all(options, [*again], "job", 1)  # the repeated commit discarded it
    commit_all(options, [attempt(rows[1]), attempt(rows[0])], "job", 1)
    assert len(_values(cluster, "tried")) == 12_000


def _options(cluster: Cluster, **more: str) -> Any:
    return parse_sink({"cluster": str(cluster.directory), **more}, streaming=False)


def test_same_version_is_written_to_two_topics(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """As `foreachBatch` does it, for the first time and then again after a failure."""
    for attempt in range(2):
        for topic in ("first-topic", "second-topic"):
            options = _options(cluster, topic=topic, txnAppId="both", txnVersion="7")
            staged = stage(options, iter([pa.RecordBatch.from_pydict({"value": [b"row"]})]))
            commit_all(options, [staged], options.app, options.version)
        assert len(caplog.messages) == 2 * attempt, "what was not written again is reported"
    assert _values(cluster, "first-topic") == _values(cluster, "second-topic") == [b"row"]
    assert caplog.messages[0] == "version 7 of 'both' was written before: 1 rows are not written again"


def test_aborted_batch_discards_what_its_tasks_staged(cluster: Cluster) -> None:
    options = _options(cluster, topic="aborted")
    writer = SinkWriter(options, _schema({"value": BinaryType()}), overwrite=False)
    staged = writer.write(iter([pa.RecordBatch.from_pydict({"value": [b"row"] * 5000})]))
    writer.abort([staged, None])
    with pytest.raises(Refused, match="not everything that is to be committed is staged"):
        writer.commit([staged])
    writer.abort([None])


def test_task_that_fails_discards_what_it_staged(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    discarded: list[tuple[RequestRange, ...]] = []
    truly = sink.discard

    def discard(context: Any, spans: tuple[RequestRange, ...]) -> None:
        discarded.append(spans)
        truly(context, spans)

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": [bytes(100_000)] * 200})
        raise ArithmeticError("a row cannot be computed")

    monkeypatch.setattr(sink, "discard", discard)
    options = _options(cluster, topic="failed")
    with pytest.raises(ArithmeticError):
        stage(options, rows())
    ((first, *more),) = discarded
    assert not more
    with pytest.raises(Refused, match="not everything that is to be committed is staged"):
        commit_all(options, [StagedRows((RequestRange(first.client_id, 1, 1),), 1)], "", 0)


def test_batch_version_is_written_once(spark: SparkSession, cluster: Cluster) -> None:
    frame = spark.range(0, 2000, 1, 2).selectExpr("cast(id as string) as value", "'k' as key", "'written' as topic")

    def write(mode: str = "append", **more: str) -> None:
        options = {"cluster": str(cluster.directory), **more}
        frame.write.format("chaplain").mode(mode).options(**options).save()

    write(txnAppId="nightly", txnVersion="4")
    write(txnAppId="nightly", txnVersion="4")
    assert _values(cluster, "written") == [b"%d" % number for number in range(2000)]
    with pytest.raises(PySparkException, match="append-only"):
        write("overwrite")


def test_concurrent_writers_survive_a_kill_of_a_node_at_any_moment(cluster: Cluster, tmp_path: Path) -> None:
    def node() -> None:
        cluster[2].kill()
        cluster[2].start()

    counts = kill_writers(cluster.directory, tmp_path / "progress", kills=6, seed=1, node=node)
    assert counts["batches"] >= 6


@pytest.mark.slow
def test_drivers_killed_while_copying_and_landing_write_once(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """The last driver, which may finish, is this process: its Java runs already.

    Two drivers are killed: one that begins a query, and one that goes on with it. The campaign `sink-kills` has more.
    """
    fill(cluster.directory, 750)
    checkpoint, tables = tmp_path / "checkpoint", tmp_path / "tables"

    def finish(words: Sequence[object]) -> None:
        for left in reversed(range(STARTS)):
            try:
                return sink_driver.work(spark, *map(str, words))
            except PySparkException:  # as on a machine that is too busy for it
                if not left:
                    raise
        return None

    counts = kill_drivers(cluster.directory, checkpoint, 2, seed=1, goals=(0, 1), tables=tables, finish=finish)
    assert counts["rows"] == 750
    assert json.loads((checkpoint / "metadata").read_text())["id"]
