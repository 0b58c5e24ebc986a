"""Whole nodes with journals whose files name neighbours that are gone: the journal says where the others are."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from chaplain.gossip.events import MemberState
from chaplain.gossip.settings import GossipSettings
from chaplain.journal.consensus.events import Role
from chaplain.journal.core import JournalCore
from chaplain.journal.messages.cluster import genesis
from chaplain.journal.model.bootstrap import BootstrapClient, BootstrapMember, ClusterBootstrap
from chaplain.journal.settings import ConsensusSettings, JournalSettings
from chaplain.journal.storage.log import hard_state_name, sync_hint_name
from chaplain.link.auth.identity import Identity, new_instance
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.settings import LinkSettings
from chaplain.mesh.settings import MeshSettings
from chaplain.node.core import NodeCore
from chaplain.node.settings import NodeSettings
from simulator.trace import Trace
from simulator.world.disk import segments_of
from simulator.world.world import World

SECOND = 10**9
NAMES = ("one", "two", "three")
KEYS = {name: Identity.generate(Random(name)) for name in NAMES}
REPLACED = "tcp://10.0.0.9:7171"
"""The only neighbour that is named in the nodes' files. Nobody is there."""


def endpoint(name: str) -> str:
    return f"tcp://10.0.0.{NAMES.index(name) + 1}:7171"


def disk_of(name: str) -> bytes:
    return name.encode().ljust(16)


MEMBERS = tuple(
    BootstrapMember(number, KEYS[name].key, endpoint(name), disk_of(name)) for number, name in enumerate(NAMES, 1)
)
FOUNDING = ClusterBootstrap("home", MEMBERS, (BootstrapClient("default", Identity.generate(Random("client")).key),))


def make(name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> NodeCore:
    order = ConsensusSettings(
        node=NAMES.index(name) + 1,
        genesis=genesis("home"),
        disk=disk_of(name),
        founding_disk=disk_of(name),
        boot=b"boot".ljust(16),
    )
    journal = JournalCore(
        JournalSettings(order),
        FOUNDING,
        rng,
        identity=KEYS[name],
        identifier=KEYS[name].identifier,
        segments=segments_of(disk),
        sync_hint=disk.get(sync_hint_name(order)),
        hard_state=disk.get(hard_state_name(order)),
    )
    settings = NodeSettings(
        LinkSettings(cluster="home", endpoint=endpoint(name)),
        MeshSettings(cluster="home"),
        GossipSettings(),
        neighbours=(REPLACED,),
    )
    ring = KeyRing(b"k" * 32)
    return NodeCore(
        settings, KEYS[name], ring, clients={}, rng=rng, instance=new_instance(rng), now_ns=now_ns, journal=journal
    )


def node(world: World, name: str) -> NodeCore:
    core = world.hosts[name].core
    assert isinstance(core, NodeCore)
    return core


def present(world: World, name: str) -> int:
    return sum(member.state is MemberState.ALIVE for member in node(world, name).gossip.members())


def test_nodes_find_each_other_by_the_journal_also_after_a_stop() -> None:
    world = World("doors", make, Trace())
    for name in NAMES:
        world.start(world.add(name, endpoint(name)))
    world.run(10 * SECOND)
    assert [present(world, name) for name in NAMES] == [3, 3, 3]
    assert [node(world, name).role.role for name in NAMES].count(Role.MASTER) == 1

    away = world.hosts["one"]
    world.stop(away)
    world.run(world.now_ns + SECOND // 10)
    world.crash(away, power=False)
    world.run(world.now_ns + 20 * SECOND)
    assert [present(world, name) for name in NAMES[1:]] == [2, 2]
    world.start(away)
    world.run(world.now_ns + 3 * SECOND, lambda: all(present(world, name) == 3 for name in NAMES))
    assert [present(world, name) for name in NAMES] == [3, 3, 3]
