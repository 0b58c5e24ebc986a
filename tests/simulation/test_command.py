"""The simulator itself: the same seed is the same run, faults happen, and a bug that is planted is found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator import mutate, workloads
from simulator.__main__ import main
from simulator.checkers.base import Watcher
from simulator.faults.plan import ALL, Fault, cut
from simulator.runner import MODES, run_seed, run_seeds, total
from tests.simulation.toy.counter import Toy

TOY = "tests.simulation.toy.counter:Toy"
HERE = Path(__file__).parent
QUICK = {"graph": 3, "indexonly": 0, "requests": 1, "retention": 0}
"""Seeds whose runs have thousands of steps, and not tens of thousands; 2 elsewhere."""


def beside() -> str:
    """Our own modules before whatever the path holds already, which may be the program under test."""
    return os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))


def simulate(*arguments, hash_seed="0"):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": beside()}
    command = [sys.executable, "-m", "simulator", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250, check=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", ["tests.simulation.toy.counter:ToyOnBadDisks", *workloads.names()])
def test_equal_seeds_give_equal_digests_under_two_hash_seeds(workload):
    seed = QUICK.get(workload, 2)
    arguments = ("--workload", workload, "--seeds", f"{seed}:{seed + 1}", "--output", "json")
    runs = [simulate(*arguments, hash_seed=hash_seed) for hash_seed in ("0", "1")]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    assert runs[0].stdout == runs[1].stdout
    digests = {json.loads(line)["digest"] for line in runs[0].stdout.splitlines()}
    assert len(digests) == 2


def test_every_kind_of_fault_is_injected():
    counts = total(run_seeds("tests.simulation.toy.counter:ToyOnBadDisks", range(35), MODES))
    drawn = set(ALL) - {"crash point"} | {f"crash point: {point.name}" for point in Toy.points}
    chance = {"lost frame", "late frame", "duplicate", "break", "half open"}
    assert {kind for kind in drawn | chance if not counts[kind]} == set()


def test_correct_toy_survives_all_seeds():
    assert [outcome for outcome in run_seeds(TOY, range(25), MODES) if not outcome.ok] == []


def test_several_processes_give_equal_outcomes():
    alone = list(run_seeds(TOY, range(8), MODES))
    assert list(run_seeds(TOY, range(8), MODES, jobs=2)) == alone


def test_planted_bugs_get_their_expected_verdicts(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", beside())
    fates = {verdict.bug.name: verdict for verdict in mutate.judge_all("tests.simulation.toy.bugs:", jobs=2)}
    assert {name: verdict.status for name, verdict in fates.items()} == {
        "tell before it is on disk": "caught",
        "harmless": "survived",
        "text that is not there": "stale",
        "not even a program that runs": "broken",
        "caught by a test": "caught",
        "tests that are not there": "broken",
        "tests that pass": "survived",
        "tests that are skipped": "skipped",
    }
    assert "remembered" in fates["tell before it is on disk"].detail
    assert "NameError" in fates["not even a program that runs"].detail


def test_bug_that_takes_too_long_is_undecided_and_does_not_end_the_campaign(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", beside())
    monkeypatch.setattr(mutate, "_TIMEOUT_S", 0.01)
    verdicts = [*mutate.judge_all("tests.simulation.toy.bugs:", jobs=2)]
    assert {verdict.status for verdict in verdicts} == {"undecided"}
    assert len(verdicts) == len(mutate.bugs("tests.simulation.toy.bugs:"))


class Grumbler(Watcher):
    name = "grumbler"

    def finish(self, healed):
        self.complain("it is late")


def test_failing_seed_is_named_with_a_command_to_replay_it(monkeypatch, capsys):
    monkeypatch.setattr(Toy, "checkers", lambda self: [Grumbler()])
    assert main(["--workload", TOY, "--seeds", "7:9", "--mode", "safety"]) == 1
    said = capsys.readouterr().err
    assert "seed 7 fails: grumbler: it is late" in said
    assert "--workload tests.simulation.toy.counter:Toy --mode safety --seed 7 --trace" in said


def test_trace_shows_plan_inputs_and_effects():
    lines = []
    outcome = run_seed(TOY, 3, "safety", lines.append)
    assert lines[0].startswith("mode safety;")
    assert any(" a.0 < Woken()" in line for line in lines)
    assert any(" a.0 > Persist(ticket=1" in line for line in lines)
    assert outcome == run_seed(TOY, 3, "safety")


@pytest.mark.parametrize(
    ("kind", "amount", "passing"),
    [
        ("whole partition", 2, {"ab", "ba", "cd", "ce", "dc", "de", "ec", "ed"}),
        ("bridge partition", 2, {"ab", "ac", "ad", "ae", "ba", "ca", "da", "ea", "bc", "cb", "de", "ed"}),
        ("ring partition", 0, {"ab", "bc", "cd", "de", "ea", "ba", "cb", "dc", "ed", "ae"}),
    ],
)
def test_partitions_cut_the_connections_that_their_names_say(kind, amount, passing):
    fault = Fault(0, kind, tuple("abcde"), 1, amount)
    every = {a + b for a in "abcde" for b in "abcde" if a != b}
    assert every - {a + b for a, b in cut(fault)} == passing


def test_one_way_partition_cuts_one_direction():
    assert cut(Fault(0, "one-way partition", ("x", "y"), 1, 0)) == [("x", "y")]
