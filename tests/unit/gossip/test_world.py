"""Five nodes and what happens to them. T is five seconds."""

from __future__ import annotations

import pytest

from chaplain.gossip.events import (
    AskQuery,
    EventSeen,
    Fire,
    JoinThrough,
    LeaveCluster,
    MemberChanged,
    MemberState,
    QueryDecided,
    Rotated,
    RotateKey,
)
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.keyring import key_id_of
from chaplain.mesh.events import Exited
from chaplain.units import MILLISECOND_NS, SECOND_NS
from simulator.adapters.gossip_mesh import World

T_NS = GossipSettings().silence_ns
ALL_FIVE = (0, 1, 2, 3, 4)
SEEDS = range(3)


def five(seed: int, **conditions: object) -> World:
    world = World(seed, **conditions)  # type: ignore[arg-type]
    world.cluster(5)
    assert world.agree(*ALL_FIVE)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_all_nodes_join_through_one_uri(seed: int) -> None:
    world = World(seed)
    world.add()
    for _ in range(4):
        world.add(through=0)
    assert world.run(2 * SECOND_NS, lambda: world.agree(*ALL_FIVE))
    assert world.run(SECOND_NS, lambda: all("joined" in world.reports(name) for name in ALL_FIVE[1:]))


def test_new_node_is_announced_even_if_the_asked_node_dies() -> None:
    world = five(1)
    world.add(through=0)
    world.run(20 * MILLISECOND_NS)
    world.kill(0)
    assert world.run(2 * T_NS + SECOND_NS, lambda: world.agree(1, 2, 3, 4, 5))


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_node_is_off_every_list_within_2t_and_a_second(seed: int) -> None:
    world = five(seed)
    world.kill(3)
    assert not world.run(T_NS, lambda: any(3 not in world.view(name) for name in (0, 1, 2, 4)))
    assert world.state(0, 3) is MemberState.SUSPECT
    assert world.run(T_NS + SECOND_NS, lambda: world.agree(0, 1, 2, 4))
    world.run(5 * T_NS)
    assert world.agree(0, 1, 2, 4)
    for name in (0, 1, 2, 4):
        lost = {of for of in ALL_FIVE if of != name and MemberState.LEFT in world.changes(name, of)}
        assert lost == {3}


def test_node_that_vanishes_without_closing_is_lost_within_the_same_time() -> None:
    world = five(2)
    world.partition((3,))
    world.nodes[3].up = False
    assert world.run(2 * T_NS + SECOND_NS, lambda: world.agree(0, 1, 2, 4))


@pytest.mark.parametrize("after_ns", [SECOND_NS, 3 * T_NS])
def test_restarted_node_is_back_within_two_seconds(after_ns: int) -> None:
    world = five(3)
    before = world.nodes[0].core.member(world.nodes[3].signer.identifier)
    world.kill(3)
    world.run(after_ns)
    world.restart(3, through=1)
    assert before is not None

    def is_back() -> bool:
        seen = [node.core.member(before.identifier) for node in world.nodes]
        return world.agree(*ALL_FIVE) and all(
            member is not None and member.state is MemberState.ALIVE and member.incarnation > before.incarnation
            for member in seen
        )

    assert world.run(2 * SECOND_NS, is_back)


@pytest.mark.parametrize("seed", SEEDS)
def test_node_paused_for_one_and_a_half_t_is_suspected_and_never_removed(seed: int) -> None:
    world = five(seed)
    world.pause(2, 3 * T_NS // 2)
    assert not world.run(3 * T_NS // 2 - SECOND_NS, lambda: any(2 not in world.view(name) for name in ALL_FIVE))
    assert {world.state(name, 2) for name in (0, 1, 3, 4)} == {MemberState.SUSPECT}
    world.run(SECOND_NS)
    assert world.run(
        100 * MILLISECOND_NS, lambda: {world.state(name, 2) for name in (0, 1, 3, 4)} == {MemberState.ALIVE}
    )
    world.run(4 * T_NS)
    for name in (0, 1, 3, 4):
        assert MemberState.LEFT not in world.changes(name, 2)
        assert MemberState.SUSPECT not in world.changes(2, name), "the one that slept suspected the others"


def test_node_paused_for_long_is_removed_and_returns_by_itself() -> None:
    world = five(4)
    world.pause(2, 6 * T_NS)
    assert world.run(2 * T_NS + 2 * SECOND_NS, lambda: all(2 not in world.view(name) for name in (0, 1, 3, 4)))
    world.run(4 * T_NS)
    assert world.run(2 * SECOND_NS, lambda: world.agree(*ALL_FIVE))


@pytest.mark.parametrize("seed", SEEDS)
def test_one_way_cut_between_two_nodes_evicts_no_member(seed: int) -> None:
    world = five(seed)
    world.cut(0, 1)
    world.run(24 * T_NS)
    for name in ALL_FIVE:
        assert world.view(name) == ALL_FIVE
        assert all(MemberState.LEFT not in world.changes(name, of) for of in ALL_FIVE)
    assert MemberState.SUSPECT in world.changes(1, 0)


@pytest.mark.parametrize("redial", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_partition_of_a_minute_heals_within_ten_seconds(seed: int, redial: bool) -> None:
    world = five(seed, redial=redial)
    world.partition((0, 1), (2, 3, 4))
    world.run(60 * SECOND_NS)
    assert world.agree(0, 1)
    assert world.agree(2, 3, 4)
    world.heal()
    assert world.run(10 * SECOND_NS, lambda: world.agree(*ALL_FIVE))
    world.run(4 * T_NS)
    assert world.agree(*ALL_FIVE)


def test_long_partition_heals() -> None:
    world = five(7, redial=False)
    world.partition((0, 1), (2, 3, 4))
    world.run(600 * SECOND_NS)
    world.heal()
    assert world.run(20 * SECOND_NS, lambda: world.agree(*ALL_FIVE))


def test_graceful_leave_is_immediate_and_the_node_can_return() -> None:
    world = five(8)
    world.step(world.nodes[4], LeaveCluster())
    assert world.run(50 * MILLISECOND_NS, lambda: world.agree(0, 1, 2, 3))
    member = world.nodes[0].core.member(world.nodes[4].signer.identifier)
    assert member is not None
    assert member.graceful
    world.run(5 * T_NS)
    assert world.agree(0, 1, 2, 3)
    world.step(world.nodes[4], JoinThrough(world.nodes[0].peer.endpoint))
    assert world.run(3 * SECOND_NS, lambda: world.agree(*ALL_FIVE))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_event_is_delivered_once_to_all_despite_loss(seed: int) -> None:
    world = five(seed)
    world.loss = 0.2
    for name in ALL_FIVE:
        world.step(world.nodes[name], Fire("deployed", b"v%d" % name))
    world.run(8 * SECOND_NS)
    for node in world.nodes:
        seen = [effect.event.content for _, effect in node.effects if isinstance(effect, EventSeen)]
        assert sorted(seen) == [b"v0", b"v1", b"v2", b"v3", b"v4"]


def test_event_for_one_node_arrives_without_a_session() -> None:
    world = five(9)
    world.cut(0, 3)
    target = world.nodes[3].signer.identifier
    del world.nodes[0].sessions[3]
    world.step(world.nodes[0], Exited(world.nodes[3].peer, "cut"))
    world.step(world.nodes[0], Fire("hello", b"you", target))
    world.run(SECOND_NS)
    seers = [node.name for node in world.nodes if any(isinstance(effect, EventSeen) for _, effect in node.effects)]
    assert seers == [3]


def test_query_is_answered_by_all_and_decided_without_dead_nodes() -> None:
    world = five(10)
    world.step(world.nodes[0], AskQuery(1, "version", 2 * SECOND_NS))
    world.run(100 * MILLISECOND_NS)
    world.kill(4)
    world.step(world.nodes[0], AskQuery(2, "members", 2 * SECOND_NS))
    world.run(250 * MILLISECOND_NS)
    decided = {effect.call: effect.answer for _, effect in world.nodes[0].effects if isinstance(effect, QueryDecided)}
    assert decided[1].decided
    assert (decided[1].votes, decided[1].members, decided[1].missing) == (5, 5, ())
    assert decided[2].decided
    assert world.nodes[4].signer.identifier in decided[2].missing


def test_views_converge_with_five_percent_message_loss() -> None:
    world = World(11, loss=0.05)
    world.cluster(5)
    assert world.run(20 * SECOND_NS, lambda: world.agree(*ALL_FIVE))
    world.run(60 * T_NS)
    assert all(MemberState.LEFT not in world.changes(at, of) for at in ALL_FIVE for of in ALL_FIVE)


def test_pauses_shorter_than_t_remove_no_member() -> None:
    world = World(12, loss=0.05)
    world.cluster(5)
    for _ in range(60):
        world.pause(world.rng.randrange(5), T_NS * 9 // 10)
        world.run(T_NS)
    assert all(MemberState.LEFT not in world.changes(at, of) for at in ALL_FIVE for of in ALL_FIVE)


def test_rotation_installs_uses_and_retires_a_key() -> None:
    world = five(13)
    order = RotateKey(7, b"n" * 32, key_id_of(b"n" * 32), b"old!", 10 * SECOND_NS)
    world.step(world.nodes[1], order)
    world.run(2 * SECOND_NS)
    [rotated] = [effect for _, effect in world.nodes[1].effects if isinstance(effect, Rotated)]
    assert rotated.done
    for node in world.nodes:
        steps = [type(effect).__name__ for _, effect in node.effects if type(effect).__name__.endswith("Key")]
        assert steps == ["InstallKey", "UseKey", "RemoveKey"]


def test_unconfirming_member_blocks_the_retirement_and_a_repeat_finishes() -> None:
    world = five(14)
    world.pause(2, T_NS)
    order = RotateKey(7, b"n" * 32, key_id_of(b"n" * 32), b"old!", 3 * SECOND_NS)
    world.step(world.nodes[1], order)
    world.run(4 * SECOND_NS)
    [stuck] = [effect for _, effect in world.nodes[1].effects if isinstance(effect, Rotated)]
    assert not stuck.done
    assert stuck.missing == (world.nodes[2].signer.identifier,)
    assert not any(type(effect).__name__ == "RemoveKey" for node in world.nodes for _, effect in node.effects)
    world.kill(1)
    world.run(3 * T_NS)
    world.step(world.nodes[3], order)
    world.run(2 * SECOND_NS)
    [done] = [effect for _, effect in world.nodes[3].effects if isinstance(effect, Rotated)]
    assert done.done


def test_cluster_with_more_nodes_than_sessions_agrees_and_notices_a_death() -> None:
    settings = GossipSettings(flood_max=4, fanout=3, sessions_max=6)
    world = World(15, settings, cheap=True)
    world.cluster(24)
    everybody = tuple(range(24))
    assert world.run(20 * SECOND_NS, lambda: world.agree(*everybody))
    assert max(len(node.core._dissemination.sessions) for node in world.nodes) < 20
    world.kill(5)
    rest = tuple(name for name in everybody if name != 5)
    assert world.run(3 * T_NS, lambda: world.agree(*rest))
    world.run(6 * T_NS)
    assert world.agree(*rest)
    lost = {
        effect.member.identifier
        for node in world.nodes
        for _, effect in node.effects
        if isinstance(effect, MemberChanged) and effect.member.state is MemberState.LEFT
    }
    assert lost == {world.nodes[5].signer.identifier}


def test_equal_seeds_give_equal_histories() -> None:
    def history(seed: int) -> list[object]:
        world = five(seed, loss=0.1)
        world.kill(2)
        world.run(3 * T_NS)
        return [node.effects for node in world.nodes]

    assert history(21) == history(21)
