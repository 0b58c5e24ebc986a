"""Gossip in the simulator, at scale, and the bugs planted into it: a taste of what the long campaigns run."""

from __future__ import annotations

import pytest

from simulator.gossip_scale import main, measure_silence, measure_spread
from simulator.mutate import judge
from simulator.mutations.gossip import BUGS
from simulator.runner import run_seed


@pytest.mark.parametrize("mode", ["safety", "liveness"])
@pytest.mark.parametrize("seed", [10, 39, 46])
def test_gossip_workload_passes_for_its_seeds(seed: int, mode: str) -> None:
    outcome = run_seed("gossip", seed, mode)
    assert outcome.ok, f"{outcome.checker}: {outcome.reason}\n{outcome.replay()}"


def test_equal_seeds_give_equal_histories() -> None:
    assert run_seed("gossip", 3, "safety").digest == run_seed("gossip", 3, "safety").digest


def test_planted_gossip_bugs_have_unique_names() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 12


def test_planted_bug_of_the_gossip_layer_is_caught() -> None:
    [bug] = [bug for bug in BUGS if bug.name == "decide twice"]
    assert judge("gossip", bug).ok


def test_fan_out_has_constant_cost_per_node_and_reaches_all() -> None:
    small, large = (measure_spread(size, flooding=False) for size in (100, 400))
    assert large.copies_per_node <= 2 * small.copies_per_node
    assert large.offers_per_node <= 2 * small.offers_per_node
    assert large.rounds <= 2 * small.rounds


def test_flooding_reaches_all_nodes_in_two_rounds() -> None:
    spread = measure_spread(20, flooding=True)
    assert (spread.rounds, spread.reached, spread.repair_rounds) == (2, 20, 0)


def test_faulty_network_for_a_node_hour_evicts_no_running_node() -> None:
    silence = measure_silence(seed=3, node_hours=0.5, loss=0.05)
    assert (silence.false_leaves, silence.undetected) == (0, 0)
    assert silence.kills == 3
    assert silence.detect_max_s <= 11


def test_scale_program_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--node-hours", "0.1", "--flooding", "5", "--fan-out", "20"]) == 0
    assert "fan-out" in capsys.readouterr().out
