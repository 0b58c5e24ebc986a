"""Whole nodes in the made-up world, without faults: the layers fit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import get_args

import pytest

from chaplain.client_service import messages
from chaplain.client_service.events import ClientServiceEffect, ForLayer, RotationWanted
from chaplain.client_service.messages import LookUp
from chaplain.core import Drained, Persist, Persisted, Replace, Requested, Send, Settled
from chaplain.gossip.events import GossipEffect, GossipParcel, MemberChanged, MemberState
from chaplain.gossip.layer_api import LayerCore, LayerEffect, LayerInput
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import Identity, new_instance
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.events import LinkEffect, Meet, Peer, Say
from chaplain.link.settings import LinkSettings
from chaplain.mesh.events import Entered, JoinPool, MeshEffect, Shout, Shouted, Whisper, Whispered
from chaplain.mesh.settings import MeshSettings
from chaplain.node import status
from chaplain.node.core import NodeCore
from chaplain.node.keyring_store import KEYRING_FILE
from chaplain.node.layer_slot import LayerSlot
from chaplain.node.settings import NodeSettings
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel
from simulator.trace import Trace
from simulator.world.world import World

SECOND = 10**9
CLIENT = Peer(b"c" * 16, 100, b"C" * 32, client="ann")
NAMES = ("one", "two", "three", "four", "five")


class Cluster:
    """Five nodes, each told of the first alone."""

    uppers: Mapping[Layer, LayerCore] = {}
    """What the next node is made with."""

    def __init__(
        self, beacon: bool = False, mesh: MeshSettings | None = None, gossip: GossipSettings | None = None
    ) -> None:
        self.beacon = beacon
        self.mesh, self.gossip = mesh, gossip or GossipSettings()
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
            self.mesh or MeshSettings(cluster="home", headers={"rack": name} if name != NAMES[1] else {}),
            self.gossip,
            beacon=self.beacon,
            neighbours=() if self.beacon or name == NAMES[0] else (self.endpoint(NAMES[0]),),
            node_ids=self.ids,
        )
        ring = KeyRing.parse(disk[KEYRING_FILE].decode()) if KEYRING_FILE in disk else KeyRing(b"k" * 32)
        return NodeCore(
            settings,
            self.keys[name],
            ring,
            clients={},
            rng=rng,
            instance=new_instance(rng),
            now_ns=now_ns,
            uppers=self.uppers,
        )

    def node(self, name: str) -> NodeCore:
        core = self.world.hosts[name].core
        assert isinstance(core, NodeCore)
        return core

    def all_know_all(self) -> bool:
        return all(
            sum(1 for member in self.node(name).gossip.members() if member.state == MemberState.ALIVE) == len(NAMES)
            for name in NAMES
        )


def test_every_effect_of_every_layer_has_a_route() -> None:
    node = Cluster().node("one")
    for place, effects in (
        (node._link, LinkEffect),
        (node._mesh, MeshEffect),
        (node._gossip, GossipEffect),
        (node._service, ClientServiceEffect),
    ):
        assert set(place.routes) == set(get_args(effects))


def test_all_nodes_know_each_other_soon_after_joining_through_one() -> None:
    cluster = Cluster()
    cluster.world.run(2 * SECOND, cluster.all_know_all)
    assert cluster.all_know_all()
    cluster.world.run(60 * SECOND)
    assert cluster.all_know_all(), "and it stays so while nothing happens"


def test_headers_of_a_node_are_shown_by_connected_nodes() -> None:
    cluster = Cluster()
    cluster.world.run(2 * SECOND, cluster.all_know_all)
    for name in ("one", "three"):
        members = {member["id"]: member.get("headers") for member in status.of_members(cluster.node(name))}
        assert (members[1], members[2], members[3]) == ({"rack": "one"}, None, {"rack": "three"})


def test_broadcasts_of_one_wake_up_share_a_frame_and_arrive_in_order() -> None:
    cluster = Cluster()
    for name in NAMES[1:]:
        cluster.world.tell(cluster.world.hosts[name], JoinPool("red"))
    cluster.world.run(5 * SECOND)
    speaker, listener = cluster.node("one"), cluster.node("two")
    heard: list[bytes] = []
    listener._mesh.route(lambda shouted: heard.append(shouted.content), Shouted)
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


def test_command_sent_at_the_end_of_a_wake_up_leaves_with_it() -> None:
    cluster = Cluster()
    cluster.world.tell(cluster.world.hosts["two"], JoinPool("red"))
    cluster.world.run(5 * SECOND)
    node = cluster.node("one")
    node._work.append((node._mesh, Shout("red", b"last words")))
    assert [type(effect) for effect in node.step(node.now_ns, Drained())] == [Send]


def test_effects_waiting_for_the_link_are_processed_first() -> None:
    node = Cluster().node("one")
    node._work.append((node._link, Meet("tcp://10.0.0.9:7171")))
    say = Say(bytes(16), b"later")
    speaker = LayerSlot(lambda _now_ns, _event: [say], lambda: None)
    speaker.route(node._link, Say)
    node._step(speaker, None)
    assert node._work[-1] == (node._link, say)


def test_follower_of_the_journal_gets_what_was_applied_before_it_is_drained() -> None:
    node = Cluster().node("one")
    taken: list[object] = []

    def take(_now_ns: int, event: object) -> list[object]:
        taken.append(event)
        return []

    journal = LayerSlot(lambda _now_ns, _event: ["applied"], lambda: None)
    follower = LayerSlot(take, lambda: None, follows_journal=True)
    journal.route(follower, str)
    node.step(node.now_ns, Drained())  # the first step starts the layers
    node._journal, node._upper_slots = journal, [journal, follower]
    node.step(node.now_ns, Drained())
    assert taken == ["applied", Drained()]


def test_nodes_find_each_other_by_beacons_alone() -> None:
    cluster = Cluster(beacon=True)
    cluster.world.run(5 * SECOND, cluster.all_know_all)
    assert cluster.all_know_all()


def test_dead_node_is_lost_within_twice_the_silence_and_returns() -> None:
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


@pytest.mark.parametrize(
    ("gone_after_s", "silence_s", "session_ends_s", "member_left_s"),
    [(30, 5, 10, 10), (3, 5, 3, 10), (30, 30, 30, 60)],
    ids=["gossip rules by default", "a shorter time of the mesh ends the session", "the mesh rules at a long silence"],
)
def test_session_with_a_silent_member_ends_at_the_earlier_of_two_timers(
    gone_after_s: int, silence_s: int, session_ends_s: int, member_left_s: int
) -> None:
    """`mesh.gone_after_seconds` ends a session; 2 x `gossip.silence_seconds` the membership with its session."""
    mesh = MeshSettings(cluster="home", ping_after_ns=2 * SECOND, gone_after_ns=gone_after_s * SECOND)
    cluster = Cluster(mesh=mesh, gossip=GossipSettings(silence_ns=silence_s * SECOND))
    cluster.world.run(5 * SECOND)
    silent = cluster.keys["three"].identifier
    cluster.world.pause(cluster.world.hosts["three"])
    began_ns = cluster.world.now_ns

    def has_left() -> bool:
        members = cluster.node("one").gossip.members()
        return next(one.state for one in members if one.identifier == silent) == MemberState.LEFT

    def has_no_session() -> bool:
        return all(peer.identifier != silent for peer in cluster.node("one").mesh.peers().values())

    for happened, at_s in ((has_no_session, session_ends_s), (has_left, member_left_s)):
        cluster.world.run(began_ns + 100 * SECOND, happened)
        assert at_s - 1 <= (cluster.world.now_ns - began_ns) / SECOND <= at_s + 2, happened.__name__


def test_message_to_a_member_reaches_a_client_there_and_its_delivery_is_reported() -> None:
    cluster = Cluster()
    cluster.world.run(5 * SECOND)
    sender, receiver = cluster.node("one"), cluster.node("two")
    sent: list[bytes] = []
    for node in (sender, receiver):
        node.client_service.step(0, Entered(CLIENT, {}))
    receiver.client_service.step(0, Whispered(CLIENT, messages.encode(100, messages.ListenMessages(1))))
    for node in (sender, receiver):
        route = node._service.routes[Whisper]

        def catch(whisper: Whisper, slot: LayerSlot = node._mesh, node: NodeCore = node) -> None:
            if whisper.instance == CLIENT.instance:
                sent.append(whisper.content)
            else:
                node._work.append((slot, whisper))

        assert route
        node._service.routes[Whisper] = catch  # type: ignore[assignment]
    request = messages.encode(100, messages.SendToMember(9, 2, SECOND), b"hi")
    sender._work.append((sender._service, Whispered(CLIENT, request)))
    cluster.world.run(cluster.world.now_ns + SECOND, lambda: len(sent) == 2)
    item, done = (parcel.decode(content) for content in sent)
    assert messages.decode_reply(item.body) == messages.MessageItem(1, 1, "ann", 0)
    assert item.payload == b"hi"
    assert messages.decode_reply(done.body) == messages.Done(9)
    assert done.payload == b'{"outcome":"delivered","listeners":1,"reason":""}'


def test_rotation_changes_every_ring_and_survives_a_restart() -> None:
    cluster = Cluster()
    cluster.world.run(3 * SECOND)
    node = cluster.node("two")
    node._rotate(RotationWanted(1))
    cluster.world.run(cluster.world.now_ns + 20 * SECOND)
    rings = {name: cluster.node(name)._keyring.ring.ids for name in NAMES}
    assert len(set(rings.values())) == 1
    assert len(rings["one"]) == 1
    assert rings["one"] != KeyRing(b"k" * 32).ids
    host = cluster.world.hosts["four"]
    cluster.world.crash(host, power=True)
    cluster.world.start(host)
    assert cluster.node("four")._keyring.ring.ids == rings["one"]
    cluster.world.run(cluster.world.now_ns + 15 * SECOND, cluster.all_know_all)
    assert cluster.all_know_all()


class Postman(LayerCore):
    """A layer above gossip that writes down what it hears, keeps it on disk, and answers with it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.heard: list[LayerInput] = []
        self.asked = 0
        """How often for its deadline."""

    def step(self, now_ns: int, event: LayerInput) -> list[LayerEffect]:
        self.heard.append(event)
        match event:
            case Requested():
                return [Persist(event.call, (Replace("post", event.body),))]
            case Persisted():
                return [Settled(event.ticket, b"kept")]
            case Entered():
                return [Whisper(event.peer.instance, parcel.encode(Parcel(1, Layer.GRAPH, b"hello")))]
            case _:
                return []

    def deadline(self) -> int | None:
        self.asked += 1
        return None

    def status(self) -> dict[str, object]:
        return {"post": len(self.heard)}


class Postmen(Cluster):
    def __init__(self) -> None:
        self.postmen: dict[str, Postman] = {}
        super().__init__()

    def make(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> NodeCore:
        self.postmen[name] = Postman()
        self.uppers = {Layer.GRAPH: self.postmen[name]}
        return super().make(name, rng, disk, now_ns)


def test_layer_above_gossip_receives_peers_and_members() -> None:
    cluster = Postmen()
    cluster.world.run(5 * SECOND)
    heard = cluster.postmen["two"].heard
    others = {identity.identifier for name, identity in cluster.keys.items() if name != "two"}
    assert {event.peer.identifier for event in heard if isinstance(event, Entered)} == others
    assert {event.peer.identifier for event in heard if isinstance(event, GossipParcel)} == others
    assert others <= {event.member.identifier for event in heard if isinstance(event, MemberChanged)}
    assert status.of_node(cluster.node("two"))["post"] == len(heard)


def test_layer_above_gossip_writes_with_its_own_tickets() -> None:
    cluster = Postmen()
    node, postman = cluster.node("one"), cluster.postmen["one"]
    node.client_service.step(0, Entered(CLIENT, {}))
    ask = messages.encode(CLIENT.identifier, LookUp(7, Layer.GRAPH, b"body"))
    for effect in node.client_service.step(0, Whispered(CLIENT, ask)):
        assert isinstance(effect, ForLayer)
        node._work.append((node._uppers[effect.layer], effect.event))
    (persist,) = node.step(cluster.world.now_ns, Drained())
    assert isinstance(persist, Persist)
    assert persist.operations == (Replace("post", b"body"),)
    assert not any(isinstance(event, Persisted) for event in postman.heard)
    node.step(cluster.world.now_ns, Persisted(persist.ticket))
    assert Persisted(1) in postman.heard


def test_layer_without_a_step_is_not_called() -> None:
    cluster = Postmen()
    cluster.world.run(5 * SECOND)
    node, postman = cluster.node("one"), cluster.postmen["one"]
    node.step(node.now_ns, Drained())
    node.deadline()
    postman.heard.clear()
    before = postman.asked
    for _ in range(3):
        node.step(node.now_ns, Drained())
        node.deadline()
    assert (postman.heard, postman.asked) == ([], before)
    node._work.append((node._uppers[Layer.GRAPH], Persisted(0)))
    node.step(node.now_ns, Drained())
    node.deadline()
    assert (postman.heard, postman.asked) == ([Persisted(0)], before + 1)
    node.step(node.now_ns, Drained())
    assert postman.heard == [Persisted(0), Drained()]


def test_gauges_count_members_and_peers() -> None:
    cluster = Cluster()
    cluster.world.run(5 * SECOND)
    assert cluster.node("one").gauges() == {"members_present": 5, "peers": 4}
