"""Named consumers in the simulator: a few seeds, and a few of the bugs that the workload must catch."""

from __future__ import annotations

import dataclasses

import pytest

from simulator import mutate
from tests.simulation.seed_search import run_until_counted

BUGS = {bug.name: bug for bug in mutate.bugs("consumers")}
QUICK = (
    "let an acknowledgement cover slots that its worker does not know",
    "remove a worker at the second challenge",
    "finish the messages of another worker",
    "acknowledge what the application still has",
)


def test_consumers_workload_passes_for_its_seeds() -> None:
    runs = ((0, "safety"), (1, "liveness"), (2, "liveness"), (3, "liveness"))
    wanted = {"advanced single": 1, "advanced keyed": 1, "advanced queue": 1, "worker stopped": 1, "worker removed": 1}
    run_until_counted("consumers", runs, wanted)


@pytest.mark.parametrize("name", QUICK)
def test_planted_bug_of_the_consumers_is_caught(name: str) -> None:
    verdict = mutate.judge("consumers", dataclasses.replace(BUGS[name], seeds=20))
    assert verdict.ok, verdict.detail
