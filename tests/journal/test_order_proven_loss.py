"""A record that was acknowledged and is damaged on the same boot is no torn write: it is lost, never passed over."""

from __future__ import annotations

import pytest
from order_cluster import Cluster
from order_disks import SEGMENT, damage, follower, positions, state

from chaplain.journal.order_events import Role
from chaplain.journal.standing import State


def acknowledged_by_two() -> tuple[Cluster, list[int], tuple[int, bytes]]:
    """Three nodes, all down; the last message was agreed by the two that are named, and the third never saw it."""
    cluster = Cluster(3)
    cluster.run(3)
    cluster.arrive()
    cluster.run(0.05)
    third = next(desk.node for desk in cluster.up() if desk.core.role is Role.FOLLOWER)
    cluster.kill(third)
    cluster.arrive()
    cluster.settle()
    agreed = cluster.master().core.agreed
    holders = [desk.node for desk in cluster.up()]
    for node in holders:
        cluster.kill(node, told=False)
    assert cluster[third].core.agreed[0] < agreed[0]
    return cluster, holders, agreed


@pytest.mark.parametrize("how", ["flipped", "deleted"])
def test_two_of_three_lost_what_they_acknowledged_and_do_not_go_on(how: str) -> None:
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
        assert not [desk.node for desk in cluster.up() if desk.core.role is Role.MASTER]
        for node in holders:
            assert cluster[node].core.role is Role.OUT
            assert state(cluster[node]) is State.LOST
            reports = [report for report in cluster[node].reports if "no vote until caught up" in report.event]
            assert any("held" in report.detail for report in reports)
        for node in cluster.nodes:
            cluster.kill(node, told=False)


def test_one_of_three_that_lost_it_gets_it_back() -> None:
    cluster, holders, agreed = acknowledged_by_two()
    damage(cluster[holders[0]], positions(cluster[holders[0]])[-1][0] + 60)
    for node in cluster.nodes:
        cluster.restart(node)
    cluster.run(8)
    assert {state(desk) for desk in cluster.up()} == {State.SOUND}
    assert {desk.core.agreed for desk in cluster.up()} == {cluster.master().core.agreed}
    assert any(message.hash == agreed[1] for message in cluster[holders[0]].agreed)


def lose_the_beginning(cluster: Cluster, node: int) -> None:
    """Its first segment is gone when it comes back; it fetches what was there."""
    cluster.kill(node)
    del cluster[node].files[min(name for name in cluster[node].files if name.endswith(".segment"))]
    cluster.restart(node)
    assert cluster[node].core.standing.startswith("lost")
    cluster.run(8)
    assert state(cluster[node]) is State.SOUND


def several_segments() -> Cluster:
    cluster = Cluster(3)
    cluster.run(3)
    while not all(sum(name.endswith(".segment") for name in desk.files) > 2 for desk in cluster.up()):
        for _ in range(40):
            cluster.arrive()
        cluster.settle()
    return cluster


def test_a_beginning_that_was_lost_and_fetched_again_is_there_after_the_next_start() -> None:
    cluster = several_segments()
    victim = follower(cluster)
    lose_the_beginning(cluster, victim.node)
    cluster.kill(victim.node)
    agreed = victim.core.agreed
    cluster.restart(victim.node)
    assert victim.core.standing == "sound"
    assert victim.core.agreed == agreed
    assert not [report for report in victim.reports if "no vote" in report.event]


def test_two_that_lost_and_fetched_their_beginning_one_after_the_other_go_on_when_all_start_again() -> None:
    cluster = several_segments()
    for node in (3, 2):
        lose_the_beginning(cluster, node)
    agreed = cluster.master().core.agreed[0]
    for node in cluster.nodes:
        cluster.kill(node, told=False)
    for node in cluster.nodes:
        cluster.restart(node)
    cluster.run(5)
    assert {state(desk) for desk in cluster.up()} == {State.SOUND}
    assert cluster.master().core.agreed[0] >= agreed
