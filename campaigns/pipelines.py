"""Campaigns on the pipeline: planted damage that verification must find, and landing while processes are killed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from campaigns.campaign import Campaign, Report
from campaigns.clusters import scene
from tests.integration.journal.support.scenes import three
from tests.spark.support.damage import CASES
from tests.spark.support.landing import land_through_kills, measure_lag
from tests.spark.support.scene import Scene

CUTS = (1, 2, 7, 1000)
LAG_ROWS = 300


def damage(seeds: int) -> Campaign:
    """Check every case of damage with every seed and several splits into tasks, and as many intact logs."""
    per_piece = 5

    def pieces(quick: bool) -> list[str]:
        return [f"{first}:{first + per_piece}" for first in range(0, per_piece if quick else seeds, per_piece)]

    def run(piece: str) -> Report:
        first, last = map(int, piece.split(":"))
        findings: list[str] = []
        done = {"planted": 0, "named exactly": 0, "whole": 0, "whole and named so": 0}
        for seed in range(first, last):
            for case in [*CASES, None]:
                with tempfile.TemporaryDirectory(prefix="chaplain-prove-") as directory:
                    place = Scene(Path(directory), seed)
                    expected = sorted(case(place)) if case else []
                    if case is None:
                        place.write()
                        place.jot()
                    found = [[(one.stream, one.offset, one.kind) for one in place.breaks(tasks)] for tasks in CUTS]
                right = all(one == expected for one in found)
                names = ("planted", "named exactly") if case else ("whole", "whole and named so")
                done[names[0]] += 1
                done[names[1]] += right
                if not right:
                    name = case.__name__ if case else "whole"
                    findings.append(f"{name} seed {seed}: expected {expected}, found {found}")
        return Report(done, findings)

    about = f"{len(CASES)} kinds of planted damage with {seeds} seeds, each named exactly, and {seeds} whole logs"
    return Campaign("pipeline-damage", about, pieces, run)


def land_kills(rounds: int) -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        if piece == "lag":
            return _lag(directory)
        with three(directory / "three") as cluster:
            counts = land_through_kills(cluster, directory / "tables", 5, seed=int(piece), spark=True)
        with three(directory / "light") as cluster:
            light = land_through_kills(cluster, directory / "light tables", 20, seed=int(piece), spark=False)
        without = {f"without Spark: {name}": count for name, count in light.items()}
        return Report({**counts, **without, "rows that differ": 0})

    about = f"{rounds} times 5 kills of the Spark driver, 20 of one without Spark, and how soon rows land"
    return scene("land-kills", about, [*map(str, range(rounds)), "lag"], play)


def _lag(directory: Path) -> Report:
    from chaplain.pipeline import local_session

    spark = local_session("local[2]")
    try:
        with three(directory / "three") as cluster:
            times_s = measure_lag(spark, cluster, directory / "tables", LAG_ROWS)
    finally:
        spark.stop()
    ranked = sorted(times_s)
    findings = [] if ranked[len(ranked) // 2] <= 1.0 else [f"p50 of {ranked[len(ranked) // 2]:.2f} s is over 1 s"]
    return Report({"rows timed": len(times_s)}, findings, {"acknowledgement to row in the table": times_s})


OF_PIPELINES = [damage(seeds=50), land_kills(rounds=4)]
