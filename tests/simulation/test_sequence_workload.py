"""The sequence in the made-up world: a few seeds of each mode, and bugs planted on purpose."""

from __future__ import annotations

import pytest

from simulator.mutate import judge
from simulator.mutations.sequence import BUGS
from simulator.runner import run_seed
from tests.simulation.seed_search import run_until_counted


@pytest.mark.parametrize("mode", ["safety", "liveness"])
@pytest.mark.parametrize("seed", [2, 5, 10])
def test_sequence_workload_passes_for_a_seed(mode: str, seed: int) -> None:
    outcome = run_seed("sequence", seed, mode)
    assert outcome.ok, f"{outcome.reason}: {outcome.replay()}"


def test_working_members_hold_the_whole_window() -> None:
    """These failed while a joining node began at the present number (decisions/sequence-members)."""
    runs = [(3, "safety"), (4, "safety"), (0, "liveness")]
    run_until_counted("sequence", runs, {"rolling restart": 2})


@pytest.mark.parametrize(("mode", "seed"), [("safety", 141), ("liveness", 287)])
def test_member_replaced_in_the_step_of_an_acknowledgement_is_no_violation(mode: str, seed: int) -> None:
    """The checker asked the newcomer, too, who was not in the work set that decided."""
    outcome = run_seed("sequence", seed, mode)
    assert outcome.ok, f"{outcome.reason}: {outcome.replay()}"


def test_event_replaced_at_its_node_has_one_number() -> None:
    outcome = run_seed("sequence", 368, "safety")
    assert outcome.ok, f"{outcome.reason}: {outcome.replay()}"


def test_half_of_a_grown_work_set_gives_no_number_twice() -> None:
    """These gave a number twice while the lock was taken from the old work set alone (decisions/sequence-order)."""
    run_until_counted("workset", [(100, "safety"), (309, "safety")], {"growth forgotten": 2}, modes=["safety"])


def test_planted_sequence_bugs_have_unique_names() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 15


def test_removal_of_silent_members_without_agreement_forks() -> None:
    [bug] = [bug for bug in BUGS if bug.name == "remove the silent node without agreement"]
    verdict = judge("sequence", bug)
    assert verdict.ok, verdict.detail
    assert "fork" in verdict.detail
