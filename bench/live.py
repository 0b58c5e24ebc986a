"""Measures how fast Spark reads a journal from running nodes, compared with Parquet, and the cost of an idle query.

    read     a million 100-byte messages, eight columns, into Spark's noop sink: `format("chaplain")` from three running
             nodes against `spark.read.parquet` of the same rows, alternating; the ratio of the best runs counts
    idle     CPU time of each node while a streaming query has nothing to read, and without a query

Prints a table and a line of JSON. Other processes may use the machine, so only the ratios count.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from beside_parquet import COLUMNS, read_beside_parquet
from chaplain import Client
from chaplain.pipeline import local_session
from support.journal_clusters import ChaplainCluster, until

STREAM = "orders"
MESSAGE_BYTES = 100
KEY_BYTES = 8
SETTLE_S = 3.0
"""Pause between the start of a query and its measurement."""


def write(cluster: str, count: int) -> None:
    value = bytes(MESSAGE_BYTES - KEY_BYTES)
    with Client.connect(cluster, timeout=60) as client, client.journal(STREAM).writer() as writer:
        for number in range(count):
            writer.write(value, key=number.to_bytes(KEY_BYTES, "big"))


def read_ratio(spark: Any, cluster: str, scratch: Path, rows: int, runs: int) -> dict[str, Any]:
    def live() -> Any:
        reader = spark.read.format("chaplain").schema(COLUMNS).option("cluster", cluster)
        return reader.option("subscribe", STREAM).load()

    return read_beside_parquet(spark, "live", live, scratch, rows=rows, runs=runs)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shares(pids: list[int], seconds: float) -> list[float]:
    """Return the CPU use of each process, in per cent of one core."""
    time.sleep(SETTLE_S)
    before = [cpu_seconds(pid) for pid in pids]
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return [round(100 * (cpu_seconds(pid) - then) / took, 2) for pid, then in zip(pids, before, strict=True)]


def idle(spark: Any, cluster: str, scratch: Path, pids: list[int], seconds: float) -> dict[str, Any]:
    alone = shares(pids, seconds)
    frame = spark.readStream.format("chaplain").option("cluster", cluster).option("subscribe", STREAM).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(scratch / "idle")).start()
    try:
        until(lambda: bool(query.recentProgress) or query.status["message"].startswith("Waiting"), "the query runs")
        queried = shares(pids, seconds)
    finally:
        query.stop()
    added = [round(with_query - without, 2) for with_query, without in zip(queried, alone, strict=True)]
    return {"without_a_query": alone, "with_a_query": queried, "added": added}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--messages", type=int, default=1_000_000)
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument(
        "--idle", type=float, default=20.0, help="seconds of nothing to do, with a query and without"
    )
    given = arguments.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="live-bench-"))
    cluster = ChaplainCluster(scratch / "cluster")
    spark = local_session("local[2]", memory="2g")
    try:
        cluster.start()
        write(cluster.address, given.messages)
        read = read_ratio(spark, cluster.address, scratch, given.messages, given.runs)
        waiting = idle(spark, cluster.address, scratch, cluster.pids, given.idle)
        cluster.check()
    finally:
        spark.stop()
        cluster.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"{read['rows']:,} messages of {MESSAGE_BYTES} bytes, eight columns, noop sink, two cores")
    print(f"  {'live nodes':28}{read['live_per_second'] / 1e6:8.2f} M/s")
    print(f"  {'parquet':28}{read['parquet_per_second'] / 1e6:8.2f} M/s   {read['ratio']:.2f} of it")
    print("a node's processor time with nothing to do, per cent of a core")
    print(f"  {'without a query':28}{max(waiting['without_a_query']):8.2f} at most")
    print(f"  {'with a streaming query':28}{max(waiting['with_a_query']):8.2f} at most")
    print(json.dumps({"live": read, "idle": waiting}))


if __name__ == "__main__":
    main()
