"""A log that does not hold is not made smaller; what becomes of one that is made so, `test_pipeline_compress` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaplain import Client
from chaplain.pipeline.verification.compress import Broken, compress
from tests.integration.journal.support.catch_up import log_of
from tests.integration.journal.support.scenes import three, wait_until_same

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
        assert all(log_of(node)["first"] == 1 and not log_of(node)["checkpoint"] for node in cluster)
