"""The journal in the simulator: 200 runs, and a few of the bugs that the workload must catch."""

from __future__ import annotations

import dataclasses
from itertools import product

import pytest

from chaplain.sim import planted
from chaplain.sim.runner import MODES, run_seed, total

BUGS = {bug.name: bug for bug in planted.bugs("journal")}
QUICK = ("execute a gap", "a duplicate takes an offset", "reuse a reference", "forget lanes in a snapshot")
CHOSEN = ((53, "safety"), (75, "safety"), (10, "safety"), (0, "liveness"), (2, "liveness"))
"""Everything that can be decided is decided in them."""
OTHERS = [run for run in product(range(100), MODES) if run not in CHOSEN]
PIECES = 14


@pytest.mark.parametrize("piece", range(PIECES))
@pytest.mark.timeout(600)
def test_seeds(piece: int) -> None:
    outcomes = [run_seed("requests", seed, mode) for seed, mode in OTHERS[piece::PIECES]]
    assert not [f"{outcome.reason}: {outcome.replay()}" for outcome in outcomes if not outcome.ok]


def test_there_are_two_hundred() -> None:
    assert len({*CHOSEN, *OTHERS}) == 200


def test_chosen_seeds() -> None:
    """In the last, somebody flips the one bit that makes a pack one of lane zero, which is no lane."""
    outcomes = [run_seed("requests", seed, mode) for seed, mode in CHOSEN]
    assert not [outcome.reason for outcome in outcomes if not outcome.ok]
    counts = total(outcomes)
    assert counts["rows"] > 500
    decided = {name.removeprefix("decided ") for name in counts if name.startswith("decided ")}
    assert {"applied", "duplicate", "old", "gap", "fenced", "signature", "broken", "no_right", "compromised"} <= decided
    assert {"staged", "committed", "not_staged"} <= decided
    assert counts["batches committed"] > 10


@pytest.mark.parametrize("seed", [887, 1236])
def test_three_of_five_with_one_in_doubt_wait_for_a_fourth(seed: int) -> None:
    """Two votes are no quorum, and the third node gets its own back from three others only: nothing is demanded."""
    outcome = run_seed("requests", seed, "liveness")
    assert outcome.ok, outcome.reason
    assert outcome.counts["liveness not demanded"] == 1


@pytest.mark.parametrize("name", sorted(BUGS))
def test_bugs_can_still_be_planted(name):
    planted.mutated(BUGS[name])


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name):
    verdict = planted.judge("journal", dataclasses.replace(BUGS[name], seeds=20))
    assert verdict.ok, verdict.detail
