"""The search for seeds that show a case, on the toy."""

from __future__ import annotations

import pytest

from simulator.checkers.base import Watcher
from simulator.runner import run_seed
from tests.simulation.seed_search import run_until_counted
from tests.simulation.toy.counter import Toy

TOY = "tests.simulation.toy.counter:Toy"
FAULT = "lost frame"


def test_search_continues_until_the_counts_are_reached() -> None:
    """The first run alone does not show the case."""
    least = run_seed(TOY, 0, "safety").counts.get(FAULT, 0) + 1
    assert run_until_counted(TOY, [(0, "safety")], {FAULT: least})[FAULT] >= least


def test_search_runs_all_of_the_first_seeds() -> None:
    runs = [(0, "safety"), (1, "safety")]
    assert run_until_counted(TOY, runs, {}) == run_until_counted(TOY, reversed(runs), {})


def test_search_fails_if_no_run_shows_the_case() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"4 runs of .* show too few of {'no such fault': 0}"):
        run_until_counted(TOY, [], {"no such fault": 1}, seeds=range(2))


class Objector(Watcher):
    name = "objector"

    def finish(self, healed: object) -> None:
        self.complain("it is late")


def test_search_fails_if_a_run_has_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "checkers", lambda self: [Objector()])
    with pytest.raises(AssertionError, match=r"it is late: python -m simulator .* --seed 0"):
        run_until_counted(TOY, [(0, "safety")], {})
