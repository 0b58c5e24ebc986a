"""Checkpoints and dropped segments in the simulator: a few seeds; campaigns have the others, and the planted bugs."""

from __future__ import annotations

from simulator.runner import run_seed, total

SEEDS = ((1, "safety"), (2, "safety"), (12, "safety"), (18, "safety"), (14, "liveness"), (16, "liveness"))


def test_seeds():
    outcomes = [run_seed("retention", seed, mode) for seed, mode in SEEDS]
    assert not [outcome.reason for outcome in outcomes if not outcome.ok]
    counts = total(outcomes)
    assert counts["checkpoints written"] > 50
    assert counts["segments dropped"] > 20
    assert counts["checkpoints adopted"] > 0


def test_disks_that_are_replaced_one_after_the_other():
    outcome = run_seed("disks", 21, "liveness")
    assert outcome.ok, outcome.reason
    assert outcome.counts["logs restocked"] > 0
