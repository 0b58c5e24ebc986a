"""The graph in the simulator: a few seeds, and a few of the bugs that the workload must catch."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
from simulator import mutate
from simulator.runner import run_seed, total
from simulator.workloads import graph

from chaplain.graph.admission import EventAdmission
from chaplain.graph.settings import GraphSettings
from chaplain.units import SECOND_NS

BUGS = {bug.name: bug for bug in mutate.bugs("graph")}
QUICK = ("order by arrival within a height", "forget what was read")


def test_seeds():
    outcomes = [run_seed("graph", seed, mode) for seed, mode in ((110, "safety"), (150, "liveness"), (109, "liveness"))]
    assert not [outcome.reason for outcome in outcomes if not outcome.ok]
    assert total(outcomes)["events"] > 50


def test_everybody_is_met_soon_after_a_heal_though_all_dials_hung() -> None:
    """A dial that nobody answers was given up after up to 15 s here, and after 5 s by the real sockets."""
    outcome = run_seed("graph", 870, "liveness")
    assert outcome.ok, f"{outcome.reason}: {outcome.replay()}"


def test_clocks_that_are_ahead_of_each_other_harm_nobody(monkeypatch):
    """With the hour that a clock may jump nobody could be equal in time: this is about safety."""
    narrow = partial(GraphSettings, ahead_ns=4 * SECOND_NS)
    monkeypatch.setattr(graph, "GraphSettings", narrow)
    held = []
    hold = EventAdmission._defer
    monkeypatch.setattr(EventAdmission, "_defer", lambda self, *args: [held.append(args), hold(self, *args)])
    outcomes = [run_seed("graph", seed, "safety") for seed in (0, 10)]
    assert not [outcome.reason for outcome in outcomes if not outcome.ok]
    assert len(held) > 50


def test_there_are_enough_bugs():
    assert len(BUGS) >= 15


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name):
    verdict = mutate.judge("graph", dataclasses.replace(BUGS[name], seeds=2))
    assert verdict.ok, verdict.detail
