"""The graph in the simulator: a few seeds, and a few of the bugs that the workload must catch."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from chaplain.graph.admission import EventAdmission
from chaplain.graph.settings import GraphSettings
from chaplain.units import SECOND_NS
from simulator import mutate
from simulator.runner import run_seed
from simulator.workloads import graph
from tests.simulation.seed_search import run_until_counted

BUGS = {bug.name: bug for bug in mutate.bugs("graph")}
QUICK = ("order by arrival within a height", "forget what was read")


def test_graph_workload_passes_for_its_seeds():
    runs = ((110, "safety"), (150, "liveness"), (109, "liveness"))
    run_until_counted("graph", runs, {"events": 50})


def test_nodes_reconnect_soon_after_a_heal_although_all_dials_hung() -> None:
    """A dial that nobody answers was given up after up to 15 s here, and after 5 s by the real sockets."""
    outcome = run_seed("graph", 870, "liveness")
    assert outcome.ok, f"{outcome.reason}: {outcome.replay()}"


def test_clocks_ahead_of_each_other_break_no_safety_property(monkeypatch):
    """With the hour that a clock may jump nobody could be equal in time: this is about safety."""
    narrow = partial(GraphSettings, ahead_ns=4 * SECOND_NS)
    monkeypatch.setattr(graph, "GraphSettings", narrow)
    held = []
    hold = EventAdmission._defer
    monkeypatch.setattr(EventAdmission, "_defer", lambda self, *args: [held.append(args), hold(self, *args)])
    for seed in (0, 10, *range(1, 10)):
        outcome = run_seed("graph", seed, "safety")
        assert outcome.ok, f"{outcome.reason}: {outcome.replay()}"
        if len(held) > 50:
            return
    pytest.fail(f"only {len(held)} events were held")


def test_at_least_the_expected_number_of_graph_bugs_is_planted():
    assert len(BUGS) >= 15


@pytest.mark.parametrize("name", QUICK)
def test_planted_bug_of_the_graph_layer_is_caught(name):
    verdict = mutate.judge("graph", dataclasses.replace(BUGS[name], seeds=20))
    assert verdict.ok, verdict.detail
