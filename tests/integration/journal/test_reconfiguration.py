"""A cluster of processes changes its own nodes while others write: nothing is lost, and nobody waits for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.journal.support.config_scenes import replace_one
from tests.integration.journal.support.scenes import ACKED_AFTER, three
from tests.support.process_cluster import promised

pytestmark = pytest.mark.timeout(300)


def test_serializer_is_replaced_under_load_by_a_new_node(tmp_path: Path) -> None:
    with three(tmp_path / "three") as cluster:
        counts, stages, longest_s = replace_one(cluster)
    assert counts["acknowledged"] >= 4 * ACKED_AFTER, "the scene waits for so many after each change"
    assert counts["refused"] == 0
    for stage in ("executor node 4: live", "set 4, 1, 2: confirm", "ingest node 3: drop", "executor node 3: implement"):
        assert any(said.endswith(stage) for said in stages), stages
    assert longest_s < promised(1.0)
