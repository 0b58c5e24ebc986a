"""Five real nodes that know one address: joining, kill -9, restart, standing still."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cluster import membership_scenes as scenes
from tests.support.process_cluster import founded, promised

pytestmark = pytest.mark.timeout(240)


def test_five_nodes_that_know_one_address_survive_a_death_a_return_and_a_pause(tmp_path: Path) -> None:
    with founded(tmp_path / "five", 5, one_door=True) as cluster:
        cluster.start()
        cluster.wait_until_whole()
        met_s = scenes.all_meet(cluster)
        assert met_s <= promised(scenes.MEET_S)
        assert cluster.ever_left() == []
        # Node 1 is the address: it comes back knowing nobody, and is found by the others.
        lost_s = scenes.one_dies(cluster, 1)
        back_s = scenes.it_comes_back(cluster, 1)
        trusted_s = scenes.one_stands_still(cluster, 5)
        assert cluster.ever_left(but=[1]) == []
        for node in cluster:
            node.check()
    print(f"met {met_s:.2f} s, left {max(lost_s):.2f} s, back {max(back_s):.2f} s, trusted again {trusted_s:.2f} s")
