"""A node's graph as a table: its log is what the node itself works from."""

from __future__ import annotations

import random
from pathlib import Path

from pyspark.sql import SparkSession

from chaplain.core import Drained, Persist, Persisted, Requested
from chaplain.graph.core import GraphCore
from chaplain.graph.messages import client
from chaplain.graph.messages.client import Append
from chaplain.graph.messages.event import decode
from chaplain.graph.settings import GraphSettings
from chaplain.link.auth.identity import Identity
from chaplain.pipeline import register
from chaplain.runtime.disk.operations import DataFiles
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.segment.tap import StreamKind


def test_graph_events_are_read_as_rows_and_reassembled(spark: SparkSession, tmp_path: Path) -> None:
    files = DataFiles(DataDirectory(str(tmp_path / "node-1")))
    settings = GraphSettings("demo", folder="segments/", segment_bytes=1 << 20)
    core = GraphCore(settings, Identity(bytes(32)), random.Random(1), now_ns=10**18)
    for number in range(20):
        body = client.encode(Append("notes" if number % 4 else "other"))
        core.step(10**18 + number, Requested(number, "ann", body, b"value %d" % number))
        for effect in core.step(10**18 + number, Drained()):
            if isinstance(effect, Persist):
                for operation in effect.operations:
                    files.perform(operation)
                core.step(10**18 + number, Persisted(effect.ticket))
    files.close()
    register(spark)
    options = {"path": str(tmp_path / "node-1" / "segments"), "subscribe": "notes", "kind": "graph"}
    rows = spark.read.format("chaplain").options(**options, includeHeaders="true").load().orderBy("offset").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == list(
        enumerate(b"value %d" % number for number in range(20) if number % 4)
    )
    for row in rows:
        (header,) = row.headers
        assert (header.key, row.kind) == ("event", StreamKind.GRAPH)
        event = decode(bytes(header.value) + bytes(row.value))
        assert event.id == bytes(row.key)
        assert event.writer == "ann"
