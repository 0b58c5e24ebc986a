"""Strangers with and without a password against real nodes that an honest pair of clients uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cluster.attack_scenes import ATTACKS, strangers_change_nothing
from tests.support.process_cluster import running

pytestmark = pytest.mark.timeout(240)


def test_unauthenticated_connections_change_nothing_and_are_counted(tmp_path: Path) -> None:
    with running(tmp_path / "two", 2) as cluster:
        print(strangers_change_nothing(cluster, list(ATTACKS)))
        for node in cluster:
            node.check()
