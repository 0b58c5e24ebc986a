"""The journal in the simulator: 48 runs, and a few of the planted bugs that the workload must catch.

The campaign `sim-requests` of `make prove` runs 2,000 seeds in both modes; the suite only has to notice gross mistakes.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import count

import pytest

from chaplain.units import SECOND_NS
from simulator import mutate, runner
from simulator.faults.plan import Plan
from simulator.runner import MODES, run_seed
from simulator.trace import Trace
from simulator.workloads import load
from tests.simulation.seed_search import run_until_counted

BUGS = {bug.name: bug for bug in mutate.bugs("journal")}
QUICK = ("execute a gap", "a duplicate takes an offset", "reuse a reference", "forget lanes in a snapshot")
CHOSEN = ((12, "safety"), (4, "safety"), (6, "liveness"), (23, "liveness"), (2, "liveness"))
"""Everything that can be decided is decided in them today."""
DECIDED = ("applied", "duplicate", "old", "gap", "fenced", "signature", "broken", "no_right", "compromised")
STAGED = ("staged", "committed", "not_staged")
RUNS_OF_A_MODE = 24
PATIENT = 3
"""Of each mode: runs that go on to their end though all is well. Of all runs it is every eighth."""
CHAOS_NS = 12 * SECOND_NS
"""Faults come for no longer than that; as many as in longer runs, so they come closer together."""
PIECES = 4


def _drawn(seed: int, mode: str) -> tuple[Plan, bool]:
    """What a run will be dealt, and whether it goes on to its end."""
    workload, world = runner._build("requests", f"requests/{mode}/{seed}", Trace(None))
    return runner.plan_of(workload, world, mode), world.rng("patience").random() < runner._PATIENT


@cache
def _plans() -> dict[tuple[int, str], Plan]:
    """The chosen runs and the first short ones of each mode; `sim-requests` of `make prove` has 2,000 seeds whole."""
    plans = {run: _drawn(*run)[0] for run in CHOSEN}
    for mode in MODES:
        left = RUNS_OF_A_MODE - sum(of == mode for _, of in CHOSEN)
        patient_left = PATIENT
        for seed in count():
            plan, patient = _drawn(seed, mode)
            if (seed, mode) not in plans and plan.heal_ns <= CHAOS_NS and (patient_left or not patient):
                plans[seed, mode] = plan
                patient_left -= patient
                left -= 1
            if not left:
                break
    return plans


@pytest.mark.parametrize("piece", range(PIECES))
@pytest.mark.timeout(600)
def test_requests_workload_passes_for_its_seeds(piece: int) -> None:
    others = [run for run in _plans() if run not in CHOSEN]
    outcomes = [run_seed("requests", seed, mode) for seed, mode in others[piece::PIECES]]
    assert not [f"{outcome.reason}: {outcome.replay()}" for outcome in outcomes if not outcome.ok]


def test_requests_runs_together_inject_every_kind_of_fault() -> None:
    assert len(_plans()) == 2 * RUNS_OF_A_MODE
    brought = {fault.kind for plan in _plans().values() for fault in plan.faults}
    assert {*load("requests").kinds} <= brought


def test_requests_runs_reach_every_decision() -> None:
    decided = {f"decided {decision}": 1 for decision in (*DECIDED, *STAGED)}
    run_until_counted("requests", CHOSEN, {**decided, "rows": 500, "batches committed": 10})


def test_three_of_five_nodes_with_one_in_doubt_wait_for_a_fourth() -> None:
    """Two votes are no quorum, and the third node gets its own back from three others only: nothing is demanded."""
    run_until_counted("requests", [(0, "liveness")], {"liveness not demanded": 1}, modes=["liveness"])


@pytest.mark.parametrize("name", QUICK)
def test_planted_bug_of_the_requests_layer_is_caught(name):
    verdict = mutate.judge("journal", dataclasses.replace(BUGS[name], seeds=20))
    assert verdict.ok, verdict.detail
