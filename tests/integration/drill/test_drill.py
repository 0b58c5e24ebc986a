"""The drill on real nodes: clean on correct nodes; on nodes with a planted bug it names the lost messages."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain.drill import faults
from chaplain.drill.drill import PROGRESS, Drill
from chaplain.drill.journal_load import JournalLoad
from chaplain.drill.violations import JOURNAL, KINDS
from chaplain.runtime.cluster import local
from chaplain.runtime.cluster.create import make_cluster
from tests.integration.drill.forgetful_node import FLAG

pytestmark = pytest.mark.timeout(450)
FORGETFUL = (sys.executable, str(Path(__file__).parent / "forgetful_node.py"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "three"
    make_cluster(directory, 3, "none", None)
    yield directory
    local.bring_down(directory)


def test_short_drill_is_clean_and_leaves_all_nodes_running(cluster: Path) -> None:
    local.bring_up(cluster, lambda _: None)
    command = [
        *local.PROGRAM,
        "drill",
        "--cluster",
        str(cluster),
        "--minutes",
        "0.1",
        "--seed",
        "3",
        "--output",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["clean"]
    assert sum(found["blows"].values()) > 0
    assert [*found["kinds"]] == [*KINDS]
    for of, line in found["kinds"].items():
        assert line["clean"], (of, line)
        assert line["acknowledged"] > 0
    assert found["acknowledged"] == sum(line["acknowledged"] for line in found["kinds"].values())
    assert all(local.pid_of(cluster / f"node-{node}") for node in (1, 2, 3))


def test_drill_names_messages_that_nodes_without_sync_lost(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "PROGRAM", FORGETFUL)
    local.bring_up(cluster, lambda _: None)
    began_s: list[float] = []

    def kill_all(drill: Drill) -> None:
        """Kill all nodes once, after the writers have ended: they would notice that the log has become shorter."""
        (cluster / FLAG).touch()
        began_s.append(time.monotonic())
        drill._wait_for_progress("they forget from now on")
        for load in drill.loads.values():
            load.end()
        faults.kill(cluster, [1, 2, 3])
        (cluster / FLAG).unlink()
        faults.restart(cluster)
        drill._until_s = 0.0

    monkeypatch.setattr(Drill, "_inject_fault", kill_all)
    drill = Drill(cluster, 60, random.Random(1), lambda _: None, kinds=[JOURNAL])
    verdict = drill.run()
    load = drill.loads[JOURNAL]
    assert isinstance(load, JournalLoad)
    attempts = [attempt for writer in load.writers for attempt in writer.attempts]
    forgotten = {one.offset for one in attempts if one.offset is not None and one.invoked_s > began_s[0]}
    assert len(forgotten) >= PROGRESS[JOURNAL]
    lost = {one.offset for one in verdict.breaks if one.kind == "lost"}
    assert forgotten <= lost, verdict.breaks
    assert {one.offset for one in attempts if one.offset is not None} > lost, "what was on disk is still there"


@pytest.mark.root
@pytest.mark.skipif(not faults.can_cut(), reason="cutting needs root and nft: `apt-get install nftables`")
def test_cut_node_is_unreachable_until_the_cut_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with faults.cut(f"tcp://127.0.0.1:{address[1]}"), pytest.raises(TimeoutError):
            socket.create_connection(address, timeout=0.5)
        socket.create_connection(address, timeout=60).close()


def test_drill_refuses_cluster_with_stopped_nodes(cluster: Path) -> None:
    done = subprocess.run(
        [*local.PROGRAM, "drill", "--cluster", str(cluster)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "start all with `chaplain cluster up` first" in done.stderr
