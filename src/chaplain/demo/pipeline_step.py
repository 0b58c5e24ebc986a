"""The Spark step: lands all messages in tables, verifies and folds them, and writes the report."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession

from chaplain.client.sync import Client
from chaplain.demo.findings import Findings, Progress
from chaplain.demo.journal_step import KEYS, MESSAGES, STREAM
from chaplain.demo.steps import SQL_STREAM, database_fingerprints
from chaplain.pipeline import find_breaks, fold, land, local_session, report, table, table_path
from chaplain.pipeline.landing.row_changes import fingerprint_at

STREAMS = (STREAM, "probe")
LATENCIES_MAX = 2000
"""The report plots at most about this many single writes."""


def lands_and_verifies(cluster: Path, findings: Findings, progress: Progress) -> None:
    out = cluster.parent
    tables = out / "tables"
    progress("starting Spark on this machine")
    spark = local_session("local[*]")
    try:
        _land(spark, cluster, tables, findings, progress)
        _verify(spark, cluster, tables, findings, progress)
        _fold(spark, cluster, tables, findings, progress)
        progress(f"writing {out / 'report.html'}")
        step = max(1, len(findings.latencies) // LATENCIES_MAX)
        promises = [(one.promise, one.promised, one.found, one.kept) for one in findings.all]
        report(
            spark,
            tables=tables,
            out=out / "report.html",
            title="The demo's streams",
            latencies=findings.latencies[::step],
            promises=promises,
        )
    finally:
        spark.stop()


def _land(spark: SparkSession, cluster: Path, tables: Path, findings: Findings, progress: Progress) -> None:
    progress("landing the streams in Delta tables")
    began = time.perf_counter()
    rows = {stream: land(spark, stream=stream, tables=tables, cluster=str(cluster), once=True) for stream in STREAMS}
    seconds = time.perf_counter() - began
    findings.equal("spark: messages in the table", f"{MESSAGES:,}", f"{rows[STREAM]:,}")
    total = sum(rows.values())
    findings.add("spark: landed", "reported", f"{total:,} messages, {total / seconds:,.0f} a second", True)


def _verify(spark: SparkSession, cluster: Path, tables: Path, findings: Findings, progress: Progress) -> None:
    progress("proving the log: chains, digests, signatures, offsets, request ids")
    began = time.perf_counter()
    breaks = find_breaks(spark, cluster=str(cluster), signatures=True, manifest=cluster.parent / "manifest.json")
    took = f"{len(breaks)}, in {time.perf_counter() - began:.1f} s"
    findings.add("spark: breaks in the log", 0, took, not breaks)
    findings.equal("spark: breaks in the tables", 0, len(find_breaks(spark, tables=tables)))


def _fold(spark: SparkSession, cluster: Path, tables: Path, findings: Findings, progress: Progress) -> None:
    progress("folding the stream to the latest value of each key, and comparing with a node")
    folded = fold(table(spark, table_path(tables, STREAM)))
    found = {bytes(row.key): bytes(row.value) for row in folded.select("key", "value").collect()}
    with Client.connect(str(cluster)) as client:
        latest = {message.key: message.value for message in client.journal(STREAM).read()}
    same = sum(found.get(key) == value for key, value in latest.items() if key is not None)
    findings.equal("spark: keys whose latest value is the node's", KEYS, same)
    progress("folding the row changes of a database, and comparing with the executors' own state")
    summed = fingerprint_at(spark, cluster / "node-1" / "databases" / "rows" / SQL_STREAM, SQL_STREAM).hex()
    same = sum(summed == one for one in database_fingerprints(cluster))
    findings.equal("spark: executors whose database is what its row changes fold to", 3, same)
