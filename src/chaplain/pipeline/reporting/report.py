"""`report`: writes an HTML file about landed streams.

This module gathers the facts with three aggregating queries, so that the page for a billion rows is as large as the
page for a thousand. `page` decides what it looks like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 the usual name

from chaplain.errors import Missing
from chaplain.pipeline.reporting.client_names import client_names
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
        cluster: A cluster's folder: verify its log as well, show the breaks, and name the clients.
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
    names = client_names(cluster, path) if cluster or path else {}
    facts = gather(frames, breaks, names)
    facts = msgspec.structs.replace(facts, latencies=tuple(latencies), promises=tuple(promises))
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(page(facts, title))


def gather(frames: Sequence[DataFrame], breaks: list[Any], names: Mapping[int, str] | None = None) -> Facts:
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
        _shares(grouped, "client_id", "lane", names or {}),
        _shares(grouped, "ingest_node", "node", {}),
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


def _shares(grouped: list[Any], column: str, word: str, names: Mapping[int, str]) -> list[Share]:
    """Add up what each client or node wrote to each stream. A client that has a name may have used many lanes."""
    found: dict[tuple[str, str], Share] = {}
    for row in grouped:
        who = names.get(row[column], f"{word} {row[column]}")
        name = (who, row.topic)
        old = found.get(name, Share(who, row.topic, 0, 0, row.first / _MICRO, row.last / _MICRO))
        first, last = min(old.first_s, row.first / _MICRO), max(old.last_s, row.last / _MICRO)
        found[name] = Share(who, row.topic, old.rows + row.rows, old.octets + row.octets, first, last)
    return [found[name] for name in sorted(found)]


def _pauses(rows: DataFrame) -> list[tuple[float, float]]:
    """Return the longest intervals without a message, longest first. Executors find them: a log has millions."""
    before = F.lag("at").over(Window.orderBy("at"))
    pauses = rows.select("at").distinct().select(before.alias("since"), (F.col("at") - before).alias("span"))
    longest = pauses.where("span > 0").orderBy(F.desc("span"), "since").limit(PAUSES)
    return [(row.since / _MICRO, row.span / _MICRO) for row in longest.collect()]
