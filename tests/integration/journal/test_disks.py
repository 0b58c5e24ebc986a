"""A disk that fails ends its node; one that is full is refused, by name, until there is room."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from chaplain import Client
from chaplain.errors import DiskFull
from tests.integration.journal.support import disks
from tests.integration.journal.support.history import STREAM, judge, read_all
from tests.integration.journal.support.scenes import Load, find_master, status, three, wait_until_same
from tests.support.process_cluster import PATIENCE_S, founded, until

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.root,
    pytest.mark.skipif(bool(disks.missing()), reason=disks.missing()),
]
HALTED = 1
SMALL = f"[journal]\nsegment_bytes = {disks.MIB}\nroom_bytes_min = {4 * disks.MIB}"


def test_failed_sync_ends_the_node_without_a_retry(tmp_path: Path) -> None:
    with three(tmp_path / "three") as cluster:
        load = Load(cluster)
        victim = find_master(cluster)
        assert victim.process is not None
        with disks.syncs_fail(victim, tmp_path / "trace"):
            code = victim.process.wait(PATIENCE_S)
        victim.process = None
        assert code == HALTED
        (halted,) = victim.lines("halted")
        assert "Input/output error" in halted["reason"]
        assert halted["level"] == "error"
        assert disks.failed_syncs(tmp_path / "trace") == 1, "a failed sync was tried again"
        load.await_progress()  # the other two go on
        others = cluster.others(victim.number)
        histories = [writer.end() for writer in load.writers]
        until(
            lambda: len({status(node).get("chain") for node in others} - {None}) == 1, "the others have the same chain"
        )
        judge(histories, {node.number: read_all(cluster.directory, node.number) for node in others})
        victim.start()  # the disk was replaced, say: what it kept is what it had promised
        wait_until_same(cluster)
        judge(histories, {node.number: read_all(cluster.directory, node.number) for node in cluster})


def test_full_disk_refuses_writes_by_name_and_recovers(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(founded(tmp_path / "three", 3, settings=SMALL))
        small = {
            node.number: stack.enter_context(disks.SmallDisk(node.folder / "segments", 24 * disks.MIB))
            for node in cluster
        }
        stack.callback(cluster.end)
        cluster.start()
        cluster.wait_until_whole()
        victim = find_master(cluster)
        values = [b"%d" % number for number in range(6)]
        with Client.connect(cluster.directory, node=victim.number, timeout=30) as client:
            client.journal(STREAM).write(values[0])
            small[victim.number].fill()
            until(lambda: bool(status(victim).get("disk_full")), "the node knows that its disk is full")
        with Client.connect(cluster.directory, timeout=30) as client:
            client.journal(STREAM).write(values[1])  # two of three have room
        with Client.connect(cluster.directory, node=victim.number, timeout=4) as client:
            with pytest.raises(DiskFull, match=f"disk of node {victim.number} is full"):
                client.journal(STREAM).write(b"never to be written")
            assert values[0] in [message.value for message in client.journal(STREAM).read()]
        for disk in small.values():
            disk.fill()
        until(lambda: all(status(node).get("disk_full") for node in cluster), "every disk is full")
        with Client.connect(cluster.directory, timeout=4) as client:
            with pytest.raises(DiskFull, match=r"disk of node \d is full: make room there"):
                client.journal(STREAM).write(b"never to be written, either")
            assert [message.value for message in client.journal(STREAM).read()]
            for disk in small.values():
                disk.make_room()
            until(lambda: not any(status(node).get("disk_full", True) for node in cluster), "there is room again")
        with Client.connect(cluster.directory, timeout=30) as client:
            for value in values[2:]:
                client.journal(STREAM).write(value)
        wait_until_same(cluster)
        readings = [read_all(cluster.directory, node.number) for node in cluster]
        assert [message.value for message in readings[0]] == values
        assert readings[0] == readings[1] == readings[2]
        for node in cluster:
            node.check()
