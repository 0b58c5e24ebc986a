"""Workloads of the journal's parts: a few seeds each, and a few of the bugs that they must catch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest

from simulator import mutate
from tests.simulation.seed_search import run_until_counted

_STAGES = ("refuse", "implement", "confirm", "catchup", "live", "block", "drop")
RUNS: list[tuple[str, Sequence[tuple[int, str]], Mapping[str, int]]] = [
    (
        "config",
        [*[(seed, "safety") for seed in (6, 7, 11, 13, 20, 21)], (1, "liveness"), (19, "liveness")],
        {f"stage {stage}": 1 for stage in _STAGES},
    ),
    ("indexonly", [(0, "safety"), (3, "safety"), (128, "liveness")], {"rows": 100}),
    (
        "consumers",
        [(0, "safety"), (1, "liveness"), (2, "liveness"), (3, "liveness")],
        {"advanced single": 1, "advanced keyed": 1, "advanced queue": 1, "worker stopped": 1, "worker removed": 1},
    ),
    (
        "conditions",
        [(0, "safety"), (1, "safety")],
        {"decided conflict": 10, "decided outside_window": 1, "decided stale_token": 5, "decided applied": 20},
    ),
]
QUICK_BUGS = [
    ("config", "the old set counts alone until confirm"),
    ("config", "confirm without implement"),
    ("config", "the same set is implemented"),
    ("indexonly", "order before the copies are there"),
    ("indexonly", "count a copy that is not synced"),
    ("indexonly", "count the same node twice"),
    ("indexonly", "be content with fewer copies"),
    ("consumers", "let an acknowledgement cover slots that its worker does not know"),
    ("consumers", "remove a worker at the second challenge"),
    ("consumers", "finish the messages of another worker"),
    ("consumers", "acknowledge what the application still has"),
    ("conditions", "let a copy of a refused write be decided again"),
    ("conditions", "write over a message at the expected version's successor"),
    ("conditions", "accept every token after the first"),
    ("conditions", "send a refusal as the continuation of a receipt"),
]


@pytest.mark.parametrize(("workload", "runs", "wanted"), RUNS, ids=[workload for workload, _, _ in RUNS])
def test_workload_passes_for_its_seeds(
    workload: str, runs: Sequence[tuple[int, str]], wanted: Mapping[str, int]
) -> None:
    run_until_counted(workload, runs, wanted)


@pytest.mark.parametrize(("layer", "name"), QUICK_BUGS)
def test_planted_bug_is_caught(layer: str, name: str) -> None:
    [bug] = [bug for bug in mutate.bugs(layer) if bug.name == name]
    verdict = mutate.judge(layer, dataclasses.replace(bug, seeds=20))
    assert verdict.ok, verdict.detail
