"""Conditional writes in the simulator: a few seeds, and a few of the bugs that the workload must catch."""

from __future__ import annotations

import dataclasses

import pytest

from simulator import mutate
from tests.simulation.seed_search import run_until_counted

BUGS = {bug.name: bug for bug in mutate.bugs("conditions")}
QUICK = (
    "let a copy of a refused write be decided again",
    "write over a message at the expected version's successor",
    "accept every token after the first",
    "send a refusal as the continuation of a receipt",
)


def test_conditions_workload_passes_for_its_seeds() -> None:
    wanted = {"decided conflict": 10, "decided outside_window": 1, "decided stale_token": 5, "decided applied": 20}
    run_until_counted("conditions", ((0, "safety"), (1, "safety")), wanted)


@pytest.mark.parametrize("name", QUICK)
def test_planted_bug_of_conditions_is_caught(name: str) -> None:
    verdict = mutate.judge("conditions", dataclasses.replace(BUGS[name], seeds=10))
    assert verdict.ok, verdict.detail
