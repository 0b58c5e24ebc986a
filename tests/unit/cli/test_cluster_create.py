"""A cluster founded for several machines, as an operator would bring it up: one folder, one process each."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain.client.connect.identity_file import parse_identity_file
from chaplain.config import NODE_FILE, endpoints_of, load_cluster, load_node
from chaplain.errors import ConfigError
from chaplain.link.settings import GCM, HMAC
from chaplain.runtime.cluster.create import (
    PORTS_VARIABLE,
    NodeSplit,
    free_ports,
    make_cluster,
    make_distributed_cluster,
)
from chaplain.runtime.cluster.join import list_node, make_folder
from chaplain.runtime.layers.executor import make_executor
from chaplain.runtime.layers.journal import index_only_of, make_founding
from tests.unit.cli.test_cli import chaplain, worked

START_S = 60.0


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Path]:
    """Three folders far from each other, a node running in each; what clients get."""
    endpoints = [f"tcp://127.0.0.1:{port}" for port in free_ports(3)]
    arguments = [word for endpoint in endpoints for word in ("--at", endpoint)]
    worked("cluster", "create", "--dir", tmp_path / "ours", *arguments, "--http", "127.0.0.1:0")
    nodes = []
    for number in (1, 2, 3):
        folder = tmp_path / f"machine-{number}" / "data"
        shutil.move(tmp_path / "ours" / f"node-{number}", folder)
        command = [sys.executable, "-m", "chaplain.cli.main", "node", "run", "--config", str(folder / "node.toml")]
        nodes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
    yield tmp_path / "ours"
    for node in nodes:
        node.send_signal(signal.SIGTERM)
    for node in nodes:
        node.wait(30)


def test_three_machine_cluster_works_with_separate_folders_and_two_client_files(machines: Path) -> None:
    assert sorted(path.name for path in machines.iterdir()) == ["client.identity", "cluster.toml"]
    end_s = time.monotonic() + START_S
    while True:
        shown = json.loads(worked("cluster", "status", "--cluster", machines, "--output", "json"))
        if [node["state"] for node in shown["nodes"]] == ["WRK"] * 3 and shown["master"]:
            break
        assert time.monotonic() < end_s, shown
    assert [node["members"] for node in shown["nodes"]] == [3, 3, 3]
    worked("journal", "write", "--stream", "orders", "hello", "--cluster", machines)
    (line,) = worked("journal", "read", "--stream", "orders", "--cluster", machines).splitlines()
    assert json.loads(line)["value"] == "hello"


def test_cluster_up_without_local_nodes_says_to_run_them_on_their_machines(tmp_path: Path) -> None:
    worked("cluster", "create", "--dir", tmp_path / "ours", "--at", "tcp://127.0.0.1:7400")
    done = chaplain("cluster", "up", "--dir", tmp_path / "ours")
    assert done.returncode == 1
    assert "run each node on its own" in done.stderr


def test_former_command_name_found_still_creates_a_cluster(tmp_path: Path) -> None:
    worked("cluster", "found", "--dir", tmp_path / "ours", "--at", "tcp://127.0.0.1:7400")
    assert (tmp_path / "ours" / "cluster.toml").exists()
    listed = worked("cluster", "--help")
    assert "create" in listed
    assert "found" not in listed


@pytest.mark.parametrize(
    ("endpoints", "said"),
    [(["nonsense"], "nonsense"), (["tcp://127.0.0.1:7400"] * 2, "two nodes cannot be reached at one endpoint")],
)
def test_cluster_create_refuses_invalid_endpoints(tmp_path: Path, endpoints: list[str], said: str) -> None:
    done = chaplain("cluster", "create", "--dir", tmp_path / "ours", *(w for e in endpoints for w in ("--at", e)))
    assert done.returncode == 1
    assert said in done.stderr
    assert not (tmp_path / "ours").exists()


def test_free_ports_are_taken_from_the_configured_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, "29000-29049")
    assert {*free_ports(20)} < {*range(29_000, 29_050)}
    for wrong in ("29000", "x-y", "5-3", "0-9", "9-70000"):
        monkeypatch.setenv(PORTS_VARIABLE, wrong)
        with pytest.raises(ConfigError, match="two ports, such as 12000-12999"):
            free_ports(1)


def test_index_only_serializers_are_written_to_every_node_file_also_of_new_nodes(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    endpoints = [f"tcp://127.0.0.1:{7400 + number}" for number in range(5)]
    make_distributed_cluster(ours, endpoints, "sqlite", "", NodeSplit(index_only=3))
    listed = load_cluster(ours).nodes
    assert [node.index_only for node in listed] == [True, True, True, False, False]
    assert endpoints_of(listed) == tuple(endpoints[3:])
    assert endpoints_of(listed, 1) == tuple(endpoints[:1])
    joined = make_folder(ours, 6, "", ""), make_folder(ours, 7, "", "", holds_data=False)
    list_node(ours, joined[1].node)
    assert load_cluster(ours).nodes[-1].index_only
    configs = [load_node(ours / f"node-{number}" / NODE_FILE, {}) for number in (1, 4, 6, 7)]
    assert [index_only_of(config) for config in configs] == [((1, 2, 3), 2)] * 4
    assert len({make_founding(config, None).digest() for config in configs}) == 1
    executors = [make_executor(config, number) for number, config in enumerate(configs)]
    assert [executor is not None and executor.bare for executor in executors] == [True, False, False, True]


def test_new_node_copies_shared_settings_of_an_existing_node(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    make_distributed_cluster(ours, ["tcp://127.0.0.1:7400"], "sqlite", "")
    file = ours / "node-1" / NODE_FILE
    alike = "[mesh]\nheartbeat_seconds = 0.5\n[journal]\nsegment_bytes = 65536\nkeep_bytes = 7\n"
    file.write_text(f'{file.read_text()}\n{alike}reserved = ["alice"]\n[record]\npools = ["chat"]\n')
    make_folder(ours, 2, "", "")
    first, second = (load_node(ours / f"node-{number}" / NODE_FILE, {}) for number in (1, 2))
    for name in ("mesh.heartbeat_seconds", "journal.segment_bytes", "journal.keep_bytes"):
        assert second.values[name] == first.values[name]
        assert second.origins[name] != "default"
    assert [second.texts("journal.reserved"), second.texts("record.pools")] == [(), ()]
    assert second.text("journal.disk")


def test_seal_is_written_to_every_node_file_also_of_new_nodes(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    worked("cluster", "create", "--dir", ours, "--at", "tcp://127.0.0.1:7400", "--seal", HMAC)
    make_folder(ours, 2, "", "")
    assert [load_node(ours / f"node-{number}" / NODE_FILE, {}).text("seal") for number in (1, 2)] == [HMAC] * 2
    known = load_cluster(ours)
    assert [known.seal, parse_identity_file(Path(known.identity).read_text()).seal] == [HMAC] * 2
    done = chaplain("cluster", "up", "--dir", ours, "--seal", GCM)
    assert done.returncode == 1
    assert f"seals with {HMAC}" in done.stderr
    done = chaplain("client", "add", "meter", "--signature", "hmac", "--cluster", ours, "--out", tmp_path / "meter")
    assert done.returncode == 2
    assert "its secret would travel readable" in done.stderr
    assert not (tmp_path / "meter").exists()


def test_unknown_seal_is_refused(tmp_path: Path) -> None:
    done = chaplain("cluster", "up", "--dir", tmp_path / "ours", "--seal", "wax")
    assert done.returncode == 2
    assert "'wax' is not one of 'aes-256-gcm', 'hmac-sha256'" in done.stderr
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("split", "wrong"),
    [
        (NodeSplit(copies=2), "needs index-only serializers"),
        (NodeSplit(3, 3), "2 of 5 nodes store data"),
        (NodeSplit(5), "0 of 5 nodes store data"),
        (NodeSplit(6), "store data"),
    ],
)
def test_number_of_copies_above_the_number_of_data_nodes_is_refused(
    tmp_path: Path, split: NodeSplit, wrong: str
) -> None:
    with pytest.raises(ConfigError, match=wrong):
        make_cluster(tmp_path / "ours", 5, "none", None, split)
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("nodes", "split", "wrong"),
    [
        (
            16,
            NodeSplit(),
            "at most 15 nodes serialize, not 16: create fewer and add others with `chaplain member add`",
        ),
        (20, NodeSplit(16), "at most 15 nodes serialize, not 16"),
        (255, NodeSplit(3), "1 to 254 nodes, not 255"),
    ],
)
def test_cluster_with_more_serializers_than_a_set_may_have_is_refused(
    tmp_path: Path, nodes: int, split: NodeSplit, wrong: str
) -> None:
    with pytest.raises(ConfigError, match=wrong):
        make_cluster(tmp_path / "ours", nodes, "none", None, split)
    with pytest.raises(ConfigError, match=wrong):
        make_distributed_cluster(
            tmp_path / "ours", [f"tcp://10.0.0.1:{7000 + node}" for node in range(nodes)], "none", "", split
        )
    assert not (tmp_path / "ours").exists()
    make_distributed_cluster(
        tmp_path / "ours", [f"tcp://10.0.0.1:{7000 + node}" for node in range(20)], "none", "", NodeSplit(15)
    )


def test_node_file_with_an_unknown_serializer_is_refused(tmp_path: Path) -> None:
    make_distributed_cluster(tmp_path / "ours", ["tcp://127.0.0.1:7400"], "none", "")
    file = tmp_path / "ours" / "node-1" / NODE_FILE
    config = load_node(file, {}, {"journal.index_only": "9", "journal.copies": "1"})
    with pytest.raises(ConfigError, match="'9', which is not a node"):
        make_founding(config, None)
