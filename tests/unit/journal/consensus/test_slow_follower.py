"""A follower that is slower than the others: it takes up proposals in their order, and fetches nothing that comes."""

from __future__ import annotations

import pytest

from chaplain.core import Drained, Woken
from chaplain.journal.consensus.events import PayloadArrived
from chaplain.journal.consensus.follower import WAITING_MAX
from chaplain.journal.messages.consensus import Fetch, ProposalAck, Propose
from tests.support.consensus_cluster import MILLISECOND, Cluster, ConsensusHost, elected


@pytest.fixture
def cluster() -> Cluster:
    return elected()


def go_ahead(cluster: Cluster, count: int, lost: int = 0) -> tuple[ConsensusHost, ConsensusHost, list[PayloadArrived]]:
    """The master and a quick follower agree on some messages; a slow one hears the proposals, and lacks payloads."""
    master = cluster.master()
    quick, slow = (cluster[node] for node in cluster.nodes if node != master.node)
    arrived = []
    for number in range(1, count + 1):
        for wire in cluster.wires.values():
            wire.clear()
        arrived.append(cluster.arrive(master.node, quick.node))
        master.step(Drained())
        master.write()
        proposal = next(message for message in master.said(quick.node) if isinstance(message, Propose))
        quick.hear(master.node, proposal)
        quick.write()
        master.hear(quick.node, next(said for said in quick.said(master.node) if isinstance(said, ProposalAck)))
        if number != lost:
            slow.hear(master.node, proposal)
    return master, slow, arrived


def test_proposals_are_queued_while_payloads_are_on_the_way(cluster: Cluster) -> None:
    master, slow, arrived = go_ahead(cluster, 3)
    before = slow.core.agreed[0]
    assert master.core.agreed[0] == before + 3
    slow.hear(master.node, next(said for said in master.said(slow.node) if isinstance(said, Propose)))  # once more
    for payload in arrived:
        slow.step(payload)
    while slow.persists:
        slow.write()
    said = slow.said(master.node)
    assert [one.index for one in said if isinstance(one, ProposalAck)] == [before + 1, before + 2, before + 3]
    assert not any(isinstance(one, Fetch) for one in said)
    assert slow.core.agreed[0] == before + 2, "the last one is agreed when the next message, or a mark, says so"


def test_payload_that_does_not_arrive_in_time_is_fetched(cluster: Cluster) -> None:
    master, slow, _ = go_ahead(cluster, 2)
    before = slow.core.agreed[0]
    assert not slow.said(master.node)
    due_ns = slow.core.deadline()
    assert due_ns is not None
    assert due_ns <= cluster.now_ns + slow.settings.retry_ns
    cluster.now_ns += slow.settings.retry_ns
    slow.step(Woken())
    assert [one.index for one in slow.said(master.node) if isinstance(one, Fetch)] == [before + 1]
    cluster.settle()
    assert slow.core.agreed[0] >= before + 1


def test_messages_before_a_gap_in_the_queue_are_fetched_at_once(cluster: Cluster) -> None:
    """More are waiting than stand in line: the first were pushed out."""
    master, slow, arrived = go_ahead(cluster, WAITING_MAX + 1)
    before = slow.core.agreed[0]
    assert [one.index for one in slow.said(master.node) if isinstance(one, Fetch)] == [before + 1]
    for payload in arrived:
        slow.step(payload)
    cluster.settle()
    cluster.now_ns += 10 * MILLISECOND
    cluster.run(0.1)
    assert slow.core.agreed[0] == master.core.agreed[0]


def test_lost_proposal_ends_the_queue(cluster: Cluster) -> None:
    master, slow, _ = go_ahead(cluster, 3, lost=2)
    before = slow.core.agreed[0]
    assert [one.index for one in slow.said(master.node) if isinstance(one, Fetch)] == [before + 1]


def test_proposal_of_another_regime_ends_the_queue(cluster: Cluster) -> None:
    master, slow, arrived = go_ahead(cluster, 2)
    before = slow.core.agreed[0]
    cluster.kill(master.node)
    cluster.run(5)
    assert cluster.master().core.regime > 1
    for payload in arrived:
        slow.step(payload)
    cluster.settle()
    cluster.run(1)
    assert len({host.core.agreed for host in cluster.up()}) == 1
    assert slow.core.agreed[0] > before + 2
