"""The campaign on conditional writes: competing clients whose histories must be linearizable while nodes are killed."""

from __future__ import annotations

import time
from pathlib import Path

from campaigns.campaign import Campaign, Report
from campaigns.clusters import scene
from tests.integration.client.condition_scenes import Competition, check, compete
from tests.support.process_cluster import running

PIECES = 10
COMPETITION = Competition(operations=10_000, per_stream=250, clients=8)
KILL_S = 3.0


def competing() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with running(directory / "three", 3) as cluster:
            began_s = time.monotonic()
            records = compete(cluster, COMPETITION, int(piece), kill_s=KILL_S)
            took_s = time.monotonic() - began_s
            counts = check(cluster.directory, records)
        return Report({**counts, "streams that are not linearizable": 0}, times_s={"all operations": [took_s]})

    about = (
        f"{PIECES * COMPETITION.operations:,} conditional writes of {COMPETITION.clients} clients to registers and"
        f" banks of {COMPETITION.per_stream} operations; a node is killed or stopped about every {KILL_S:g} s"
    )
    return scene("conditions-linearizable", about, [str(number) for number in range(1, PIECES + 1)], play)


ON_CONDITIONS = [competing()]
