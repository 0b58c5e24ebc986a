"""The graph in the simulator: a few seeds, and a few of the bugs that the workload must catch."""

from __future__ import annotations

import dataclasses

import pytest

from chaplain.sim import planted
from chaplain.sim.runner import run_seed, total

BUGS = {bug.name: bug for bug in planted.bugs("graph")}
QUICK = ("order by arrival within a height", "forget what was read")


def test_seeds():
    outcomes = [run_seed("graph", seed, mode) for seed, mode in ((110, "safety"), (150, "liveness"), (109, "liveness"))]
    assert not [outcome.reason for outcome in outcomes if not outcome.ok]
    assert total(outcomes)["events"] > 50


def test_there_are_enough_bugs():
    assert len(BUGS) >= 15


@pytest.mark.parametrize("name", sorted(BUGS))
def test_bugs_can_still_be_planted(name):
    planted.mutated(BUGS[name])


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name):
    verdict = planted.judge("graph", dataclasses.replace(BUGS[name], seeds=2))
    assert verdict.ok, verdict.detail
