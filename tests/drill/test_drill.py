"""The drill on real nodes: clean on ours, and on nodes with a planted bug it names what they lost."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain.drill import blows
from chaplain.drill.drill import Drill
from chaplain.runtime import local
from chaplain.runtime.founding import make_cluster

pytestmark = pytest.mark.timeout(240)
FORGETFUL = (sys.executable, str(Path(__file__).parent / "forgetful_node.py"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "three"
    make_cluster(directory, 3, "none", None)
    yield directory
    local.bring_down(directory)


def test_a_short_drill_is_clean_and_leaves_the_cluster_whole(cluster: Path) -> None:
    local.bring_up(cluster, lambda _: None)
    command = [*local.PROGRAM, "drill", "--cluster", str(cluster), "--minutes", "0.1", "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["clean"]
    assert sum(found["blows"].values()) > 0
    assert found["acknowledged"] > 0
    assert all(local.pid_of(cluster / f"node-{node}") for node in (1, 2, 3))


def test_what_forgetful_nodes_lost_is_named(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "PROGRAM", FORGETFUL)
    local.bring_up(cluster, lambda _: None)

    def kill_all(drill: Drill) -> None:
        drill._blows["kill all"] += 1
        blows.kill(cluster, [1, 2, 3])
        blows.restart(cluster)
        drill._until_s = 0.0  # one such blow is enough

    monkeypatch.setattr(Drill, "_strike", kill_all)
    verdict = Drill(cluster, 60, random.Random(1), lambda _: None).run()
    lost = [one for one in verdict.breaks if one.kind in ("lost", "moved")]
    assert lost, verdict
    assert all(one.offset is not None for one in lost)


def test_a_cluster_that_is_not_whole_is_not_drilled(cluster: Path) -> None:
    done = subprocess.run(
        [*local.PROGRAM, "drill", "--cluster", str(cluster)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "start all with `chaplain cluster up` first" in done.stderr
