"""Compares Spark reading a stream from chaplain with Spark reading the same rows from Parquet."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COLUMNS = "key binary, value binary, topic string, offset bigint, timestamp timestamp, client_id bigint, regime bigint, message_index bigint"  # noqa: E501


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def read_beside_parquet(
    spark: Any, name: str, frame: Callable[[], Any], scratch: Path, *, rows: int, runs: int
) -> dict[str, Any]:
    """Read the same rows and columns from both, in alternating runs, and compare the best runs."""

    def parquet() -> Any:
        return spark.read.parquet(str(scratch / "parquet"))

    frame().write.parquet(str(scratch / "parquet"))
    assert parquet().count() == rows, "not all of it was read"
    times: dict[str, list[float]] = {name: [], "parquet": []}
    for _ in range(runs):
        for reader, made in ((name, frame), ("parquet", parquet)):
            times[reader].append(timed(lambda made=made: made().write.format("noop").mode("overwrite").save()))
    best = {reader: min(found) for reader, found in times.items()}
    return {
        "rows": rows,
        f"{name}_per_second": round(rows / best[name]),
        "parquet_per_second": round(rows / best["parquet"]),
        "ratio": round(best["parquet"] / best[name], 2),
        "ratio_of_each_run": [round(p / n, 2) for n, p in zip(times[name], times["parquet"], strict=True)],
    }
