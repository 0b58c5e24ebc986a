"""What nodes recorded of pools and events, as tables beside the journal's."""

from __future__ import annotations

import random
from pathlib import Path

from pyspark.sql import SparkSession

from chaplain.pipeline import register
from chaplain.runtime.disk.operations import DataFiles
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.segment.settings import LogSettings
from chaplain.segment.tap import StreamKind, Tap
from tests.spark.support.stage import journal, put


def test_each_recorded_kind_is_read_from_its_own_log(spark: SparkSession, tmp_path: Path) -> None:
    folder = put(tmp_path / "node-1" / "segments", journal())
    files = DataFiles(DataDirectory(tmp_path / "node-1"))
    tap = Tap(LogSettings("pool", StreamKind.POOL, folder="segments/"), random.Random(1))
    for operation in tap.write(StreamKind.POOL, "orders", [b"a", b"b"], 10**18, keys=[b"ann", b"bob"], writer=7):
        files.perform(operation)
    files.close()
    register(spark)
    options = {"path": str(folder), "subscribe": "orders"}
    rows = spark.read.format("chaplain").options(**options, kind="pool").load().collect()
    assert [(row.offset, bytes(row.value), bytes(row.key), row.kind, row.client_id) for row in rows] == [
        (0, b"a", b"ann", StreamKind.POOL, 7),
        (1, b"b", b"bob", StreamKind.POOL, 7),
    ]
    assert spark.read.format("chaplain").options(**options).load().count() == 900
