"""Real nodes: publishers that contend while the holder of the lock is killed, a partition that heals, and beacons."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from chaplain import AsyncClient, Client
from chaplain.pipeline.source.offset_index import OffsetIndex
from chaplain.runtime.cluster.local import pid_of
from tests.integration.sequence.sequence_scenes import (
    STREAM,
    batter,
    first_node_forgets_everybody,
    five,
    refusal,
    sequence_of,
    shown,
    three_by_beacons,
    wait_until_working,
    when_in,
    working,
)
from tests.support import network_namespaces as namespaces
from tests.support.process_cluster import PATIENCE_S, promised, shell, throughout, until

pytestmark = pytest.mark.timeout(240)
KILLS = 4
ERR_S = 6.0


def test_contending_publishers_survive_repeated_kills_of_the_holder(tmp_path: Path) -> None:
    with five(tmp_path / "five", '[record]\nsequence = ["*"]\n') as cluster:
        counts, gaps = batter(cluster, KILLS)
        assert counts["acknowledged"] >= KILLS, "the scene waits for one after each kill"
        first_node_forgets_everybody(cluster)
        where = ("--cluster", cluster.directory, "--stream", "cli")
        assert shown(shell("sequence", "publish", "one", *where)) == [{"number": 1}]
        [read] = shown(shell("sequence", "read", *where))
        assert (read["number"], read["value"], read["publisher"], len(read["hash"])) == (1, "one", "default", 64)
        until(lambda: _all_work(cluster.directory), "`cluster status` shows that all work")
        assert cluster[2].metrics()["sequence_working"] == 1
        asyncio.run(_awaited(cluster.directory))
        until(lambda: _recorded(cluster[4].folder / "segments"), "what was published is in segments")
        for node in cluster:
            node.check()
    print(f"{counts}, gaps {[round(gap, 2) for gap in gaps]}")


def _all_work(directory: Path) -> bool:
    [status] = shown(shell("cluster", "status", "--cluster", directory, "--output", "json"))
    nodes = status["nodes"]
    return all((node["state"], node["sequence"]["work_set"]) == ("WRK", [1, 2, 3, 4, 5]) for node in nodes)


async def _awaited(directory: Path) -> None:
    """Many publishes at once, and a reader that follows."""
    async with AsyncClient.connect(directory, timeout=PATIENCE_S) as client:
        stream = client.sequence("awaited")
        numbers = await asyncio.gather(*(stream.publish(b"%d" % place) for place in range(200)))
        assert sorted(numbers) == list(range(1, 201))
        seen = [event async for event in stream.read(follow=True, stop=201)]
    assert {event.number: event.value for event in seen} == {n: b"%d" % p for p, n in enumerate(numbers)}


def _recorded(segments: Path) -> bool:
    """Records of the tap, as the Spark source finds them."""
    index = OffsetIndex(segments, "sequence")
    index.refresh()
    return sum(place.count for place in index.streams.get("cli", ())) == 1


def test_rolling_restart_loses_no_acknowledged_event(tmp_path: Path) -> None:
    with working(tmp_path / "three", 3) as cluster:
        history = wait_until_working(cluster)
        with Client.connect(cluster.directory, node=1, timeout=PATIENCE_S) as client:
            assert client.sequence(STREAM).publish_many([b"a", b"b", b"c"]) == 1
        for node in cluster:
            node.kill()
            node.start()
            assert wait_until_working(cluster) == history
        for node in cluster:
            where = ("--cluster", cluster.directory, "--stream", STREAM, "--node", str(node.number))
            read = shown(shell("sequence", "read", *where))
            assert [(one["number"], one["value"]) for one in read] == [(1, "a"), (2, "b"), (3, "c")], node
        with Client.connect(cluster.directory, node=3, timeout=PATIENCE_S) as client:
            assert client.sequence(STREAM).publish(b"d") == 4


def test_removed_node_does_not_block_the_others(tmp_path: Path) -> None:
    directory = tmp_path / "removed"
    where = ("--cluster", directory)
    try:
        shell("cluster", "up", "--nodes", "3", "--dir", directory)
        shell("member", "add", *where)
        shell("member", "remove", "1", *where)
        shell("cluster", "down", *where)
        shell("cluster", "up", "--dir", directory)
        assert _states(directory) == dict.fromkeys((2, 3, 4), ("WRK", [2, 3, 4])), "`cluster up` waits for that"
        pid = pid_of(directory / "node-4")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: pid_of(directory / "node-4") is None, "node 4 is gone")
        shell("cluster", "up", "--dir", directory)
        assert _states(directory) == dict.fromkeys((2, 3, 4), ("WRK", [2, 3, 4]))
    finally:
        shell("cluster", "down", *where)


def _states(directory: Path) -> dict[int, tuple[str, list[int]]]:
    [status] = shown(shell("cluster", "status", "--cluster", directory, "--output", "json"))
    return {node["id"]: (node["state"], node["sequence"]["work_set"]) for node in status["nodes"]}


def test_node_of_three_that_restarts_alone_with_beacons_gives_no_number(tmp_path: Path) -> None:
    with three_by_beacons(tmp_path / "three") as cluster:
        history = wait_until_working(cluster)
        with Client.connect(cluster.directory, node=1, timeout=PATIENCE_S) as client:
            assert client.sequence(STREAM).publish_many([b"1", b"2"]) == 1
        for number in (1, 2):
            cluster[number].signal(signal.SIGSTOP)
        cluster[3].kill()
        cluster[3].start()
        until(lambda: bool(sequence_of(cluster[3])), "node 3 is back")
        throughout(6, lambda: sequence_of(cluster[3]).get("state", "DSC") == "DSC", "node 3 works alone")
        assert "DSC" in refusal(cluster.directory, 3)
        for number in (1, 2):
            cluster[number].signal(signal.SIGCONT)
        assert wait_until_working(cluster) == history
        with Client.connect(cluster.directory, node=3, timeout=PATIENCE_S) as client:
            assert client.sequence(STREAM).publish(b"3") == 3


@pytest.mark.root
@pytest.mark.skipif(bool(namespaces.missing()), reason=namespaces.missing())
def test_side_of_three_continues_and_side_of_two_is_in_err(tmp_path: Path) -> None:
    with namespaces.wired(tmp_path / "five", 5) as (cluster, wires):
        history = wait_until_working(cluster)
        wires.split((1, 2), (3, 4, 5))
        cut_s = time.time()
        with wires.inside(3), Client.connect(cluster.directory, node=3, timeout=PATIENCE_S) as client:
            assert client.sequence(STREAM).publish(b"goes on") == 1
        until(lambda: all(when_in(cluster[n], "ERR", cut_s) is not None for n in (1, 2)), "the side of two is in ERR")
        took_s = max((when_in(cluster[number], "ERR", cut_s) or 0.0) - cut_s for number in (1, 2))
        assert took_s <= promised(ERR_S), took_s
        with wires.inside(1):
            assert "of the 5 members" in refusal(cluster.directory, 1)
        assert wait_until_working(cluster, 3, 4, 5) == history
        wires.heal()
        assert wait_until_working(cluster) == history
        until(lambda: sequence_of(cluster[1]).get("streams") == {STREAM: {"head": 1}}, "node 1 has what was published")
    print(f"in ERR after {took_s:.2f} s")
