"""A log that does not hold is not made smaller; what becomes of one that is made so, `test_pipeline_compress` shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaplain import Client
from chaplain.pipeline.verification.compress import Broken, compress
from tests.integration.journal.support.catch_up import log_of
from tests.integration.journal.support.scenes import three, wait_until_same
from tests.support.process_cluster import shell

SMALL = "[journal]\nsegment_bytes = 65536\n"
STREAM = "bulk"
VALUE = bytes(4000)
ROWS = 60


def test_compress_of_a_damaged_log_drops_nothing(tmp_path: Path) -> None:
    with three(tmp_path / "three", SMALL) as cluster:
        with Client.connect(cluster.directory, timeout=60) as client:
            for _ in range(ROWS):
                client.journal(STREAM).write(VALUE)
        wait_until_same(cluster)
        for node in cluster:
            first = min((node.folder / "segments").glob("journal-*.segment"))
            with first.open("r+b") as file:
                file.seek(30_000)
                file.write(b"not what was written")
        with pytest.raises(Broken, match="nothing is dropped") as broken:
            compress(None, cluster=str(cluster.directory), stream=STREAM)
        assert broken.value.breaks
        shell("compress", "--stream", STREAM, "--cluster", cluster.directory, code=3)
        assert all(log_of(node)["first"] == 1 and not log_of(node)["checkpoint"] for node in cluster)


def test_compress_without_spark_verifies_the_log_and_drops_its_beginning(tmp_path: Path) -> None:
    with three(tmp_path / "three", SMALL) as cluster:
        with Client.connect(cluster.directory, timeout=60) as client:
            for _ in range(ROWS):
                client.journal(STREAM).write(VALUE)
        wait_until_same(cluster)
        shown = shell("compress", "--stream", STREAM, "--cluster", cluster.directory, "--output", "json")
        freed = json.loads(shown)
        assert [one["node"] for one in freed] == [1, 2, 3]
        assert all(one["segments"] > 0 and one["first"] > 1 and one["done"] for one in freed)
        with Client.connect(cluster.directory, timeout=60) as client:
            left = [message.offset for message in client.journal(STREAM).read()]
            assert left == [*range(left[0], ROWS)]
            assert left[0] > 0
