"""Repeats the drill: every kind of stream under faults, with other faults in each repetition."""

from __future__ import annotations

import random
from pathlib import Path

from campaigns.campaign import Campaign, Report
from campaigns.clusters import scene
from chaplain.drill.drill import Drill
from chaplain.runtime.cluster import local
from tests.support.process_cluster import found

SECONDS = 60.0
PIECES = [*(f"3 nodes, seed {seed}" for seed in range(1, 7)), *(f"5 nodes, seed {seed}" for seed in range(7, 9))]


def drills() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        count, _, _, seed = piece.split()
        with found(directory / "cluster", int(count)):
            local.bring_up(directory / "cluster", lambda _: None)
            try:
                verdict = Drill(directory / "cluster", SECONDS, random.Random(int(seed)), lambda _: None).run()
            finally:
                local.bring_down(directory / "cluster")
        done = {f"blow: {deed}": times for deed, times in verdict.blows.items()}
        for judged in verdict.kinds:
            done[f"{judged.of}: acknowledged"] = judged.acknowledged
            done[f"{judged.of}: of unknown fate"] = judged.unknown
            done[f"{judged.of}: breaks"] = sum(one.of == judged.of for one in verdict.breaks)
        done["pool: not heard by somebody"] = sum(judged.lost for judged in verdict.kinds)
        done["pool: lost in calm and untold"] = sum(judged.untold for judged in verdict.kinds)
        findings = [f"{piece}: {one.of} {one.kind} {one.offset}: {one.detail}" for one in verdict.breaks[:20]]
        return Report(done, findings, {"blow to next acknowledgement, slowest kind": list(verdict.gaps_s)})

    about = f"{len(PIECES)} drills of {SECONDS:g} s: journal, graph, sequence and pool under kills, pauses and cuts"
    return scene("drill", about, PIECES, play)


DRILLS = [drills()]
