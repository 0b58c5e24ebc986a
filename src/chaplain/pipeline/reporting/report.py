"""`report`: writes an HTML file about landed streams.

This module gathers the facts with three aggregating queries, so that the page for a billion rows is as large as the
page for a thousand. `page` decides what it looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the usual name

from chaplain.errors import Missing
from chaplain.pipeline.reporting.page import Facts, RegimeSpan, ReportBucket, Share, page
from chaplain.pipeline.tables import Storage, landed_streams, table, table_path
from chaplain.pipeline.verification.table_proof import find_table_breaks
from chaplain.pipeline.verification.verify import prove

BUCKETS = 120
PAUSES = 10
_MICRO = 1e6


def report(
    spark: SparkSession,
    *,
    tables: str | Path,
    out: str | Path,
    stream: str = "",
    cluster: str | Path = "",
    path: str | Path = "",
    title: str = "Streams",
    storage_options: Storage = None,
    latencies: Sequence[tuple[float, float]] = (),
    promises: Sequence[tuple[str, str, str, bool]] = (),
) -> None:
    """Write a self-contained HTML page about landed streams: rates, failovers, writers, gaps and breaks.

    Arguments:
        spark: The session that reads and verifies the tables.
        tables: The folder of the landed tables.
        out: The HTML file to write.
        stream: Report on this stream only. Default: all streams in `tables`.
        cluster: A cluster's folder: verify its log as well, and show the breaks.
        path: A node's folder of segments to verify, instead of `cluster`.
        title: The page's title.
        storage_options: Options of delta-rs for tables in an object store.
        latencies: Measured latencies to plot, as (time in seconds, milliseconds).
        promises: Rows of a table to show, as (promise, promised, found, kept).

    Raises `Missing` if no stream has landed.
    """
    streams = [one for one in landed_streams(tables) if stream in ("", one)]
    if not streams:
        raise Missing(f"there are no tables {f'of {stream!r} ' if stream else ''}in {tables}: land a stream first")
    frames = [table(spark, table_path(tables, stream), storage_options) for stream in streams]
    breaks = find_table_breaks(spark, tables, stream)
    if cluster or path:
        breaks += [one for one in prove(spark, cluster=cluster, path=path).breaks if stream in ("", one.stream)]
    facts = gather(frames, breaks)
    facts = msgspec.structs.replace(facts, latencies=tuple(latencies), promises=tuple(promises))
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(page(facts, title))


def gather(frames: Sequence[DataFrame], breaks: list[Any]) -> Facts:
    columns = ("topic", "offset", "value", "client_id", "ingest_node", "regime", "message_index")
    rows = frames[0].select(*columns, F.unix_micros("timestamp").alias("at"))
    for frame in frames[1:]:
        rows = rows.unionByName(frame.select(*columns, F.unix_micros("timestamp").alias("at")))
    bounds = rows.agg(F.min("at").alias("low"), F.max("at").alias("high")).collect()[0]
    low, high = bounds.low or 0, bounds.high or 0  # both are null for an empty table
    width = bucket_width((high - low) / _MICRO)
    grouped = _grouped(rows, low, width)
    return Facts(
        _buckets(grouped, low / _MICRO, width),
        width,
        _regime_spans(grouped),
        _shares(grouped, "client_id", "lane"),
        _shares(grouped, "ingest_node", "node"),
        breaks,
        _pauses(rows),
    )


def bucket_width(span_s: float) -> float:
    """Return a round number of seconds that splits the time span into at most `BUCKETS` intervals."""
    wanted = max(span_s / BUCKETS, 0.1)
    sizes = [base * 10.0**power for power in range(-1, 9) for base in (1, 2, 5)]
    return next(size for size in sizes if size >= wanted)


def _grouped(rows: DataFrame, low_us: int, width_s: float) -> list[Any]:
    """Aggregate the rows to a few thousand groups at most, which contain everything that the plots show."""
    bucket = F.floor((F.col("at") - F.lit(low_us)) / F.lit(width_s * _MICRO)).alias("bucket")
    sums = [
        F.count("*").alias("rows"),
        F.sum(F.octet_length("value")).alias("octets"),
        F.min("at").alias("first"),
        F.max("at").alias("last"),
    ]
    return rows.groupBy("topic", "client_id", "ingest_node", "regime", bucket).agg(*sums).collect()


def _buckets(grouped: list[Any], low_s: float, width_s: float) -> list[ReportBucket]:
    sums: dict[tuple[str, int], list[int]] = {}
    for row in grouped:
        one = sums.setdefault((row.topic, int(row.bucket)), [0, 0])
        one[0] += row.rows
        one[1] += row.octets
    return [ReportBucket(name, low_s + place * width_s, *one) for (name, place), one in sorted(sums.items())]


def _regime_spans(grouped: list[Any]) -> list[RegimeSpan]:
    found: dict[int, RegimeSpan] = {}
    for row in grouped:
        old = found.get(row.regime, RegimeSpan(row.regime, row.first / _MICRO, row.last / _MICRO, 0))
        first, last = min(old.first_s, row.first / _MICRO), max(old.last_s, row.last / _MICRO)
        found[row.regime] = RegimeSpan(row.regime, first, last, old.rows + row.rows)
    return [found[regime] for regime in sorted(found)]


def _shares(grouped: list[Any], column: str, word: str) -> list[Share]:
    found: dict[tuple[int, str], Share] = {}
    for row in grouped:
        name = (row[column], row.topic)
        who = f"{word} {row[column]}"
        old = found.get(name, Share(who, row.topic, 0, 0, row.first / _MICRO, row.last / _MICRO))
        first, last = min(old.first_s, row.first / _MICRO), max(old.last_s, row.last / _MICRO)
        found[name] = Share(who, row.topic, old.rows + row.rows, old.octets + row.octets, first, last)
    return [found[name] for name in sorted(found)]


def _pauses(rows: DataFrame) -> list[tuple[float, float]]:
    """Return the longest intervals between consecutive messages."""
    times = rows.select("message_index", "at").distinct().orderBy("at").select("at")
    found: list[tuple[float, float]] = []
    before: int | None = None
    for row in times.toLocalIterator():
        if before is not None:
            found.append((before / _MICRO, (row.at - before) / _MICRO))
            if len(found) > 10 * PAUSES:
                found = sorted(found, key=lambda one: -one[1])[:PAUSES]
        before = row.at
    return sorted(found, key=lambda one: -one[1])[:PAUSES]
