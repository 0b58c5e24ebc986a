"""Campaigns on real journals: the scenes of `tests/journal_real`, longer."""

from __future__ import annotations

from pathlib import Path

from tests.journal_real.scenes import batter, three
from tests.prove.campaign import Campaign, Report
from tests.prove.clusters import scene

ROUNDS = 5


def kills() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with three(directory / "three") as cluster:
            counts, gaps = batter(cluster, masters=4, anyone=4, everybody=1, pauses=1, seed=int(piece))
        blows = {"kills of the master": 4, "kills of anyone": 4, "kills of all": 1, "pauses of the master": 1}
        return Report({**blows, **counts, "lost or doubled": 0}, times_s={"blow to next acknowledged write": gaps})

    about = f"{ROUNDS} times under load: 4 kills of the master, 4 of anyone, 1 of all, 1 pause of the master for 5 s"
    return scene("journal-kills", about, [str(number) for number in range(ROUNDS)], play)


ON_REAL_JOURNALS = [kills()]
