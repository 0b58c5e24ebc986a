"""Index-only serializers in the simulator: a few seeds, and a few of the bugs that the workload must catch."""

from __future__ import annotations

import dataclasses

import pytest

from simulator import mutate
from tests.simulation.seed_search import run_until_counted

BUGS = {bug.name: bug for bug in mutate.bugs("indexonly")}
QUICK = (
    "order before the copies are there",
    "count a copy that is not synced",
    "count the same node twice",
    "be content with fewer copies",
)


def test_index_only_workload_passes_for_its_seeds():
    runs = ((0, "safety"), (3, "safety"), (128, "liveness"))
    run_until_counted("indexonly", runs, {"rows": 100})


@pytest.mark.parametrize("name", QUICK)
def test_planted_bug_of_the_index_only_layer_is_caught(name):
    verdict = mutate.judge("indexonly", dataclasses.replace(BUGS[name], seeds=20))
    assert verdict.ok, verdict.detail
