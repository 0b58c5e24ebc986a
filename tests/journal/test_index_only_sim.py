"""Index-only serializers in the simulator: a few seeds, and a few of the bugs that the workload must catch."""

from __future__ import annotations

import dataclasses

import pytest
from simulator import mutate
from simulator.runner import run_seed, total

BUGS = {bug.name: bug for bug in mutate.bugs("indexonly")}
QUICK = (
    "order before the copies are there",
    "count a copy that is not synced",
    "count the same node twice",
    "be content with fewer copies",
)


def test_seeds():
    runs = ((0, "safety"), (3, "safety"), (128, "liveness"))
    outcomes = [run_seed("indexonly", seed, mode) for seed, mode in runs]
    assert not [outcome.reason for outcome in outcomes if not outcome.ok]
    assert total(outcomes)["rows"] > 100


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name):
    verdict = mutate.judge("indexonly", dataclasses.replace(BUGS[name], seeds=20))
    assert verdict.ok, verdict.detail
