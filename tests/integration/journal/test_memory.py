"""Who is stuck costs a node little: a slice of campaign `journal-memory`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.journal.support.memory import STUCK_KIB_MAX, pour, stuck_follower, stuck_reader
from tests.integration.journal.support.scenes import find_master, three, wait_until_same

pytestmark = pytest.mark.timeout(300)
WARM_MIB, MIB = 36, 80


def test_stuck_follower_and_reader_cost_little_memory(tmp_path: Path) -> None:
    with three(tmp_path / "three") as cluster:
        pour(cluster, WARM_MIB, find_master(cluster))  # what a node keeps for those a little behind is full now
        wait_until_same(cluster)
        assert stuck_follower(cluster, MIB) <= STUCK_KIB_MAX
        assert stuck_reader(cluster, MIB) <= STUCK_KIB_MAX
