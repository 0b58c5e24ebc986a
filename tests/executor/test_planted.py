"""Bugs on purpose: their texts are where they should be, and one of them is caught; the campaign runs all of them."""

from __future__ import annotations

import pytest
from simulator.mutate import mutated
from tests.executor.planted_bugs import BUGS, judge


@pytest.mark.planted_texts
def test_none_is_stale() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 12
    for bug in BUGS:
        mutated(bug)


def test_one_is_caught() -> None:
    assert judge(next(bug for bug in BUGS if bug.name == "ask too few")) == ""
