"""What a serializer's disk is made to sync: real files, and a page cache that holds more than the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaplain.core import Drained, Persist, WriteAt
from chaplain.journal.messages.cluster import genesis
from chaplain.journal.messages.consensus import ProposalAck, Propose
from chaplain.journal.model.records import LogPosition
from chaplain.journal.storage.log import SYNC_HINTS_UNSYNCED_MAX
from chaplain.journal.storage.recovery import recover
from chaplain.runtime.disk.operations import DataFiles
from chaplain.runtime.disk.syscalls import DataDirectory
from simulator.world.disk import apply, segments_of
from tests.support.consensus_cluster import Cluster, ConsensusHost, elected
from tests.unit.journal.storage.consensus_disks import SEGMENT, follower

JOT = "journal.jot"


class RecordingDisk(DataDirectory):
    """Knows which files were written since they were synced last, and how often."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.names: dict[int, str] = {}
        self.unsynced: dict[str, int] = {}
        self.syncs: list[str] = []

    def open(self, name: str, flags: int) -> int:
        descriptor = super().open(name, flags)
        self.names[descriptor] = name
        return descriptor

    def write(self, fd: int, data: bytes, position: int) -> None:
        super().write(fd, data, position)
        self.unsynced[self.names[fd]] = self.unsynced.get(self.names[fd], 0) + 1

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.unsynced.pop(self.names[fd], None)
        self.syncs.append(self.names[fd])


def test_hint_is_synced_with_every_mark_and_after_a_bounded_number_of_messages(tmp_path: Path) -> None:
    cluster = elected()
    host = cluster.master()
    persists: list[Persist] = []
    write = host.write

    def kept() -> None:
        persists.append(host.persists[0])
        write()

    host.write = kept  # type: ignore[method-assign]
    for _ in range(3 * SYNC_HINTS_UNSYNCED_MAX):
        cluster.arrive()
        cluster.settle()
    cluster.run(0.1)
    disk = RecordingDisk(str(tmp_path))
    files = DataFiles(disk)
    for persist in persists:
        for operation in persist.operations:
            files.perform(operation)
        files.sync()
        jots = [one for one in persist.operations if isinstance(one, WriteAt) and one.file == JOT]
        if any(not jot.lazy for jot in jots):
            assert JOT not in disk.unsynced, "a jot that is to be synced is not"
        assert disk.unsynced.get(JOT, 0) <= SYNC_HINTS_UNSYNCED_MAX
        assert set(disk.unsynced) <= {JOT}, "everything else is synced with its ticket"
    files.close()
    assert disk.syncs.count(JOT) >= 3
    assert len(persists) > 3 * SYNC_HINTS_UNSYNCED_MAX


def propose_to(cluster: Cluster, host: ConsensusHost) -> Propose:
    """A payload comes, and the master's proposal of it reaches the follower, which has not written it yet."""
    master = cluster.master()
    cluster.arrive()
    master.step(Drained())
    proposals = [one for one in master.said(host.node) if isinstance(one, Propose)]
    cluster.wires[master.node, host.node].clear()
    host.hear(master.node, proposals[-1])
    assert host.persists
    return proposals[-1]


def messages_on(media: dict[str, bytearray]) -> dict[int, bytes]:
    """What a log holds that is read after a power cut: hashes by index."""
    files = {name: bytes(data) for name, data in media.items()}
    found = recover("journal", segments_of(files), None, b"another boot    ", LogPosition(0, 0, 0, genesis("tested")))
    return {index: group.first.chain_hash for index, group in found.groups.items()}


@pytest.mark.parametrize("rolls", [False, True])
def test_record_only_in_the_page_cache_is_synced_before_it_is_acknowledged(rolls: bool) -> None:
    """The sync of a proposal failed, and the process starts again on the same boot: it reads the record back."""
    cluster = elected()
    host, master = follower(cluster), cluster.master()
    while True:
        cluster.arrive()
        cluster.settle()
        proposed = propose_to(cluster, host)
        written = {one.file for one in host.persists[-1].operations if isinstance(one, WriteAt)}
        if not rolls or not written <= host.files.keys():
            break
        cluster.settle()
    media = {name: bytearray(data) for name, data in host.files.items()}
    for operation in host.persists[-1].operations:
        apply(host.files, operation)  # the page cache has it, and the disk has not
    host.start()
    cluster.rise(host)
    assert host.core.last_index == proposed.index
    assert proposed.index not in messages_on(media)
    host.hear(master.node, proposed)
    while not (said := [one for one in host.said(master.node) if isinstance(one, ProposalAck)]):
        for operation in host.persists[0].operations:
            apply(media, operation)
        host.write()
    assert said[-1].index == proposed.index
    assert messages_on(media)[proposed.index] == said[-1].hash


def test_proven_part_of_the_log_is_not_written_again_at_a_start() -> None:
    cluster = elected()
    for _ in range(20):
        cluster.arrive()
        cluster.settle()
    cluster.run(0.1)
    host = follower(cluster)
    cluster.kill(host.node)
    cluster.restart(host.node)
    again = [one for one in host.persists[0].operations if isinstance(one, WriteAt) and one.file == SEGMENT]
    assert again[0].position > host.core.context.log.written // 2
    assert bytes(host.files[SEGMENT][again[0].position :][: len(again[0].data)]) == again[0].data
