"""Nodes that greet under all faults, and the list of bugs planted in them."""

import pytest

from simulator import mutate
from simulator.faults.plan import DISK
from simulator.runner import MODES, run_seeds, total
from simulator.workloads.greet import Greet

PLANTED = [(layer, bug) for layer in mutate.layers() for bug in mutate.bugs(layer)]


def test_greet_workload_passes_and_injects_every_fault():
    outcomes = list(run_seeds("greet", range(25), MODES))
    assert [(outcome.checker, outcome.reason, outcome.replay()) for outcome in outcomes if not outcome.ok] == []
    counts = total(outcomes)
    assert not set(DISK) & set(Greet.kinds)
    assert [kind for kind in Greet.kinds if kind != "crash point" and not counts[kind]] == []


@pytest.mark.planted_texts
@pytest.mark.parametrize(("layer", "bug"), PLANTED, ids=[f"{layer}/{bug.name}" for layer, bug in PLANTED])
def test_planted_bug_still_fits_the_code(layer, bug):
    """No other folder of tests looks at the texts: a mutation of one of them must be caught by what it does."""
    mutate.mutated(bug)


def test_bugs_of_a_layer_have_different_names():
    names = [(layer, bug.name) for layer, bug in PLANTED]
    assert len({*names}) == len(names)


@pytest.mark.parametrize(
    "path",
    [
        "link/skip the replay check",
        "steps/take a first broadcast of an unknown author",
        "executor/ask too few",
    ],
)
def test_planted_bug_is_caught(path):
    """By seeds, and by tests; the campaign `planted` runs all bugs."""
    verdict = mutate.judge(path.partition("/")[0], mutate.find(path))
    assert verdict.ok, verdict.detail
