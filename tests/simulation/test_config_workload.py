"""Serializer sets that change in the made-up world: a few seeds, and a few of the bugs that the workload must catch."""

from __future__ import annotations

import dataclasses

import pytest

from simulator import mutate
from tests.simulation.seed_search import run_until_counted

BUGS = {bug.name: bug for bug in mutate.bugs("config")}
QUICK = ("the old set counts alone until confirm", "confirm without implement", "the same set is implemented")


def test_config_workload_passes_for_its_seeds():
    runs = [(seed, "safety") for seed in (6, 7, 11, 13, 20, 21)] + [(1, "liveness"), (19, "liveness")]
    stages = ("refuse", "implement", "confirm", "catchup", "live", "block", "drop")
    run_until_counted("config", runs, {f"stage {stage}": 1 for stage in stages})


@pytest.mark.parametrize("name", QUICK)
def test_planted_bug_of_the_config_layer_is_caught(name):
    verdict = mutate.judge("config", dataclasses.replace(BUGS[name], seeds=20))
    assert verdict.ok, verdict.detail
