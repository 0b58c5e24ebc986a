"""Three index-only serializers and two nodes that hold data, as real processes: kills, and everything is there."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from chaplain.client.sync import Client
from chaplain.errors import Unknown
from chaplain.runtime.cluster.create import NodeSplit
from tests.integration.journal.support.history import read_chain
from tests.integration.journal.support.scenes import find_master, status, wait_until_same
from tests.support.process_cluster import Cluster, founded, shell, until

pytestmark = pytest.mark.timeout(400)
SERIALIZERS, HOLDERS = (1, 2, 3), (4, 5)


def write(cluster: Cluster, values: list[bytes]) -> dict[int, bytes]:
    """The hash of the message that each was written in, by its index."""
    with Client.connect(cluster.directory, timeout=120) as client:
        together = client.journal("orders").write_many(values[:5])
        receipts = [*together, *[client.journal("orders").write(value) for value in values[5:]]]
    return {receipt.index: receipt.hash for receipt in receipts}


def values_at(cluster: Cluster, node: int) -> list[bytes]:
    with Client.connect(cluster.directory, node=node, timeout=120) as client:
        return [message.value for message in client.journal("orders").read(start=0, follow=False)]


def kill(cluster: Cluster, *numbers: int) -> None:
    for number in numbers:
        cluster[number].signal(signal.SIGKILL)
    for number in numbers:
        cluster[number].kill()


def _messages_name_the_cause(cluster: Cluster) -> None:
    """One of two data nodes is down, and both must have a payload."""
    where = ("--cluster", cluster.directory)
    with Client.connect(cluster.directory, timeout=2) as client, pytest.raises(Unknown, match="too few data nodes"):
        client.journal("waiting").write(b"x")
    shown = shell("cluster", "status", *where)
    assert "too few data nodes are up: 2 must store a payload before it is ordered, and only node 5 is up" in shown
    said = shell("journal", "write", "x", "--stream", "waiting", "--node", "1", *where, code=1)
    assert "node 1 accepts no writes, because it is no ingest node: omit --node, or name 4, 5" in said


def test_index_only_cluster_keeps_all_messages_after_kills(tmp_path: Path) -> None:
    values = [b"order %d of those who hold data" % number for number in range(30)]
    with founded(tmp_path / "five", 5, split=NodeSplit(3, 2)) as cluster:
        cluster.start()
        cluster.wait_until_whole()
        assert find_master(cluster).number in SERIALIZERS
        hashes = write(cluster, values[:20])
        kill(cluster, 4)
        assert values_at(cluster, 5) == values[:20]
        _messages_name_the_cause(cluster)
        cluster[4].start()
        hashes |= write(cluster, values[20:25])
        kill(cluster, *SERIALIZERS)
        for number in SERIALIZERS:
            cluster[number].start()
        hashes |= write(cluster, values[25:])
        until(lambda: all(node.ready() for node in cluster), "all serve again")
        wait_until_same(cluster)
        assert [values_at(cluster, number) for number in HOLDERS] == [values, values]
        seen = [status(node) for node in cluster]
        assert [one["index_only"] for one in seen] == [True] * 3 + [False] * 2
        assert {one["copies"] for one in seen} == {2}
        for node in cluster:
            node.stop()
        for node in cluster:
            chain = read_chain(node.folder / "segments")
            assert hashes.items() <= chain.items()
            files = (node.folder / "segments").glob("*.segment")
            assert any(values[0] in file.read_bytes() for file in files) == (node.number in HOLDERS)
