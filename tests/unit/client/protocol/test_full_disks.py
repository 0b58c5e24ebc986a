"""Full disks, as a client's journal sees them, over real journal cores."""

from __future__ import annotations

import pytest

from chaplain.client.protocol.call_events import Failure
from chaplain.client.protocol.journal.events import NodeSpoke, WritesAcknowledged
from chaplain.journal.consensus.events import DiskSpace
from chaplain.journal.messages.client import NotWritten, Write
from tests.unit.client.journal_stage import Bench, Cluster

PLENTY = 1 << 40


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(3)
    made.elect()
    return made


def tell(cluster: Cluster, free_bytes: int, *nodes: int) -> None:
    for node in nodes:
        cluster.nodes[node].inbox.append(DiskSpace(free_bytes))
    cluster.settle()


def values(bench: Bench) -> list[bytes]:
    return [message.value for message in bench.messages("orders")]


def test_write_refused_by_a_full_disk_moves_to_a_node_with_space(cluster) -> None:
    chosen, other = [node for node in cluster.numbers if node != cluster.master]
    bench = Bench(cluster, chosen, other)
    bench.end(bench.write(b"a"))
    tell(cluster, 0, chosen)
    assert bench.end(bench.write(b"b", wait_s=2)).place.base_offset == 1
    fresh = Bench(cluster, chosen, other)
    assert isinstance(fresh.end(fresh.write(b"c", wait_s=2)), WritesAcknowledged), "a lane, too, is leased elsewhere"


def test_write_refused_by_every_full_node_raises_disk_full_and_is_never_written(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    bench.end(bench.write(b"a"))
    tell(cluster, 0, 1, 2, 3)
    first, second = bench.write(b"b", wait_s=2), bench.write(b"c", wait_s=300)
    told = bench.end(first)
    assert told.failure is Failure.DISK_FULL
    assert "not written" in told.reason
    assert "disk of node" in told.reason
    assert values(bench) == [b"a"], "reading goes on"
    tell(cluster, PLENTY, 1, 2, 3)
    assert isinstance(bench.end(second), WritesAcknowledged), "who waits longer is written under another lane"
    assert values(bench) == [b"a", b"c"]


def test_first_write_without_a_lane_raises_disk_full_when_all_nodes_are_full(cluster) -> None:
    tell(cluster, 0, 1, 2, 3)
    bench = Bench(cluster, 1, 2)
    assert bench.end(bench.write(b"a", wait_s=2)).failure is Failure.DISK_FULL


def test_write_whose_copy_may_still_arrive_raises_unknown_when_disks_are_full(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    bench.end(bench.write(b"a"))
    cluster.cut |= {(one, other) for one in (1, 2, 3) for other in (1, 2, 3)}
    call = bench.write(b"b", wait_s=8)
    bench.settle()  # taken by one node, and ordered by nobody
    tell(cluster, 0, 1, 2, 3)
    told = bench.end(call)
    assert told.failure is Failure.UNKNOWN
    assert "full" in told.reason
    cluster.cut.clear()
    tell(cluster, PLENTY, 1, 2, 3)
    written = isinstance(bench.end(bench.resolve(*told.request)), WritesAcknowledged)
    bench.end(bench.write(b"c"))
    assert values(bench) == ([b"a", b"b", b"c"] if written else [b"a", b"c"])


def test_lost_receipt_can_be_read_from_a_full_node(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    bench.end(bench.write(b"a"))
    bench.deaf = True
    call = bench.write(b"b", wait_s=20)
    bench.settle()
    tell(cluster, 0, 1, 2, 3)
    bench.deaf = False
    bench.disconnect(next(iter(bench.sessions)))
    assert bench.end(call).place.base_offset == 1


def test_refusal_for_another_reason_does_not_count_as_full_disk(cluster) -> None:
    bench = Bench(cluster, 1)
    bench.end(bench.write(b"a"))
    refusal = NotWritten(1, 2, 1, "not_ingest", "this node takes no writes", 2)

    def refuse(to_node: bool, message: object) -> int:
        if isinstance(message, Write):
            bench.give(NodeSpoke(next(iter(bench.sessions)), refusal, b""))
            return 0
        return 1

    bench.spoil = refuse
    told = bench.end(bench.write(b"b", wait_s=2))
    assert told.failure is Failure.UNKNOWN
    assert "this node takes no writes" in told.reason


def test_full_node_refuses_packs_and_config_requests_with_its_name(cluster) -> None:
    seen: list[NotWritten] = []
    bench = Bench(cluster, 1)
    bench.end(bench.write(b"a"))
    tell(cluster, 0, 1)

    def note(to_node: bool, message: object) -> int:
        if isinstance(message, NotWritten):
            seen.append(message)
        return 1

    bench.spoil = note
    bench.end(bench.write(b"b", wait_s=2))
    assert {(one.kind, "node 1 " in one.reason) for one in seen} == {("disk_full", True)}
