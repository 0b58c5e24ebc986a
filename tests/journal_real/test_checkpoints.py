"""Real nodes drop what a checkpoint covers, and one that was wiped comes back by the checkpoint while others write."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.harness import Cluster, Node, until
from tests.journal_real.catch_up import log_of, wipe
from tests.journal_real.scenes import Load, status, three, wait_until_same

from chaplain import Client
from chaplain.errors import Dropped
from chaplain.pipeline.compress import Broken, Freed, compress
from chaplain.pipeline.verify import prove

SMALL = "[journal]\nsegment_bytes = 65536\n"
STREAM = "bulk"
VALUE = bytes(4000)
ROWS, THROUGH = 60, 50


def size_of(node: Node) -> int:
    return sum(file.stat().st_size for file in (node.folder / "segments").glob("journal-*.segment"))


def fill(client: Client) -> None:
    """Statements, then rows."""
    client.sql("main").execute("create table t (a integer primary key, b text)")
    for number in range(20):
        client.sql("main").execute("insert into t values (?, ?)", [number, "x" * 100])
    for _ in range(ROWS):
        client.journal(STREAM).write(VALUE)


def compact(cluster: Cluster) -> list[Freed]:
    """Fill the log and have it dropped up to an offset of a stream."""
    with Client.connect(cluster.directory, timeout=60) as client:
        fill(client)
        wait_until_same(cluster)
        before = {node.number: size_of(node) for node in cluster}
        freed = compress(None, cluster=str(cluster.directory), stream=STREAM, through=THROUGH, wait=180)
        assert [one.node for one in freed] == [1, 2, 3]
        assert all(one.done and one.segments and one.bytes for one in freed)
        assert all(size_of(node) < before[node.number] for node in cluster), "disk use did not fall"
        first = {one.stream: one.first_offset for one in client.streams()}[STREAM]
        assert 0 < first <= THROUGH + 1, "more went than was released, or nothing"
    return freed


def test_a_wiped_node_comes_back_by_the_checkpoint(tmp_path: Path) -> None:
    with three(tmp_path / "three", SMALL) as cluster:
        compact(cluster)
        assert not prove(None, cluster=str(cluster.directory), signatures=True).breaks
        victim = cluster[3]
        load = Load(cluster, writers=2)
        victim.kill()
        wipe(victim)
        load.await_progress()
        victim.start()
        until(lambda: bool(victim.lines("starting again")), "it took a checkpoint from the others")
        until(lambda: status(victim).get("standing") == "sound", "it has a vote again")
        load.await_progress()
        for writer in load.writers:
            writer.end()
        wait_until_same(cluster)

        def fingerprints() -> set[str]:
            found = [status(node).get("databases", {}).get("main", {}) for node in cluster]
            return {one.get("fingerprint", "") for one in found if one.get("state") == "idle"} if all(found) else set()

        until(lambda: len(fingerprints()) == 1 and len(fingerprints() - {""}) == 1, "all databases are the same")
        with Client.connect(cluster.directory, node=victim.number, timeout=60) as client:
            assert client.sql("main").query("select count(*) as n from t")[0]["n"] == 20
            with pytest.raises(Dropped, match="the first one kept is"):
                list(client.journal(STREAM).read(start=0))
            offsets = [message.offset for message in client.journal(STREAM).read()]
            assert offsets == list(range(ROWS - len(offsets), ROWS))
        assert not prove(None, cluster=str(cluster.directory), signatures=True).breaks


def test_a_log_that_does_not_hold_is_left_as_it_is(tmp_path: Path) -> None:
    with three(tmp_path / "three", SMALL) as cluster:
        with Client.connect(cluster.directory, timeout=60) as client:
            for _ in range(ROWS):
                client.journal(STREAM).write(VALUE)
        wait_until_same(cluster)
        for node in cluster:
            first = min((node.folder / "segments").glob("journal-*.segment"))
            with first.open("r+b") as file:
                file.seek(30_000)
                file.write(b"not what was written")
        with pytest.raises(Broken, match="nothing is dropped") as broken:
            compress(None, cluster=str(cluster.directory), stream=STREAM)
        assert broken.value.breaks
        assert all(log_of(node)["first"] == 1 and not log_of(node)["checkpoint"] for node in cluster)
