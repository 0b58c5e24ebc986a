"""Options mean what they mean to Kafka's source, and headers come apart without a loop."""

from __future__ import annotations

import socket
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import ArrayType, StructType

from chaplain.errors import ConfigError, Missing, Unreachable
from chaplain.pipeline import data_source
from chaplain.pipeline.data_source import limit_rows
from chaplain.pipeline.session import java_version, local_session
from chaplain.pipeline.sink.sink import parse_sink
from chaplain.pipeline.source.options import (
    Bound,
    KnownOffsets,
    Target,
    check,
    check_named,
    duration_s,
    parse,
    resolve,
    resolve_end,
)
from chaplain.pipeline.source.rows import DroppedRows, OffsetRange, cuts, header_lists, rows_of
from chaplain.segment.headers import encode_headers

BASE = {"path": "segments", "subscribe": "orders"}
STRETCH = KnownOffsets(10, 40, [(10, 1_000_000), (20, 2_000_000), (30, 3_000_000)])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"path": "s"}, "exactly one of the options subscribe"),
        ({**BASE, "assign": '{"orders":[0]}'}, "exactly one of the options subscribe"),
        ({**BASE, "cluster": "c"}, "exactly one of the options cluster"),
        ({"path": "s", "assign": '{"orders":[1]}'}, "one partition 0"),
        ({"path": "s", "subscribePattern": "("}, "is no pattern"),
        ({**BASE, "startingOffsets": "latest"}, "cannot be latest"),
        ({**BASE, "startingOffsets": '{"orders":{"0":-1}}'}, "cannot be latest"),
        ({**BASE, "endingOffsets": "earliest"}, "cannot be earliest"),
        ({**BASE, "endingOffsets": "soon"}, "JSON object"),
        ({**BASE, "startingOffsets": '{"orders":{"0":-3}}'}, "not a number from -2"),
        ({**BASE, "minPartitions": "0"}, "must be positive"),
        ({**BASE, "failOnDataLoss": "maybe"}, "true or false"),
        ({**BASE, "minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"}, "must not be more than"),
        ({**BASE, "maxTriggerDelay": "soon"}, "a time like 10s"),
        ({**BASE, "identity": "abc"}, "never an option's value"),
        ({**BASE, "kind": "queue"}, "kind is one of journal, pool"),
        (
            {**BASE, "startingoffset": "latest"},
            r"no option startingoffset: did you mean startingOffsets\? Options are sub",
        ),
        ({"path": "s", "subscibe": "orders"}, "did you mean subscribe"),
        ({"path": "s", "subscribe": " , "}, "subscribe names no stream"),
        ({"endpoints": "tcp://127.0.0.1:1", "subscribe": "chat", "kind": "pool"}, "where a node recorded them"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(given, streaming=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"path": "s"}, "exactly one of the options subscribe"),
        ({"subscribe": "orders"}, "exactly one of the options cluster"),
        ({**BASE, "startingOffsets": "soon"}, "JSON object"),
        ({**BASE, "endingOffsets": "soon"}, "JSON object"),
        ({**BASE, "failOnDataLoss": "maybe"}, "true or false"),
        ({**BASE, "startingOffsetsX": "5"}, "did you mean startingOffsets"),
    ],
)
def test_options_wrong_in_every_query_are_refused_at_load(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(given)


def test_options_right_in_some_query_are_accepted_at_load() -> None:
    check({**BASE, "kafka.bootstrap.servers": "a:9092", "colour": "red"})
    check({**BASE, "startingOffsets": "latest"})
    check({**BASE, "startingOffsets": "earliest", "endingOffsets": "latest", "endingTimestamp": "5"})


@pytest.mark.parametrize("name", ["startingOffsets", "startingOffsetsByTimestamp", "endingOffsets"])
def test_offsets_by_stream_must_name_exactly_the_subscribed_streams(name: str) -> None:
    options = parse({"path": "s", "subscribe": "orders,audit", name: '{"orders":{"0":5}}'}, streaming=False)
    with pytest.raises(ConfigError, match="not for 'audit': name all of them"):
        check_named(options, ["orders", "audit"])
    check_named(options, ["orders"])  # the other is not there, and nobody minds
    mistyped = parse({**BASE, name: '{"orders":{"0":5},"oders":{"0":5}}'}, streaming=False)
    with pytest.raises(ConfigError, match="'oders', which is not subscribed to"):
        check_named(mistyped, ["orders"])


@pytest.mark.parametrize("name", ["checkpointLocation", "queryName", "__internal"])
def test_options_passed_by_spark_are_ignored(name: str) -> None:
    check({**BASE, name: "x"})
    assert parse({**BASE, name: "x"}, streaming=True) == parse(BASE, streaming=True)
    parse_sink({"cluster": "c", "topic": "t", name: "x"}, streaming=True)


def test_misspelt_sink_option_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="there is no option txnappld: did you mean txnAppId"):
        parse_sink({"cluster": "c", "topic": "t", "txnappld": "x"}, streaming=True)


def test_defaults_differ_between_batch_and_stream() -> None:
    batch, stream = parse(BASE, streaming=False), parse(BASE, streaming=True)
    assert (batch.starting.every, batch.ending.every, stream.starting.every) == (-2, -1, -1)
    assert batch.fail_on_loss
    assert not batch.headers
    with pytest.raises(ConfigError, match="not for streaming"):
        parse({**BASE, "endingOffsets": "latest"}, streaming=True)


def test_timestamps_precede_offsets() -> None:
    bound = parse({**BASE, "startingTimestamp": "2", "startingOffsets": "earliest"}, streaming=False).starting
    assert resolve(bound, "orders", STRETCH, fail_on_loss=True) == 20
    by_stream = {**BASE, "endingOffsetsByTimestamp": '{"orders":{"0":9}}'}
    assert resolve(parse(by_stream, streaming=False).ending, "orders", STRETCH, fail_on_loss=True) == 40


@pytest.mark.parametrize(("offset", "meant"), [(-2, 10), (-1, 40), (10, 10), (25, 25), (40, 40)])
def test_offset_bounds_are_resolved(offset: int, meant: int) -> None:
    assert resolve(Bound(offsets={"orders": offset}), "orders", STRETCH, fail_on_loss=True) == meant


@pytest.mark.parametrize(("offset", "clamped"), [(3, 10), (41, 40)])
def test_lost_offsets_are_an_error_unless_allowed(offset: int, clamped: int) -> None:
    bound = Bound(offsets={"orders": offset})
    with pytest.raises(Missing, match="has offsets 10 to 39"):
        resolve(bound, "orders", STRETCH, fail_on_loss=True)
    assert resolve(bound, "orders", STRETCH, fail_on_loss=False) == clamped


def test_stream_named_twice_is_read_once() -> None:
    assert parse({"path": "s", "subscribe": "orders, audit,orders"}, streaming=False).names == ("orders", "audit")


@pytest.mark.parametrize(
    ("name", "kind", "nullable", "words"),
    [("value", "string", True, "column value is binary, not string: cast it"), ("colour", "string", True, "no columns"),
     ("offset", "integer", True, "is bigint, not int:"), ("offset", "long", False, "not bigint not null:")],
)  # fmt: skip
def test_narrower_schema_must_have_the_sources_types(name: str, kind: str, nullable: bool, words: str) -> None:
    options = parse({**BASE, "includeHeaders": "true"}, streaming=False)
    pair = StructType().add("key", "string").add("value", "binary")
    good = StructType().add("offset", "long").add("timestamp", "timestamp").add("headers", ArrayType(pair))
    assert data_source._Reader(options, good)
    with pytest.raises(ConfigError, match=words):
        data_source._Reader(options, good.add(name, kind, nullable))


def test_time_after_the_last_message_is_an_error_unless_allowed() -> None:
    with pytest.raises(Missing, match="at or after 9 ms"):
        resolve(Bound(time_ms=9), "orders", STRETCH, fail_on_loss=True)
    assert resolve(Bound(time_ms=9, later="latest"), "orders", STRETCH, fail_on_loss=True) == 40


def test_row_limit_is_shared_and_always_makes_progress() -> None:
    start, latest = {"a": {"0": 0}, "b": {"0": 0}}, {"a": {"0": 900}, "b": {"0": 100}}
    seen = 0
    while start != latest:
        end = limit_rows(start, latest, 70)
        step = sum(end[name]["0"] - start[name]["0"] for name in end)
        assert 0 < step <= 70
        seen += step
        start = end
    assert seen == 1000
    assert limit_rows(latest, {"a": {"0": 5}, "b": {"0": 100}}, 70) == latest


def test_headers_become_lists() -> None:
    cells = [None, encode_headers({"a": b"1", "bb": b""}), encode_headers({}), None, encode_headers({"c": b"xyz"})]
    found = header_lists(pa.array(cells, pa.binary())).to_pylist()
    first = [{"key": "a", "value": b"1"}, {"key": "bb", "value": b""}]
    assert found == [None, first, [], None, [{"key": "c", "value": b"xyz"}]]
    sliced = header_lists(pa.array(cells, pa.binary()).slice(1, 3)).to_pylist()
    assert sliced == [first, [], None]


@pytest.mark.parametrize(("text", "major"), [('openjdk version "17.0.15"', 17), ('java version "1.8.0_4"', 8), ("", 0)])
def test_java_version_is_parsed(text: str, major: int) -> None:
    assert java_version(text) == major


def test_unreachable_connect_server_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: tuple[str, int], timeout: float) -> None:
        raise ConnectionRefusedError(f"{address} within {timeout} s")

    # A free port of a busy machine may be taken, or out of reach, a moment later.
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(Unreachable, match=r"nothing listens at 127\.0\.0\.1:15002: start a Spark Connect"):
        local_session(remote="sc://127.0.0.1:15002/;user_id=ann")


def test_durations_and_targets_are_parsed() -> None:
    assert [duration_s("x", text) for text in ("250", "250ms", "10s", "15m", "2h")] == [0.25, 0.25, 10, 900, 7200]
    found = parse({"endpoints": "tcp://a:1, tcp://b:2", "identityFile": "/k", "subscribe": "s"}, streaming=True)
    assert found.target == Target("", "", ("tcp://a:1", "tcp://b:2"), "/k")
    assert (found.min_offsets, found.max_delay_s) == (0, 900)


class Fixed:
    """A backend with one stream that stays as it is."""

    streams = ("orders",)

    def __init__(self, held: KnownOffsets) -> None:
        self._held = held

    def refresh(self, at_once: bool = True) -> None:
        pass

    def known_offsets(self, stream: str) -> KnownOffsets:
        return self._held

    def split(self, stream: str, start: int, end: int, parts: int) -> list[OffsetRange]:
        return [OffsetRange(stream, low, high) for low, high in cuts(start, end, parts)]


def _planner(held: KnownOffsets, **given: str) -> data_source._StreamReader:
    reader = data_source._StreamReader(parse({**BASE, **given}, streaming=True), StructType())
    reader._backend = cast("Any", Fixed(held))
    return reader


def _spans(reader: data_source._StreamReader, start: int, end: int) -> list[tuple[int, int]]:
    parts = reader.partitions({"orders": {"0": start}}, {"orders": {"0": end}})
    return [(part.wanted.start, part.wanted.end) for part in cast("Any", parts)]


def test_dropped_offsets_take_no_rows_of_a_batch() -> None:
    held = KnownOffsets(60, 100)
    loose = _planner(held, failOnDataLoss="false", minPartitions="1")
    for start in ({}, {"orders": {"0": 20}}):  # a stream that is new to the query, and one that fell behind
        assert loose.latestOffset(start, ReadMaxRows(10)) == {"orders": {"0": 70}}
        assert loose.latestOffset(start, ReadAllAvailable()) == {"orders": {"0": 100}}
    assert _spans(loose, 20, 70) == [(60, 70)]
    assert _spans(loose, 20, 50) == []
    strict = _planner(held, minPartitions="1")
    assert _spans(strict, 60, 70) == [(60, 70)]
    assert _spans(strict, 20, 20) == [], "nothing is asked for"
    with pytest.raises(Missing, match="'orders' has offsets 60 to 99, not 20"):
        _spans(strict, 20, 70)


def test_left_out_offsets_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    loose = _planner(KnownOffsets(60, 100), failOnDataLoss="false", minPartitions="1")
    for start, end in ((20, 70), (70, 80), (80, 80)):
        _spans(loose, start, end)
    assert caplog.messages == ["'orders': offsets 20 to 59 were dropped, and are left out"]
    caplog.clear()
    begin, end = Bound(offsets={"orders": 5}), Bound(offsets={"orders": 9})
    wanted = OffsetRange(
        "orders",
        resolve(begin, "orders", STRETCH, fail_on_loss=False),
        resolve_end(end, "orders", STRETCH, fail_on_loss=False),
    )
    assert (wanted.start, wanted.end) == (10, 9)
    assert caplog.messages == ["'orders': offsets 5 to 9 were dropped, and are left out"]
    caplog.clear()
    dropped = DroppedRows("orders")
    dropped.add(20, 22)
    assert list(rows_of([], OffsetRange("orders", 20, 22), ["offset"], dropped)) == []
    assert caplog.messages == ["'orders': offsets 20 to 21 were dropped, and are left out"]
    with pytest.raises(Missing, match="found 0 messages instead of offsets 20 to 22"):
        list(rows_of([], OffsetRange("orders", 20, 23), ["offset"], dropped))


def test_small_batch_waits_up_to_the_maximum_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(data_source.time, "monotonic", lambda: now_s[0])
    given = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "60s"}
    reader = _planner(KnownOffsets(0, 14), **given)
    nothing, some, enough = ({"orders": {"0": offset}} for offset in (14, 5, 4))
    assert reader.latestOffset(some, ReadAllAvailable()) == nothing, "the first batch does not wait"
    now_s[0] = 59.0
    assert reader.latestOffset(some, ReadAllAvailable()) == some
    assert reader.latestOffset(enough, ReadAllAvailable()) == nothing
    now_s[0] = 118.0
    assert reader.latestOffset(some, ReadAllAvailable()) == some
    now_s[0] = 119.0
    assert reader.latestOffset(some, ReadAllAvailable()) == nothing
