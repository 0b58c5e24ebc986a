"""A node that the cluster removed while it ran, and that somebody starts again."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaplain import Client
from chaplain.cli.support.member_changes import ChangeFollower
from chaplain.config import load_cluster
from chaplain.runtime.cluster.local import bring_up
from chaplain.runtime.exit_codes import REMOVED
from tests.integration.sequence.sequence_scenes import STREAM, sequence_of, wait_until_working, working
from tests.support.process_cluster import PATIENCE_S, Cluster, until

pytestmark = pytest.mark.timeout(240)


def test_removed_node_stops_by_itself_and_is_ignored_by_the_others(tmp_path: Path) -> None:
    with working(tmp_path / "three", 3) as cluster:
        history = wait_until_working(cluster)
        rings = [_ring(cluster, number) for number in (1, 2, 3)]
        assert len(set(rings)) == 1
        with Client.connect(cluster.directory, node=1, timeout=PATIENCE_S) as client:
            assert client.sequence(STREAM).publish(b"of three") == 1
            _remove(client, 3)
            _await_end(cluster)
            removed = cluster[3]
            assert removed.lines("removed from the cluster")
            [halted] = removed.lines("halted")
            assert halted["level"] == "error"
            assert "do not start it again; `chaplain member add`" in halted["reason"]
            for number in (1, 2):
                until(lambda n=number: cluster[n].members().get(3) != "alive", f"node {number} does not count it")
            removed.process = None
            removed.start()
            _await_end(cluster)
            assert [cluster[number].members().get(3) for number in (1, 2)] == ["left", "left"]
            client.rotate_keys()
            assert _ring(cluster, 1) == _ring(cluster, 2) != rings[0]
            assert _ring(cluster, 3) == rings[0], "the new key is not for it"
            until(lambda: sequence_of(cluster[1]).get("work_set") == [1, 2], "the sequence goes on without it")
            assert client.sequence(STREAM).publish(b"of two") == 2
            assert wait_until_working(cluster, 1, 2) == history
        removed.process = None
        said: list[str] = []
        assert bring_up(cluster.directory, said.append) == []
        assert "node 3 was removed from the cluster: cluster.toml no longer lists it, and it stays down" in said
        assert [node.id for node in load_cluster(cluster.directory).nodes] == [1, 2]


def _ring(cluster: Cluster, number: int) -> str:
    """What its disk holds of the cluster's keys."""
    return (cluster[number].folder / "keyring").read_text()


def _remove(client: Client, number: int) -> None:
    changes = ChangeFollower(client, lambda stage: None)
    changes.follow(client.new_serializers((1, 2)))
    for role in ("ingest", "executor"):
        changes.follow(client.remove_node(number, role))


def _await_end(cluster: Cluster) -> None:
    process = cluster[3].process
    assert process is not None
    until(lambda: process.poll() is not None, "node 3 stops")
    assert process.returncode == REMOVED
