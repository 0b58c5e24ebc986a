"""What a Spark driver does to the journal, without Spark: `sink_writer CLUSTER PROGRESS BATCHES`.

Batch by batch, two tasks stage rows in an order of their own, and one request commits them. How far it got is noted
after the commit, as Spark does it: whoever is killed in between does the batch again.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pyarrow as pa

from chaplain.pipeline.sink.sink import commit_all, parse_sink, stage

ROWS = 400


def rows_of(version: int) -> list[bytes]:
    return [b"%d/%d" % (version, number) for number in range(ROWS)]


def main(cluster: str, progress: str, batches: str) -> None:
    options = parse_sink({"cluster": cluster, "topic": "batches"}, streaming=False)
    noted = Path(progress)
    for version in range(int(noted.read_text()) if noted.exists() else 0, int(batches)):
        rows = rows_of(version)
        random.shuffle(rows)
        parts = [rows[: ROWS // 2], rows[ROWS // 2 :]]
        staged = [stage(options, iter([pa.RecordBatch.from_pydict({"value": part})])) for part in parts]
        commit_all(options, [*staged], "writer", version)
        noted.with_suffix(".new").write_text(str(version + 1))
        noted.with_suffix(".new").rename(noted)


if __name__ == "__main__":
    main(*sys.argv[1:])
