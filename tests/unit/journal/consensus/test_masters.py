"""Who is master of the order, step by step: replaced, alone, stale, leaving."""

from __future__ import annotations

import pytest

from chaplain.core import Drained
from chaplain.journal.consensus.events import PeerDown, Role
from chaplain.journal.messages.cluster import decode_body
from chaplain.journal.messages.consensus import AgreedMark, AskVote, Canvassed, Fetch, MarkHeard, Propose
from tests.support.consensus_cluster import Cluster, elected


@pytest.fixture
def cluster() -> Cluster:
    return elected()


def test_killed_master_is_replaced_within_a_fraction_of_a_second(cluster: Cluster) -> None:
    cluster.kill(cluster.master().node)
    cluster.run(0.6)
    assert cluster.master().core.regime >= 2
    cluster.arrive()
    cluster.settle()
    assert cluster.master().agreed[-1].payloads


def test_refused_candidate_canvasses_again_soon(cluster: Cluster) -> None:
    """The only one who may win asks before the other has noticed, and is refused."""
    master = cluster.master()
    a, b = cluster.followers()
    cluster.arrive()
    master.step(Drained())
    cluster.wires[master.node, b].clear()
    cluster[a].hear(master.node, master.said(a)[-1])
    cluster[a].write()
    assert cluster[a].core.last_index == cluster[b].core.last_index + 1  # type: ignore[operator]
    cluster[b].hear(master.node, AgreedMark(1, *cluster[b].core.agreed))
    cluster.kill(master.node, told=False)
    cluster[a].step(PeerDown(master.node))
    cluster.run(0.02)
    assert cluster[a].core.role is Role.CANDIDATE
    cluster[b].step(PeerDown(master.node))
    cluster.run(0.4)
    assert cluster.master().node == a


def test_request_to_a_dead_master_is_repeated_to_the_next_at_once(cluster: Cluster) -> None:
    """Half a second of every failover was spent on the answer of one who was dead."""
    master, (a, b) = cluster.master(), cluster.followers()
    cluster.cut |= {(master.node, a)}
    for _ in range(2):
        cluster.arrive()
        cluster.settle()
    cluster.cut.clear()
    cluster[a].hear(master.node, AgreedMark(1, *master.core.agreed))
    assert isinstance(cluster[a].said(master.node)[-1], Fetch)
    cluster.kill(master.node)
    cluster.run(0.3)
    assert cluster.master().node == b
    assert cluster[a].core.agreed == cluster[b].core.agreed


@pytest.mark.parametrize("regime", [0xFFFFFFFE, 0xFFFFFFFF])
def test_message_with_the_last_regime_does_not_exhaust_regimes(cluster: Cluster, regime: int) -> None:
    """Whoever is told of the last regime there is neither dies of it nor goes there."""
    liar = cluster.master().node
    for node in cluster.followers():
        cluster[node].hear(liar, MarkHeard(regime, 1, 1))
        cluster[node].hear(liar, Canvassed(1, False, regime))
        cluster[node].hear(liar, AskVote(regime, 0, 0, False))
    cluster.kill(liar)
    cluster.run(3)
    assert cluster.master().core.regime < 10


def test_silent_master_is_replaced_after_the_election_timeout(cluster: Cluster) -> None:
    old = cluster.master().node
    cluster.kill(old, told=False)
    cluster.run(0.8)
    assert not [host for host in cluster.up() if host.core.role is Role.MASTER]
    cluster.run(2.5)
    assert cluster.master().core.regime == 2


def test_isolated_master_steps_down(cluster: Cluster) -> None:
    master = cluster.master()
    for node in cluster.followers():
        cluster.cut |= {(node, master.node), (master.node, node)}
    cluster.run(1.5)
    assert master.core.role is not Role.MASTER


@pytest.mark.parametrize("deaf", [True, False])
def test_one_way_cut_changes_no_master(cluster: Cluster, deaf: bool) -> None:
    master, node = cluster.master(), cluster.followers()[0]
    cluster.cut.add((master.node, node) if deaf else (node, master.node))
    for _ in range(20):
        cluster.arrive()
        cluster.run(0.5)
    assert cluster.master() is master
    assert cluster.master().core.regime == 1
    assert master.agreed[-1].payloads


def test_inherited_tail_is_proposed_again_with_the_same_bytes(cluster: Cluster) -> None:
    master = cluster.master()
    a, _ = cluster.followers()
    cluster.arrive()
    master.step(Drained())
    original = next(m for m in master.said(a) if isinstance(m, Propose))
    cluster[a].hear(master.node, original)
    cluster[a].write()
    cluster.kill(master.node)
    cluster.run(0.5)
    assert cluster.master().node == a, "the longer log must win"
    assert cluster.master().core.regime >= 2
    again = cluster.master().agreed[original.index - 1]
    assert again.ballot == cluster.master().core.regime
    assert again.body == decode_body(original.body)
    assert again.body.regime == 1
    opening = cluster.master().agreed[original.index]
    assert opening.body.regime == cluster.master().core.regime
    cluster.restart(master.node)
    cluster.run(1)
    assert len({host.core.agreed for host in cluster.up()}) == 1


def test_uncommitted_message_is_replaced_by_the_new_masters_proposal(cluster: Cluster) -> None:
    master = cluster.master()
    cluster.arrive()
    master.step(Drained())
    master.write()
    cluster.kill(master.node)
    cluster.run(1)
    cluster.arrive()
    cluster.settle()
    assert cluster.master().agreed[-1].payloads
    cluster.restart(master.node)
    assert master.core.agreed[0] < cluster.master().core.agreed[0]
    cluster.run(1)
    assert len({host.core.agreed for host in cluster.up()}) == 1
    assert cluster.master().node != master.node


def test_stale_master_is_informed_and_steps_down(cluster: Cluster) -> None:
    master, node = cluster.master(), cluster.followers()[0]
    master.hear(node, MarkHeard(5, 1, 1))
    assert master.core.role is Role.FOLLOWER
    follower = cluster[node]
    follower.hear_proof(master.node, 3, *cluster.nodes)
    follower.hear(master.node, AgreedMark(3, *follower.core.agreed))
    follower.hear(master.node, AgreedMark(2, *follower.core.agreed))
    answers = [m for m in follower.said(master.node) if isinstance(m, MarkHeard)]
    assert answers[-1].regime == 3
