"""What is shown of a cluster whose nodes do not all say the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from chaplain.cli.main import cli
from chaplain.errors import ConfigError
from chaplain.runtime.cluster import status
from chaplain.runtime.cluster.create import make_cluster


def note(events: int, fingerprint: str) -> dict:
    return {"notes": {"events": events, "read": 0, "leaves": events, "fingerprint": fingerprint}}


SAID = {
    1: {
        "state": "WRK",
        "agreed": 9,
        "regime": 2,
        "master": True,
        "master_id": 1,
        "pools": ["chat"],
        "streams": {"orders": {"head": 7, "first": 0}},
        "graph": note(2, "a"),
        "sequence": {"state": "WRK", "number": 4, "history": "", "streams": {"ticks": {"head": 4}}},
        "log": {"first": 1},
        "databases": {"main": {"state": "stopped", "trouble": "disk full"}},
    },
    2: {
        "state": "SNC",
        "agreed": 5,
        "regime": 1,
        "master": False,
        "master_id": 1,
        "pools": [],
        "streams": {"orders": {"head": 3, "first": 0}, "late": {"head": 1, "first": 0}},
        "graph": note(1, "b"),
        "sequence": {"state": "SNC", "number": 40},
    },
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_cluster(tmp_path / "c", 3, "none", None)
    monkeypatch.setattr(status, "_status", lambda directory, node, pid: SAID.get(node.id))
    return tmp_path / "c"


def test_stream_is_shown_as_by_the_most_advanced_node(cluster: Path) -> None:
    found = status.describe(cluster)
    assert found["streams"] == {"late": {"head": 1, "first": 0}, "orders": {"head": 7, "first": 0}}
    assert found["graph"] == {"notes": {**note(2, "a")["notes"], "nodes": {"1": 2, "2": 1}, "same": False}}
    assert found["sequence"]["number"] == 4, "who works is believed, whatever others count"
    assert found["pools"] == {"chat": {"nodes": [1]}}
    assert (found["regime"], found["master"]) == (2, 1)
    assert [node["state"] for node in found["nodes"]] == ["WRK", "SNC", "down"]
    assert [node.get("log") for node in found["nodes"]] == [{"first": 1}, None, None]


def test_node_that_the_cluster_file_lacks_is_reported(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status.describe(cluster)["unlisted"] == []
    monkeypatch.setattr(status, "_status", lambda directory, node, pid: {**SAID[1], "peers": [2, 3, 7, 0xFFFF0001]})
    assert status.describe(cluster, 1)["unlisted"] == [7]
    shown = CliRunner().invoke(cli, ["cluster", "status", "--cluster", str(cluster)])
    assert "cluster.toml is old: it lacks node 7" in " ".join(shown.output.split())


def test_members_for_which_a_graph_is_retained_are_shown(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"notes": {**note(2, "a")["notes"], "held_by": [3]}}
    monkeypatch.setattr(status, "_status", lambda directory, node, pid: {**SAID[1], "graph": kept})
    shown = CliRunner().invoke(cli, ["cluster", "status", "--cluster", str(cluster)])
    assert "retained for node 3" in " ".join(shown.output.split())


def test_stopped_database_is_shown_below_the_table(cluster: Path) -> None:
    shown = CliRunner().invoke(cli, ["cluster", "status", "--cluster", str(cluster)])
    assert "node 1, database of main: stopped, disk full\n" in shown.output
    assert "by node 1: 2, 2: 1" in shown.output


def test_changed_clock_is_shown(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_by = {1: -120.0, 2: 0.3}
    monkeypatch.setattr(
        status, "_status", lambda directory, node, pid: {**SAID[1], "clock_error_seconds": set_by.get(node.id, 0.0)}
    )
    shown = " ".join(CliRunner().invoke(cli, ["cluster", "status", "--cluster", str(cluster)]).output.split())
    assert "the clock of node 1 was set, and is -120 s from the node's own: the node catches up in 600 s" in shown
    assert shown.count("was set") == 1


def test_node_that_runs_twice_is_named(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = {"used_twice": [{"id": 3, "endpoints": ["tcp://a:1", "tcp://b:2"]}]}
    monkeypatch.setattr(status, "_status", lambda directory, node, pid: {**SAID[1], **twice})
    shown = CliRunner().invoke(cli, ["cluster", "status", "--cluster", str(cluster)])
    line = "node 3 runs twice, at tcp://a:1 and tcp://b:2: stop the one whose directory is a copy.\n"
    assert shown.output.count(line) == 1


def test_status_of_one_node_asks_only_that_node(cluster: Path) -> None:
    found = status.describe(cluster, 2)
    assert [node["id"] for node in found["nodes"]] == [2]
    assert found["streams"]["orders"]["head"] == 3
    assert found["master"] == 1, "whom it holds for the master"
    with pytest.raises(ConfigError, match="no node 9: choose one of 1, 2, 3"):
        status.describe(cluster, 9)


def test_status_of_a_stopped_node_has_every_field(cluster: Path) -> None:
    down = status.describe(cluster)["nodes"][2]  # type: ignore[index]
    assert (down["state"], down["roles"], down["master"], down["members"]) == ("down", [], False, 0)
