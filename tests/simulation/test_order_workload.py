"""Whole clusters in the made-up world: a few seeds of each mode, and bugs planted on purpose."""

from __future__ import annotations

import pytest

from simulator.runner import run_seed

SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["safety", "liveness"])
def test_order_workload_passes_for_a_seed(mode: str, seed: int) -> None:
    outcome = run_seed("order", seed, mode)
    assert outcome.ok, f"{outcome.reason}: {outcome.replay()}"


@pytest.mark.parametrize("seed", [20, 247, 292])
def test_order_workload_passes_for_formerly_failing_liveness_seeds(seed: int) -> None:
    """A queue of slow syncs, a wake-up that never came, and a hole that only an unsure neighbour could fill."""
    outcome = run_seed("order", seed, "liveness")
    assert outcome.ok, f"{outcome.reason}: {outcome.replay()}"


def test_order_workload_agrees_on_messages_and_changes_masters() -> None:
    for seed in range(30):
        outcome = run_seed("order", seed, "safety")
        assert outcome.ok, f"{outcome.reason}: {outcome.replay()}"
        if outcome.counts["agreed"] > 25 and outcome.counts["regimes"] > 1:
            return
    pytest.fail("no run agrees on more than 25 messages under several masters")


@pytest.mark.parametrize("bug", ["acknowledge before sync", "mark before agreement", "count half as a quorum"])
def test_planted_bugs_of_the_order_layer_are_caught(bug: str) -> None:
    """The quick ones; `python -m simulator --planted --layer order` plants them all."""
    from simulator import mutate

    verdict = mutate.judge("order", mutate.find(f"order/{bug}"))
    assert verdict.ok, verdict.detail
