"""The journal in the simulator: a few seeds, and a few of the bugs that the workload must catch."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from chaplain.sim import planted
from chaplain.sim.runner import run_seed, total

BUGS = {bug.name: bug for bug in planted.bugs("journal")}
QUICK = ("execute a gap", "a duplicate takes an offset", "reuse a reference", "forget lanes in a snapshot")


def test_seeds():
    """In the last, somebody flips the one bit that makes a pack one of lane zero, which is no lane."""
    runs = ((53, "safety"), (75, "safety"), (10, "safety"), (2, "liveness"))
    outcomes = [run_seed("requests", seed, mode) for seed, mode in runs]
    assert not [outcome.reason for outcome in outcomes if not outcome.ok]
    counts = total(outcomes)
    assert counts["rows"] > 500
    decided = {name.removeprefix("decided ") for name in counts if name.startswith("decided ")}
    assert {"applied", "duplicate", "old", "gap", "fenced", "signature", "broken", "no_right", "compromised"} <= decided
    assert {"staged", "committed", "not_staged"} <= decided
    assert counts["batches committed"] > 10


@pytest.mark.parametrize("name", sorted(BUGS))
def test_bugs_can_still_be_planted(name):
    spec = importlib.util.find_spec(BUGS[name].module)
    assert spec is not None
    assert planted.mutate(BUGS[name], Path(str(spec.origin)).read_text()) != Path(str(spec.origin)).read_text()


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name):
    verdict = planted.judge("journal", dataclasses.replace(BUGS[name], seeds=20))
    assert verdict.ok, verdict.detail
