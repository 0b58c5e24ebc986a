"""Campaigns on real sequences: the scenes of `tests/integration/sequence`, longer."""

from __future__ import annotations

from pathlib import Path

from campaigns.campaign import Campaign, Report
from campaigns.clusters import scene
from tests.integration.sequence.sequence_scenes import batter, first_node_forgets_everybody, five

ROUNDS = 4
KILLS = 5


def kills() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with five(directory / "five") as cluster:
            counts, gaps = batter(cluster, KILLS)
            first_node_forgets_everybody(cluster)
        return Report({"kills of the holder": KILLS, **counts}, times_s={"kill to next acknowledged publish": gaps})

    about = f"{ROUNDS} times 5 nodes, 3 contending publishers: {KILLS} kills of the holder, node 1 with an empty list"
    return scene("sequence-kills", about, [str(number) for number in range(ROUNDS)], play)


ON_REAL_SEQUENCES = [kills()]
