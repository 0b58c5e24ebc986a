"""A holder of the cluster's key who lies to real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cluster.rogue_scenes import impostor_is_refused, liar_evicts_nobody, twin_takes_nothing_over
from tests.support.process_cluster import running

pytestmark = pytest.mark.timeout(240)

SILENCE_S = 3.0


SETTINGS = f"[gossip]\nsilence_seconds = {SILENCE_S}\n"


def test_node_with_a_stolen_cluster_key_cannot_impersonate_another(tmp_path: Path) -> None:
    with running(tmp_path / "three", 3, settings=SETTINGS) as cluster:
        assert impostor_is_refused(cluster, 2, seconds=1) >= 2
        twin_takes_nothing_over(cluster, 3, seconds=2.2 * SILENCE_S)


def test_node_with_a_stolen_cluster_key_cannot_evict_another(tmp_path: Path) -> None:
    with running(tmp_path / "three", 3, settings=SETTINGS) as cluster:
        print(liar_evicts_nobody(cluster, seconds=3 * SILENCE_S))
