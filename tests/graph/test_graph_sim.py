"""The graph in the simulator: a few seeds, and a few of the bugs that the workload must catch."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaplain.sim import planted
from chaplain.sim.runner import run_seed, total

BUGS = {bug.name: bug for bug in planted.bugs("graph")}
QUICK = ("order by arrival within a height", "forget what was read")


def test_seeds():
    outcomes = [run_seed("graph", seed, mode) for seed, mode in ((110, "safety"), (150, "liveness"), (109, "liveness"))]
    assert not [outcome.reason for outcome in outcomes if not outcome.ok]
    assert total(outcomes)["events"] > 50


def test_a_seed_is_the_same_run_in_every_process():
    command = [sys.executable, "-m", "chaplain.sim", "--workload", "graph", "--seed", "110", "--mode", "safety"]
    digests = set()
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [*command, "--output", "json"],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        digests.add(json.loads(run.stdout.splitlines()[0])["digest"])
    assert len(digests) == 1


def test_there_are_enough_bugs():
    assert len(BUGS) >= 15


@pytest.mark.parametrize("name", sorted(BUGS))
def test_bugs_can_still_be_planted(name):
    spec = importlib.util.find_spec(BUGS[name].module)
    assert spec is not None
    text = Path(str(spec.origin)).read_text()
    assert planted.mutate(BUGS[name], text) != text


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name):
    verdict = planted.judge("graph", dataclasses.replace(BUGS[name], seeds=2))
    assert verdict.ok, verdict.detail
