"""Bugs that step tests must catch: their texts are current, and one is caught. The campaign runs all of them."""

from __future__ import annotations

import pytest
from simulator.mutate import Bug, mutated
from tests.sim.step_bugs import BUGS, judge


@pytest.mark.planted_texts
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_still_fits_the_code(bug: Bug) -> None:
    mutated(bug)


def test_a_planted_bug_is_caught_by_its_step_test() -> None:
    assert judge(next(bug for bug in BUGS if bug.name == "take a first broadcast of an unknown author")) == ""
