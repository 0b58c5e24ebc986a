"""`chaplain member` on a cluster of processes: a node joins, serializes, leaves, and every refusal is one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain import Client
from chaplain.link.auth.identity import Identity
from tests.unit.cli.test_journal_cli import chaplain, failure, lines

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("clusters") / "m"
    assert chaplain("cluster", "up", "--nodes", "1", "--dir", directory).returncode == 0
    yield directory
    assert chaplain("cluster", "down", "--cluster", directory).returncode == 0


def member(cluster: Path, *words: str) -> dict:
    done = chaplain("member", *words, "--cluster", cluster, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def status(cluster: Path) -> dict:
    return json.loads(chaplain("cluster", "status", "--cluster", cluster, "--output", "json").stdout)


def test_added_node_takes_over_when_the_first_node_is_removed(cluster):
    with Client.connect(cluster, timeout=30) as lasting:
        _replace_the_first(cluster)
        # It was given the first one and nobody else.
        assert [message.value for message in lasting.journal("s").read()] == [b"hello"]
        assert lasting.journal("s").write(b"still here").offset == 1


def _replace_the_first(cluster: Path) -> None:
    added = member(cluster, "add", "--role", "executor", "--role", "ingest")
    assert (added["id"], added["roles"]) == (2, ["executor", "ingest"])
    assert member(cluster, "add", "--id", "2")["roles"] == ["config"]
    assert member(cluster, "serializers", "2", "1")["stage"] == "confirm"
    [receipt] = lines("journal", "write", "hello", "--stream", "s", "--cluster", cluster)
    now = status(cluster)
    assert (now["master"], now["serializers"], receipt["offset"]) == (2, [2, 1], 0)
    assert {node["id"]: len(node["roles"]) for node in now["nodes"]} == {1: 4, 2: 4}
    assert {change["stage"] for change in now["changes"]} == {"live", "confirm"}

    lines("graph", "append", "hello", "--stream", "g", "--node", "2", "--cluster", cluster)
    [event] = lines("graph", "read", "--stream", "g", "--node", "1", "--cluster", cluster)
    assert event["author"] == 2
    assert {tuple(node["sequence"]["work_set"]) for node in now["nodes"]} == {(1, 2)}

    refused = failure("member", "serializers", "1", "2", "--cluster", cluster)
    assert "the new set is the same as the old one" in refused
    assert "there is no such node" in failure("member", "serializers", "2", "9", "--cluster", cluster)

    assert member(cluster, "remove", "1")["lost"] == ["serializer", "ingest", "executor"]
    now = status(cluster)
    assert ([node["id"] for node in now["nodes"]], now["serializers"]) == ([2], [2])
    assert (now["sequence"]["state"], now["sequence"]["work_set"]) == ("WRK", [2])
    assert "there is no node 1; there are 2" in failure("member", "remove", "1", "--cluster", cluster)
    assert "ids are never given again" in failure("member", "add", "--id", "1", "--cluster", cluster)
    assert "the only serializer" in failure("member", "remove", "2", "--cluster", cluster)
    assert [row["value"] for row in lines("journal", "read", "--stream", "s", "--cluster", cluster)] == ["hello"]

    # Nobody whom an empty log names is there any more, and a newcomer finds its way all the same.
    assert member(cluster, "add", "--role", "executor")["roles"] == ["executor"]
    assert member(cluster, "remove", "3")["lost"] == ["executor"]


def test_node_added_for_another_machine_is_a_member_and_is_not_started(cluster):
    before = [node["id"] for node in status(cluster)["nodes"]]
    added = member(cluster, "add", "--at", "tcp://127.0.0.1:1")
    assert added["waits"]
    folder = Path(added["folder"])
    assert {"node.toml", "identity", "keyring", "wrapping", "segments"} <= {file.name for file in folder.iterdir()}
    [change] = [one for one in status(cluster)["changes"] if one["open"]]
    assert (change["nodes"], change["stage"]) == ([added["id"]], "catchup")
    assert member(cluster, "remove", str(added["id"]), "--role", "executor")["lost"] == ["executor"]
    now = status(cluster)
    assert not [one for one in now["changes"] if one["open"]]
    assert [node["id"] for node in now["nodes"]] == before


def test_invalid_serializer_set_is_wrong_usage(cluster):
    assert "each once" in failure("member", "serializers", "1", "1", "--cluster", cluster, code=2)
    assert "not in the range" in failure("member", "serializers", "0", "--cluster", cluster, code=2)


def test_node_that_never_started_can_be_removed(cluster):
    """As when the command that added it was ended before it started the node."""
    with Client.connect(cluster, timeout=30) as client:
        client.add_node(9, "executor", "tcp://127.0.0.1:1", Identity(b"9" * 32).key, bytes(16).hex())
    removed = member(cluster, "remove", "9")
    assert removed["lost"] == ["executor"]
    assert "there is no node 9" in failure("member", "remove", "9", "--cluster", cluster)
