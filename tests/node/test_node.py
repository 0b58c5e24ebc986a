"""Whole nodes in the made-up world, without faults: the layers fit together."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import get_args

from chaplain.core import Drained, Send
from chaplain.desk.core import DeskEffect, RotationWanted
from chaplain.gossip.events import GossipEffect, State
from chaplain.gossip.settings import GossipSettings
from chaplain.link.events import LinkEffect, Meet, Say
from chaplain.link.identity import Identity, new_instance
from chaplain.link.keyring import KeyRing
from chaplain.link.settings import LinkSettings
from chaplain.mesh.events import JoinPool, MeshEffect, Shout, Shouted
from chaplain.mesh.settings import MeshSettings
from chaplain.node.core import NodeCore, NodeSettings
from chaplain.node.rings import KEYRING_FILE
from chaplain.sim.trace import Trace
from chaplain.sim.world import World

SECOND = 10**9
NAMES = ("one", "two", "three", "four", "five")


class Cluster:
    """Five nodes, each told of the first alone."""

    def __init__(self, beacon: bool = False) -> None:
        self.beacon = beacon
        self.keys = {name: Identity.generate(Random(name)) for name in NAMES}
        self.ids = {identity.identifier: number for number, identity in enumerate(self.keys.values(), 1)}
        self.trace = Trace()
        self.world = World("node test", self.make, self.trace)
        for name in NAMES:
            self.world.start(self.world.add(name, self.endpoint(name)))

    def endpoint(self, name: str) -> str:
        return f"tcp://10.0.0.{NAMES.index(name) + 1}:7171"

    def make(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> NodeCore:
        settings = NodeSettings(
            LinkSettings(cluster="home", endpoint=self.endpoint(name)),
            MeshSettings(cluster="home"),
            GossipSettings(),
            beacon=self.beacon,
            neighbours=() if self.beacon or name == NAMES[0] else (self.endpoint(NAMES[0]),),
            node_ids=self.ids,
        )
        ring = KeyRing.parse(disk[KEYRING_FILE].decode()) if KEYRING_FILE in disk else KeyRing(b"k" * 32)
        return NodeCore(settings, self.keys[name], ring, clients={}, rng=rng, instance=new_instance(rng), now_ns=now_ns)

    def node(self, name: str) -> NodeCore:
        core = self.world.hosts[name].core
        assert isinstance(core, NodeCore)
        return core

    def all_know_all(self) -> bool:
        return all(
            sum(1 for member in self.node(name).gossip.members() if member.state == State.ALIVE) == len(NAMES)
            for name in NAMES
        )


def test_every_effect_of_every_layer_has_a_place_to_go() -> None:
    node = Cluster().node("one")
    for place, effects in (
        (node._link, LinkEffect),
        (node._mesh, MeshEffect),
        (node._gossip, GossipEffect),
        (node._desk, DeskEffect),
    ):
        assert set(place.routes) == set(get_args(effects))


def test_all_know_all_soon_after_joining_through_one() -> None:
    cluster = Cluster()
    cluster.world.run(2 * SECOND, cluster.all_know_all)
    assert cluster.all_know_all()
    cluster.world.run(60 * SECOND)
    assert cluster.all_know_all(), "and it stays so while nothing happens"


def test_what_is_shouted_in_one_wake_up_leaves_in_one_frame_to_each_and_arrives_in_order() -> None:
    cluster = Cluster()
    for name in NAMES[1:]:
        cluster.world.tell(cluster.world.hosts[name], JoinPool("red"))
    cluster.world.run(5 * SECOND)
    speaker, listener = cluster.node("one"), cluster.node("two")
    heard: list[bytes] = []
    listener._mesh.send(lambda shouted: heard.append(shouted.content), Shouted)
    host = cluster.world.hosts["one"]
    now_ns = host.clock.read(cluster.world.now_ns)
    said = [b"%d" % number for number in range(50)]
    for content in said:
        assert speaker.step(now_ns, Shout("red", content)) == []
    sends = speaker.step(now_ns, Drained())
    assert [type(send) for send in sends] == [Send] * 4
    assert len({send.channel for send in sends}) == 4
    for send in sends:
        cluster.world.network.send(host, send)
    cluster.world.run(cluster.world.now_ns + SECOND)
    assert heard == said
    assert not listener.mesh.counts["gapped_incoming"]


def test_what_a_layer_says_when_the_wake_up_ends_leaves_with_it() -> None:
    cluster = Cluster()
    cluster.world.tell(cluster.world.hosts["two"], JoinPool("red"))
    cluster.world.run(5 * SECOND)
    node = cluster.node("one")
    node._work.append((node._mesh, Shout("red", b"last words")))
    assert [type(effect) for effect in node.step(node.now_ns, Drained())] == [Send]


def test_nothing_is_said_before_what_waits_for_the_link() -> None:
    node = Cluster().node("one")
    node._work.append((node._link, Meet("tcp://10.0.0.9:7171")))
    say = Say(bytes(16), b"later")
    node._say(say)
    assert node._work[-1] == (node._link, say)


def test_beacons_alone_bring_nodes_together() -> None:
    cluster = Cluster(beacon=True)
    cluster.world.run(5 * SECOND, cluster.all_know_all)
    assert cluster.all_know_all()


def test_a_node_that_died_is_gone_within_twice_the_silence_and_comes_back() -> None:
    cluster = Cluster()
    cluster.world.run(5 * SECOND)
    dead = cluster.world.hosts["three"]
    cluster.world.crash(dead, power=False)
    cluster.world.run(cluster.world.now_ns + 11 * SECOND)
    for name in NAMES:
        if name != "three":
            states = {cluster.ids[m.identifier]: m.state for m in cluster.node(name).gossip.members()}
            assert states == {1: "alive", 2: "alive", 3: "left", 4: "alive", 5: "alive"}, name
    cluster.world.start(dead)
    cluster.world.run(cluster.world.now_ns + 2 * SECOND, cluster.all_know_all)
    assert cluster.all_know_all()


def test_a_rotation_changes_every_ring_and_the_rings_outlive_a_restart() -> None:
    cluster = Cluster()
    cluster.world.run(3 * SECOND)
    node = cluster.node("two")
    node._rotate(RotationWanted(1))
    cluster.world.run(cluster.world.now_ns + 20 * SECOND)
    rings = {name: cluster.node(name)._rings.ring.ids for name in NAMES}
    assert len(set(rings.values())) == 1
    assert len(rings["one"]) == 1
    assert rings["one"] != KeyRing(b"k" * 32).ids
    host = cluster.world.hosts["four"]
    cluster.world.crash(host, power=True)
    cluster.world.start(host)
    assert cluster.node("four")._rings.ring.ids == rings["one"]
    cluster.world.run(cluster.world.now_ns + 15 * SECOND, cluster.all_know_all)
    assert cluster.all_know_all()
