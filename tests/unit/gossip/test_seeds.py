"""Seeds: configured endpoints of nodes. A core never gives them up."""

from __future__ import annotations

import pytest

from chaplain.gossip.codec import Cards, DiscoveredAck
from chaplain.gossip.events import EventId, HeardFrom, JoinThrough, LeaveCluster, MembersConfigured, MemberState
from chaplain.gossip.settings import GossipSettings
from chaplain.link.events import Forget, Meet
from chaplain.mesh.events import Entered
from chaplain.units import SECOND_NS
from simulator.adapters.gossip_mesh import World
from tests.unit.gossip.gossip_stage import Partner, Stage

T = GossipSettings().silence_ns
DAY = GossipSettings(heal_for_ns=300 * SECOND_NS)
"""A day of 300 seconds."""
FEW = GossipSettings(sessions_max=4)
A, B, C = Partner(1), Partner(2), Partner(3)
CROWD = [Partner(number) for number in range(10, 20)]


class Watched(Stage):
    """A stage that knows what its core asked the mesh to keep."""

    def __init__(self, settings: GossipSettings | None = None) -> None:
        self.met: set[str] = set()
        super().__init__(settings)

    def step(self, event: object) -> list[object]:
        effects = super().step(event)  # type: ignore[arg-type]
        for effect in effects:
            if isinstance(effect, Meet):
                self.met.add(effect.endpoint)
            elif isinstance(effect, Forget):
                self.met.discard(effect.endpoint)
        return effects

    def lose(self, *partners: Partner) -> None:
        for partner in partners:
            self.part(partner)
        self.wait(2 * T + SECOND_NS)
        assert all(self.state(partner) is MemberState.LEFT for partner in partners)

    def state(self, partner: Partner) -> MemberState | None:
        member = self.core.member(partner.identifier)
        return None if member is None else member.state

    def crowd(self) -> None:
        """So many members that not everybody is met."""
        self.tell(A, Cards(tuple(partner.card() for partner in CROWD)))


def test_lost_neighbour_is_dialled_for_ever_and_another_lost_member_for_a_day() -> None:
    stage = Watched(DAY)
    stage.step(JoinThrough(A.uri))
    stage.meet(A, B)
    stage.lose(A, B)
    stage.wait(DAY.heal_for_ns - 3 * T)
    assert {A.uri, B.uri} <= stage.met
    stage.wait(DAY.heal_for_ns)
    assert A.uri in stage.met
    assert B.uri not in stage.met
    assert Meet(A.uri) in stage.wait(2 * DAY.heal_wait_max_ns), "and it is dialled now, not after the mesh's pause"


def test_neighbour_that_left_is_dialled_until_it_returns() -> None:
    stage = Watched()
    stage.step(JoinThrough(A.uri))
    stage.meet(A, B)
    stage.tell(A, A.leave(A.identifier, 1))
    stage.tell(B, B.leave(B.identifier, 1))
    stage.wait(SECOND_NS)
    assert stage.met == {A.uri}
    assert stage.state(A) is MemberState.LEFT


def test_cluster_nodes_are_dialled_until_they_are_removed() -> None:
    stage = Watched()
    stage.step(JoinThrough(A.uri))
    stage.step(MembersConfigured({A.identifier: A.uri, B.identifier: B.uri, stage.own.identifier: stage.own.uri}, ()))
    assert stage.met == {A.uri, B.uri}
    stage.step(MembersConfigured({B.identifier: B.uri, C.identifier: C.uri}, (A.uri,)))
    assert stage.met == {B.uri, C.uri}
    stage.meet(B, C)
    stage.step(MembersConfigured({B.identifier: B.uri}, (A.uri, C.uri)))
    assert stage.met == {B.uri, C.uri}, "who is here is hung up on by others than us"
    stage.tell(C, C.leave(C.identifier, 1))
    stage.wait(SECOND_NS)
    assert stage.met == {B.uri}


def test_member_at_the_address_of_a_lost_one_is_not_disconnected() -> None:
    stage = Watched()
    stage.step(JoinThrough(A.uri))
    stage.meet(A)
    stage.lose(A)
    stage.step(Entered(B.peer, {}))
    stage.tell(B, Cards((B.card(uri=A.uri),)))
    forgotten: list[object] = []
    for _ in range(60):
        forgotten += [effect for effect in stage.wait(SECOND_NS) if isinstance(effect, Forget)]
        stage.step(HeardFrom(B.identifier))
    assert not forgotten
    assert A.uri in stage.met


def test_node_that_left_dials_no_seed() -> None:
    stage = Watched()
    stage.step(LeaveCluster())
    stage.step(MembersConfigured({A.identifier: A.uri}, ()))
    assert stage.met == set()


def test_large_cluster_dials_a_neighbour_by_ring_position_or_if_it_is_absent() -> None:
    stage = Watched(FEW)
    seeds = [A, *CROWD]
    for partner in seeds:
        stage.step(JoinThrough(partner.uri))
    stage.meet(A)
    stage.crowd()
    stage.tell(A, DiscoveredAck(EventId(stage.own.identifier, 1, 1), A.card()))
    stage.wait(SECOND_NS)
    shut = next(partner for partner in CROWD if partner.uri not in stage.met)
    stage.tell(A, shut.leave(shut.identifier, 1))
    stage.wait(SECOND_NS)
    assert shut.uri in stage.met
    stage.tell(A, Cards((shut.card(2),)))
    stage.wait(SECOND_NS)
    assert shut.uri not in stage.met


def test_large_cluster_dials_all_absent_cluster_nodes() -> None:
    stage = Watched(FEW)
    stage.meet(A)
    stage.crowd()
    assert not {partner.uri for partner in CROWD} <= stage.met
    stage.step(MembersConfigured({partner.identifier: partner.uri for partner in CROWD}, ()))
    for _ in range(3):
        stage.wait(SECOND_NS)
        stage.step(HeardFrom(A.identifier))
    assert {partner.uri for partner in CROWD} <= stage.met


@pytest.mark.parametrize("redial", [True, False])
@pytest.mark.parametrize("sides", [((0, 1), (2, 3, 4)), ((0, 1, 2, 3), (4,)), ((0,), (1, 2, 3, 4))])
def test_partition_longer_than_the_retry_time_heals(sides, redial) -> None:
    world = World(7, DAY, redial=redial, cheap=True)
    world.cluster(5)
    world.partition(*sides)
    world.run(400 * SECOND_NS)
    world.heal()
    assert world.run(20 * SECOND_NS, lambda: world.agree(0, 1, 2, 3, 4))


def test_returning_node_is_found_through_nodes_that_it_did_not_know() -> None:
    """It left, its neighbours were replaced while it was away, and it knows none of those who came."""
    world = World(8)
    world.cluster(4)
    back = world.nodes[1]
    world.step(back, LeaveCluster())
    world.run(SECOND_NS)
    world.kill(1)
    world.kill(0)
    world.run(3 * T)
    world.nodes[1] = world._boot(1, back.signer)
    world.step(world.nodes[1], JoinThrough(world.nodes[0].peer.endpoint))
    assert not world.run(60 * SECOND_NS, lambda: world.agree(1, 2, 3))
    others = {node.signer.identifier: node.peer.endpoint for node in world.nodes[2:]}
    world.step(world.nodes[1], MembersConfigured(others, (world.nodes[0].peer.endpoint,)))
    assert world.run(3 * SECOND_NS, lambda: world.agree(1, 2, 3))
