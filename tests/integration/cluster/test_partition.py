"""Five machines of network namespaces: a partition that heals, and a cut in one direction only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.cluster.membership_scenes import one_dies
from tests.integration.cluster.partition_scenes import halves_meet_again, one_way_cut
from tests.support import network_namespaces as namespaces
from tests.support.process_cluster import shell

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.root,
    pytest.mark.skipif(bool(namespaces.missing()), reason=namespaces.missing()),
]

SILENCE_S = 3.0
SETTINGS = f"[gossip]\nsilence_seconds = {SILENCE_S}\n"


def test_partition_heals_and_a_one_way_cut_evicts_no_node(tmp_path: Path) -> None:
    with namespaces.wired(tmp_path / "five", 5, SETTINGS) as (cluster, wires):
        suspected = one_way_cut(cluster, wires, 4, 2, seconds=3 * SILENCE_S + 1)
        healed_s = halves_meet_again(cluster, wires, ((1, 2), (3, 4, 5)), silence_s=SILENCE_S, seconds=12)
        # Without the one address that everybody was given: now the halves have to look for each other.
        one_dies(cluster, 1, silence_s=SILENCE_S)
        alone_s = halves_meet_again(cluster, wires, ((2, 3), (4, 5)), silence_s=SILENCE_S, seconds=6)
        listed = shell(
            *("member", "list", "--cluster", cluster.directory, "--node", "5", "--output", "json"),
            prefix=wires.prefix(2),
        )
        assert [member["state"] for member in json.loads(listed)] == ["left", *["alive"] * 4]
        for node in cluster:
            node.check()
    print(f"suspicions {suspected}, one view again after {healed_s:.2f} s and {alone_s:.2f} s")
