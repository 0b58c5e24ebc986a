"""Checkpoints and dropped segments in the simulator: a few seeds; campaigns have the others, and the planted bugs."""

from __future__ import annotations

from tests.simulation.seed_search import run_until_counted

SEEDS = ((1, "safety"), (2, "safety"), (12, "safety"), (18, "safety"), (14, "liveness"), (16, "liveness"))


def test_retention_workload_passes_for_its_seeds():
    wanted = {"checkpoints written": 50, "segments dropped": 20, "checkpoints adopted": 1}
    run_until_counted("retention", SEEDS, wanted)


def test_disks_replaced_one_after_the_other_lose_no_message():
    run_until_counted("disks", [(21, "liveness")], {"logs restocked": 1}, modes=["liveness"])
