"""Messages are stored as they came. Their verdicts follow, and are computed again where the disk lacks them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaplain.core import Drained
from chaplain.journal.consensus.events import PayloadArrived, Received
from chaplain.journal.messages import ingest
from chaplain.journal.messages.cluster import Reference
from chaplain.journal.messages.consensus import ProposalAck, Recall
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.storage.log import records_between
from chaplain.journal.storage.records import RecordGroup, group_messages, verdict_of
from chaplain.segment.header import read_headers
from chaplain.segment.layout import NO_OFFSET
from chaplain.segment.read import agreed
from chaplain.segment.record import Head, Kind, Record
from chaplain.segment.scan import scan
from simulator.adapters.consensus_node import TAPE, segments_of
from tests.support.consensus_cluster import Cluster, ConsensusHost, elected
from tests.unit.journal.storage.consensus_disks import SEGMENT, follower

MESSAGES = 6


def arrive(cluster: Cluster) -> None:
    """An ingest message with one pack comes in at all nodes."""
    cluster.payloads += 1
    reference = Reference(9, 1, cluster.payloads)
    payload = ingest.encode(reference, [IngestEntry(TAPE, b"pack %3d" % cluster.payloads * 10)])
    for host in cluster.up():
        host.step(PayloadArrived(reference, ingest.digest_of(payload), payload))


@pytest.fixture
def cluster() -> Cluster:
    made = elected()
    for _ in range(MESSAGES):
        arrive(made)
        made.run(0.05)
    return made


def found(host: ConsensusHost) -> Iterator[tuple[Head, Record]]:
    for _, data in segments_of({name: bytes(octets) for name, octets in host.files.items()}):
        header = read_headers(data).header
        assert header is not None
        yield from scan(data, header).records


def records(host: ConsensusHost) -> list[Record]:
    return [record for _, record in found(host)]


def shown(host: ConsensusHost) -> list[int]:
    """The offsets that a reader of this node's files sees."""
    return [record.first_offset for record in agreed(records(host)) if record.kind == Kind.BATCH]


def read(host: ConsensusHost, index: int) -> RecordGroup | None:
    """The message as this node reads it from its own log."""
    span = host.core.context.log.span(index, 1)
    if span is None:
        return None
    files = [data for _, data in segments_of({name: bytes(octets) for name, octets in host.files.items()})]
    return group_messages(records_between(files, *span)).get(index)


def verdict_at(host: ConsensusHost, index: int) -> Head:
    return next(head for head, record in found(host) if record.kind == Kind.VERDICT and record.index == index)


def last_with_data(host: ConsensusHost) -> int:
    return max(record.index for record in records(host) if record.kind == Kind.BATCH)


def test_follower_acknowledges_after_its_sync_and_executes_after_agreement(cluster: Cluster) -> None:
    master, host = cluster.master(), follower(cluster)
    arrive(cluster)
    applied = host.execution.applied_index
    master.step(Drained())
    wire = cluster.wires[master.node, host.node]
    while wire:
        host.step(Received(master.node, wire.popleft()))
    assert host.persists, "the proposal is being written"
    assert not any(isinstance(message, ProposalAck) for message in host.said(master.node))
    host.write()
    assert any(isinstance(message, ProposalAck) for message in host.said(master.node))
    assert host.execution.applied_index == applied, "a message was executed before it was agreed"
    last = records(host)[-1]
    assert (last.kind, last.first_offset, last.part + 2) == (Kind.BATCH, NO_OFFSET, last.parts)
    cluster.run(0.05)
    assert host.execution.applied_index == applied + 1
    assert shown(host) == [*range(MESSAGES + 1)]


def test_verdict_precedes_every_record_that_proves_its_message(cluster: Cluster) -> None:
    for host in cluster.up():
        judged: set[int] = set()
        for record in records(host):
            if record.kind == Kind.VERDICT:
                judged.add(record.index)
            elif record.index > 1 and (record.kind == Kind.MARK or (record.kind == Kind.META and record.part == 0)):
                assert record.index - (record.kind == Kind.META) in judged
        assert judged == set(range(1, host.core.context.log.agreed + 1))


def test_message_cannot_be_read_from_disk_before_its_verdict_is_there(cluster: Cluster) -> None:
    master = cluster.master()
    arrive(cluster)
    cluster.settle()
    log = master.core.context.log
    assert read(master, log.agreed - 1) is not None
    assert log.durable == log.agreed
    assert log.shown == log.agreed - 1
    assert read(master, log.agreed) is None
    assert shown(master) == [*range(MESSAGES)]
    cluster.run(0.05)
    group = read(master, log.agreed)
    assert group is not None
    assert group.is_whole
    assert shown(master) == [*range(MESSAGES + 1)]


def test_verdict_that_a_crash_prevented_is_written_after_the_restart(cluster: Cluster) -> None:
    master = cluster.master()
    arrive(cluster)
    cluster.settle()
    index = master.core.context.log.agreed
    assert not any(record.kind == Kind.VERDICT and record.index == index for record in records(master))
    cluster.kill(master.node)
    cluster.run(3)
    cluster.restart(master.node)
    cluster.run(3)
    for host in cluster.up():
        assert shown(host) == [*range(MESSAGES + 1)]
        group = read(host, index)
        assert group is not None
        assert group.is_whole


@pytest.mark.parametrize("lacking", [1, 3])
def test_damaged_verdict_is_computed_again_and_not_fetched(cluster: Cluster, lacking: int) -> None:
    """A message in the middle: it is written again with its verdict, because later messages follow it on disk."""
    index = last_with_data(cluster.master()) - 2
    damaged = [host for host in cluster.up() if host.core is not cluster.master().core][: lacking - 1]
    damaged.append(cluster.master())
    expected = verdict_of(read(damaged[0], index).all_records[-1])  # type: ignore[union-attr]
    for host in damaged:
        cluster.kill(host.node)
        head = verdict_at(host, index)
        host.files[SEGMENT][head.end - 9] ^= 1
    asked = []
    for host in damaged:
        assert index - 1 not in shown(host) or len(shown(host)) < MESSAGES
        cluster.restart(host.node)
        asked += [message for other in cluster.nodes if other != host.node for message in host.said(other)]
    cluster.run(3)
    assert not any(isinstance(message, Recall) for message in asked)
    for host in cluster.up():
        group = read(host, index)
        assert group is not None
        assert group.is_whole
        assert verdict_of(group.all_records[-1]) == expected
        assert not any("damaged" in report.event for report in host.reports)


@pytest.mark.parametrize("kept", [0, 8, 100, 200, 330])
def test_torn_verdict_loses_nothing(cluster: Cluster, kept: int) -> None:
    """A power cut tore the write of a verdict and of the mark behind it."""
    host, master = follower(cluster), cluster.master()
    index = last_with_data(host)
    cluster.kill(host.node)
    head = verdict_at(host, index)
    data = host.files[SEGMENT]
    data[head.position + kept :] = bytes(len(data) - head.position - kept)
    host.boot = b"another boot    "
    cluster.restart(host.node)
    cluster.run(3)
    assert host.core.agreed == master.core.agreed
    assert shown(host) == [*range(MESSAGES)]
    arrive(cluster)
    cluster.run(0.1)
    for one in cluster.up():
        assert shown(one) == [*range(MESSAGES + 1)]


def test_verdict_of_a_replaced_message_does_not_count_for_another() -> None:
    message = [
        Record(Kind.META, index=5, chain_hash=b"a" * 32, parts=2),
        Record(Kind.VERDICT, index=5, chain_hash=b"b" * 32, part=1, parts=2),
    ]
    assert not group_messages(message)[5].is_whole
