"""The graph on real processes: partitions, kill -9, both clients and the command line."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from chaplain import AsyncClient, Client
from tests.integration.cluster.graph_scenes import EQUAL_S, both_sides_written, killed_while_written
from tests.support import network_namespaces as namespaces
from tests.support.process_cluster import PATIENCE_S, Cluster, promised, running, shell, until

pytestmark = pytest.mark.timeout(240)
FOLLOWED = 40


@pytest.mark.root
@pytest.mark.skipif(bool(namespaces.missing()), reason=namespaces.missing())
def test_both_sides_of_a_partition_become_equal(tmp_path: Path) -> None:
    with namespaces.wired(tmp_path / "five", 5) as (cluster, wires):
        took_s = both_sides_written(cluster, wires, ((1, 2), (3, 4, 5)))
        for node in cluster:
            node.check()
    print(f"equal {took_s:.2f} s after the heal")
    assert took_s <= promised(EQUAL_S)


def test_clients_lose_no_event_when_a_node_is_killed(tmp_path: Path) -> None:
    with running(tmp_path / "three", 3) as cluster:
        _both_faces(cluster)
        _command_line(cluster)
        _follow_to_another_node(cluster)
        until(cluster[2].ready, "node 2 serves again")
        kept = killed_while_written(cluster, 2)
        assert kept >= 300


def _both_faces(cluster: Cluster) -> None:
    with Client.connect(cluster.directory) as client:
        first = client.graph("faces").append(b"one")
        events = list(client.graph("faces").read())
        assert [(event.id, event.value, event.parents) for event in events] == [(first.id, b"one", ())]

    async def other() -> None:
        async with AsyncClient.connect(cluster.directory) as client:
            await asyncio.gather(*(client.graph("faces").append(b"%d" % number) for number in range(50)))
            seen = [event async for event in client.graph("faces").read()]
            assert sorted(event.value for event in seen) == sorted([b"one", *(b"%d" % n for n in range(50))])
            assert [(event.height, event.id) for event in seen] == sorted((e.height, e.id) for e in seen)

    asyncio.run(other())


def _command_line(cluster: Cluster) -> None:
    where = ("--stream", "lines", "--cluster", cluster.directory)
    written = json.loads(shell("graph", "append", "hello", *where))
    until(lambda: bool(shell("graph", "read", "--node", "3", *where)), "node 3 shows it as read")
    (line,) = shell("graph", "read", "--node", "3", *where, "--output", "json").splitlines()
    shown = json.loads(line)
    assert shown["id"] == written["id"]
    assert shown["value"] == "hello"
    assert {"id", "parents", "author", "timestamp", "value", "read", "confirms"} <= shown.keys()
    assert "visible ASCII" in shell("graph", "append", "x", "--stream", "a b", "--cluster", cluster.directory, code=2)


def _follow_to_another_node(cluster: Cluster) -> None:
    """The reader's node is killed; it goes on at another, without a gap and without anything twice."""
    seen: list[bytes] = []
    with (
        Client.connect(cluster.directory, timeout=PATIENCE_S) as reader,
        Client.connect(cluster.directory, node=1, timeout=PATIENCE_S) as writer,
    ):

        def follow() -> None:
            """Until there are as many as were written: one twice would be one too few of the others."""
            for event in reader.graph("followed").read(follow=True, timeout=PATIENCE_S):
                seen.append(event.value)
                if len(seen) == FOLLOWED:
                    return

        writer.graph("followed").append(b"0")
        thread = threading.Thread(target=follow)
        thread.start()
        for number in range(1, FOLLOWED):
            writer.graph("followed").append(b"%d" % number)
            if number == 20:
                served = reader.status()["id"]
                if served != 1:
                    cluster[served].kill()
                    cluster[served].start()
        thread.join(2 * PATIENCE_S)
    assert sorted(seen, key=int) == [b"%d" % number for number in range(FOLLOWED)]
