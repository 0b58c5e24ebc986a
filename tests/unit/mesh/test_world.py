"""Two or three meshes and every fault between them: order, pools, and each loss told exactly once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from chaplain.mesh.events import JoinPool, LeavePool, Shout, Whisper
from tests.unit.mesh.mesh_stage import SECOND, World

POOLS = st.sampled_from(["red", "Red", "blue"])
NODES = st.integers(0, 2)


class MeshMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(3, link_tells=True)
        self.said = 0

    @initialize(link_tells=st.booleans())
    def begin(self, link_tells: bool) -> None:
        self.world.link_tells = link_tells
        for one, other in ((0, 1), (0, 2), (1, 2)):
            self.world.connect(one, other)

    @rule(node=NODES, pool=POOLS)
    def join(self, node: int, pool: str) -> None:
        self.world.step(node, JoinPool(pool))

    @rule(node=NODES, pool=POOLS)
    def leave(self, node: int, pool: str) -> None:
        self.world.step(node, LeavePool(pool))

    @rule(node=NODES, pool=POOLS, times=st.integers(1, 4))
    def shout(self, node: int, pool: str, times: int) -> None:
        for _ in range(times):
            before = len(self.world.cores[node].members(pool))
            self.world.shouts += before
            self.world.step(node, Shout(pool, b"%b|%d|%d" % (pool.encode(), node, self.said)))
            self.said += 1

    @rule(node=NODES, other=NODES)
    def whisper(self, node: int, other: int) -> None:
        if (node, other) in self.world.lanes:
            self.world.step(node, Whisper(self.world.peers[other].instance, b"psst"))

    @rule(fates=st.lists(st.sampled_from(["drop", "lose", "deliver"]), min_size=1, max_size=6))
    def doom(self, fates: list[str]) -> None:
        self.world.fates.extend(fates)

    @rule(sender=NODES, receiver=NODES, times=st.integers(1, 9))
    def deliver(self, sender: int, receiver: int, times: int) -> None:
        for _ in range(times):
            self.world.deliver(sender, receiver)

    @rule(one=NODES, other=NODES)
    def part(self, one: int, other: int) -> None:
        self.world.part(one, other)

    @rule(one=NODES, other=NODES)
    def connect(self, one: int, other: int) -> None:
        if one != other and (one, other) not in self.world.lanes:
            self.world.connect(one, other)

    @rule(one=NODES, other=NODES)
    def greet_again(self, one: int, other: int) -> None:
        if (one, other) in self.world.lanes:
            self.world.settle()
            if (one, other) in self.world.lanes:
                self.world.connect(one, other)

    @rule(tenths=st.integers(1, 400))
    def pass_time(self, tenths: int) -> None:
        self.world.advance(tenths * SECOND // 10)

    @invariant()
    def losses_are_told_once(self) -> None:
        assert +self.world.gaps == +self.world.losses

    def teardown(self) -> None:
        self.world.settle()
        self.losses_are_told_once()
        self._every_shout_ended_once()
        self._views_agree()

    def _every_shout_ended_once(self) -> None:
        assert sum(self.world.ended.values()) == self.world.shouts

    def _views_agree(self) -> None:
        for index, core in enumerate(self.world.cores):
            present = {view.peer.identifier: view for view in core.peer_views()}
            assert sorted(present) == sorted(to for one, to in self.world.lanes if one == index)
            for number, view in present.items():
                other = self.world.cores[number]
                assert sorted(view.pools) == sorted(other.pools)
                assert view.status == other.introduction().status


@pytest.mark.parametrize("steps", [15, 60])
def test_random_worlds_keep_numbering_and_pools_consistent(steps: int) -> None:
    run_state_machine_as_test(
        MeshMachine,
        settings=settings(
            max_examples=120,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )


def test_lost_join_is_repaired_by_the_pool_list() -> None:
    world = World(2, link_tells=False)
    world.connect(0, 1)
    world.fates.append("lose")
    world.step(0, JoinPool("red"))
    world.deliver_all()
    assert world.cores[1].members("red") == ()
    world.settle()
    assert world.cores[1].members("red") == (world.peers[0],)


def test_join_between_greeting_and_answer_is_known() -> None:
    """The link may compose our greeting before the join and tell us of the session after it."""
    world = World(2, link_tells=True)
    stale = world.introductions[0]
    world.step(0, JoinPool("red"))
    world.introductions[0] = stale
    world.connect(0, 1)
    world.deliver_all()
    assert world.cores[1].members("red") == (world.peers[0],)


def test_numbers_and_status_wrap_without_false_reports() -> None:
    world = World(2, link_tells=True)
    world.connect(0, 1)
    for _ in range(33_000):
        world.step(0, JoinPool("red"))
        world.step(0, LeavePool("red"))
        world.deliver_all()
    world.fates.extend(["drop", "lose"])
    world.step(0, JoinPool("red"))
    world.step(0, JoinPool("blue"))
    world.settle()
    assert world.gaps == world.losses
    assert world.gaps[1, 0, False] == 2
    assert [sorted(view.pools) for view in world.cores[1].peer_views()] == [["blue", "red"]]
    assert world.cores[1].counts["sequence_went_back"] == 0
    assert world.cores[1].counts["status_out_of_step"] == 0


@pytest.mark.parametrize("drops", [1, 40_000, 60_000, 70_000])
def test_long_run_of_drops_does_not_block_the_receiver(drops: int) -> None:
    world = World(2, link_tells=True)
    world.step(1, JoinPool("red"))
    world.connect(0, 1)
    world.deliver_all()
    for number in range(drops):
        world.fates.extend(["drop", "drop"])
        world.step(0, Shout("red", b"red|0|%d" % number))
        world.fates.clear()
    told = world.gaps[0, 1, True]
    assert told == world.losses[0, 1, True] >= drops
    world.step(0, Shout("red", b"red|0|%d" % drops))
    world.deliver_all()
    assert world.heard[1, 0, "red"] == [-1, drops]
    assert 0 < world.gaps[1, 0, False] <= told
