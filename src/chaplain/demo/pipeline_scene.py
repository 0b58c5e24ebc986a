"""The pipeline in the demo: what was written lands in tables, is proven and folded, and becomes a page."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession

from chaplain.client.sync import Client
from chaplain.demo.findings import Findings
from chaplain.demo.journal_scene import KEYS, MESSAGES, STREAM
from chaplain.demo.scenes import Tell
from chaplain.demo.sql_scene import STREAM as ACCOUNTS
from chaplain.demo.sql_scene import prints
from chaplain.pipeline import find_breaks, fold, land, local_session, report, table, table_path
from chaplain.pipeline.landing.row_changes import fingerprint_at

STREAMS = (STREAM, "probe")
DOTS_MAX = 2000


def lands_and_proves(cluster: Path, findings: Findings, tell: Tell) -> None:
    out = cluster.parent
    tables = out / "tables"
    tell("starting Spark on this machine")
    spark = local_session("local[*]")
    try:
        _land(spark, cluster, tables, findings, tell)
        _prove(spark, cluster, tables, findings, tell)
        _fold(spark, cluster, tables, findings, tell)
        tell(f"writing {out / 'report.html'}")
        step = max(1, len(findings.latencies) // DOTS_MAX)
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


def _land(spark: SparkSession, cluster: Path, tables: Path, findings: Findings, tell: Tell) -> None:
    tell("landing the streams in Delta tables")
    began = time.perf_counter()
    rows = {stream: land(spark, stream=stream, tables=tables, cluster=str(cluster), once=True) for stream in STREAMS}
    seconds = time.perf_counter() - began
    findings.equal("spark: messages in the table", f"{MESSAGES:,}", f"{rows[STREAM]:,}")
    total = sum(rows.values())
    findings.add("spark: landed", "reported", f"{total:,} messages, {total / seconds:,.0f} a second", True)


def _prove(spark: SparkSession, cluster: Path, tables: Path, findings: Findings, tell: Tell) -> None:
    tell("proving the log: chains, digests, signatures, offsets, request ids")
    began = time.perf_counter()
    breaks = find_breaks(spark, cluster=str(cluster), signatures=True, manifest=cluster.parent / "manifest.json")
    took = f"{len(breaks)}, in {time.perf_counter() - began:.1f} s"
    findings.add("spark: breaks in the log", 0, took, not breaks)
    findings.equal("spark: breaks in the tables", 0, len(find_breaks(spark, tables=tables)))


def _fold(spark: SparkSession, cluster: Path, tables: Path, findings: Findings, tell: Tell) -> None:
    tell("folding the stream to the latest value of each key, and comparing with a node")
    folded = fold(table(spark, table_path(tables, STREAM)))
    found = {bytes(row.key): bytes(row.value) for row in folded.select("key", "value").collect()}
    with Client.connect(str(cluster)) as client:
        latest = {message.key: message.value for message in client.journal(STREAM).read()}
    same = sum(found.get(key) == value for key, value in latest.items() if key is not None)
    findings.equal("spark: keys whose latest value is the node's", KEYS, same)
    tell("folding the row changes of a database, and comparing with the executors' own state")
    summed = fingerprint_at(spark, cluster / "node-1" / "databases" / "rows" / ACCOUNTS, ACCOUNTS).hex()
    same = sum(summed == one for one in prints(cluster))
    findings.equal("spark: executors whose database is what its row changes fold to", 3, same)
