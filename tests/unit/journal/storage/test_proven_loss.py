"""A record that was acknowledged and is damaged on the same boot is no torn write: it is lost, never passed over."""

from __future__ import annotations

import pytest

from chaplain.journal.consensus.events import Role
from chaplain.journal.consensus.hard_state import VotingState
from tests.support.consensus_cluster import Cluster
from tests.unit.journal.storage.consensus_disks import SEGMENT, damage, follower, positions, state


def acknowledged_by_two() -> tuple[Cluster, list[int], tuple[int, bytes]]:
    """Three nodes, all down; the last message was agreed by the two that are named, and the third never saw it."""
    cluster = Cluster(3)
    cluster.run(3)
    cluster.arrive()
    cluster.run(0.05)
    third = next(host.node for host in cluster.up() if host.core.role is Role.FOLLOWER)
    cluster.kill(third)
    cluster.arrive()
    cluster.settle()
    agreed = cluster.master().core.agreed
    holders = [host.node for host in cluster.up()]
    for node in holders:
        cluster.kill(node, told=False)
    assert cluster[third].core.agreed[0] < agreed[0]
    return cluster, holders, agreed


@pytest.mark.parametrize("how", ["flipped", "deleted"])
def test_two_of_three_nodes_that_lost_acknowledged_messages_elect_no_master(how: str) -> None:
    cluster, holders, _ = acknowledged_by_two()
    for node in holders:
        if how == "flipped":
            damage(cluster[node], positions(cluster[node])[-1][0] + 60)
        else:
            del cluster[node].files[SEGMENT]
    for _ in range(2):  # and not after another restart either
        for node in cluster.nodes:
            cluster.restart(node)
        cluster.run(12)
        assert not [host.node for host in cluster.up() if host.core.role is Role.MASTER]
        for node in holders:
            assert cluster[node].core.role is Role.OUT
            assert state(cluster[node]) is VotingState.LOST
            reports = [report for report in cluster[node].reports if "no vote until caught up" in report.event]
            assert any("held" in report.detail for report in reports)
        for node in cluster.nodes:
            cluster.kill(node, told=False)


def test_one_of_three_nodes_that_lost_a_message_fetches_it_again() -> None:
    cluster, holders, agreed = acknowledged_by_two()
    damage(cluster[holders[0]], positions(cluster[holders[0]])[-1][0] + 60)
    for node in cluster.nodes:
        cluster.restart(node)
    cluster.run(8)
    assert {state(host) for host in cluster.up()} == {VotingState.SOUND}
    assert {host.core.agreed for host in cluster.up()} == {cluster.master().core.agreed}
    assert any(message.hash == agreed[1] for message in cluster[holders[0]].agreed)


@pytest.mark.parametrize("boot", [b"boot            ", b"another boot    "])
def test_log_that_ends_before_its_jot_is_lost_on_the_same_boot_only(boot: bytes) -> None:
    """On another boot the jot may have reached the disk before records that were never synced."""
    cluster = Cluster(3)
    cluster.run(3)
    cluster.arrive()
    cluster.run(0.05)
    host = follower(cluster)
    before = bytes(host.files[SEGMENT])
    cluster.arrive()
    cluster.settle()
    cluster.kill(host.node)
    host.files[SEGMENT][:] = before  # the disk lost the last write, and the record that ends the log stands there still
    host.boot = boot
    cluster.restart(host.node)
    host.write()
    assert state(host) is (VotingState.LOST if boot == b"boot            " else VotingState.SOUND)
    cluster.run(3)
    assert state(host) is VotingState.SOUND
    assert host.core.agreed == cluster.master().core.agreed


def test_message_that_one_of_two_holders_lost_to_its_disk_is_not_replaced() -> None:
    """The third never had it, and the other holder is down: nobody may be elected, or the message would be another."""
    cluster = Cluster(3)
    cluster.run(3)
    cluster.arrive()
    cluster.run(0.05)
    master, (victim, third) = cluster.master(), cluster.followers()
    before = bytes(cluster[victim].files[SEGMENT])
    cluster.cut |= {(master.node, third)}
    cluster.arrive()
    cluster.settle()
    agreed = master.core.agreed
    assert cluster[third].core.agreed[0] < agreed[0]
    for node in cluster.nodes:
        cluster.kill(node, told=False)
    cluster[victim].files[SEGMENT][:] = before
    cluster.cut.clear()
    for node in (victim, third):
        cluster.restart(node)
    cluster.run(12)
    assert not [host.node for host in cluster.up() if host.core.role is Role.MASTER]
    assert state(cluster[victim]) is VotingState.LOST
    cluster.restart(master.node)
    cluster.run(8)
    assert state(cluster[victim]) is VotingState.SOUND
    assert any(message.hash == agreed[1] for message in cluster[third].agreed)


def test_node_in_doubt_forms_no_quorum_with_one_that_lost_records() -> None:
    """Of two holders one is lost and one in doubt; the third answers that it is sound, and never had the message."""
    cluster, (lost, doubtful), _ = acknowledged_by_two()
    for node in (lost, doubtful):
        damage(cluster[node], positions(cluster[node])[-1][0] + 60)
    cluster[doubtful].boot = b"another boot    "
    for node in cluster.nodes:
        cluster.restart(node)
    cluster.run(12)
    assert state(cluster[lost]) is VotingState.LOST
    assert state(cluster[doubtful]) is VotingState.DOUBTFUL
    assert not [host.node for host in cluster.up() if host.core.role is Role.MASTER]


@pytest.mark.parametrize("content", [b"", bytes(44)])
def test_empty_hint_counts_as_the_effect_of_a_power_cut(content: bytes) -> None:
    cluster = Cluster(3)
    cluster.run(3)
    host = follower(cluster)
    cluster.kill(host.node)
    host.files["journal.jot"][:] = content
    cluster.restart(host.node)
    host.write()
    assert state(host) is VotingState.SOUND


def test_damaged_jot_takes_the_vote_until_caught_up() -> None:
    """It may have been the only evidence that the disk lost a record."""
    cluster = Cluster(3)
    cluster.run(3)
    host = follower(cluster)
    cluster.kill(host.node)
    host.files["journal.jot"][30] ^= 1
    cluster.restart(host.node)
    host.write()
    assert state(host) is VotingState.DOUBTFUL
    cluster.run(3)
    assert state(host) is VotingState.SOUND


def lose_the_beginning(cluster: Cluster, node: int) -> None:
    """Its first segment is gone when it comes back; it fetches what was there."""
    cluster.kill(node)
    del cluster[node].files[min(name for name in cluster[node].files if name.endswith(".segment"))]
    cluster.restart(node)
    assert cluster[node].core.voting_status.startswith("lost")
    cluster.run(8)
    assert state(cluster[node]) is VotingState.SOUND


def several_segments() -> Cluster:
    cluster = Cluster(3)
    cluster.run(3)
    while not all(sum(name.endswith(".segment") for name in host.files) > 2 for host in cluster.up()):
        for _ in range(40):
            cluster.arrive()
        cluster.settle()
    return cluster


def test_log_start_that_was_fetched_again_counts_as_present_after_a_restart() -> None:
    cluster = several_segments()
    victim = follower(cluster)
    lose_the_beginning(cluster, victim.node)
    cluster.kill(victim.node)
    agreed = victim.core.agreed
    cluster.restart(victim.node)
    assert victim.core.voting_status == "sound"
    assert victim.core.agreed == agreed
    assert not [report for report in victim.reports if "no vote" in report.event]


def test_cluster_continues_after_two_nodes_fetched_their_log_start_in_turn() -> None:
    cluster = several_segments()
    for node in (3, 2):
        lose_the_beginning(cluster, node)
    agreed = cluster.master().core.agreed[0]
    for node in cluster.nodes:
        cluster.kill(node, told=False)
    for node in cluster.nodes:
        cluster.restart(node)
    cluster.run(5)
    assert {state(host) for host in cluster.up()} == {VotingState.SOUND}
    assert cluster.master().core.agreed[0] >= agreed
