"""A node and its clients: none of them holds up the others, or what nodes say to each other."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from chaplain.client_service import messages
from chaplain.client_service.messages import GetMembers
from chaplain.core import Drained, Send, Serve
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import Identity
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.events import Dismiss, Peer
from chaplain.link.settings import LinkSettings
from chaplain.mesh.events import Entered, Exited, Whisper, Whispered
from chaplain.mesh.settings import MeshSettings
from chaplain.node.core import NodeCore
from chaplain.node.settings import ClientSettings, NodeSettings
from chaplain.wire import parcel

EVE = [Peer(b"eve%013d" % number, 100, b"E" * 32, client="eve") for number in range(3)]
SECOND = 1_000_000_000
ANN = Peer(b"a" * 16, 200, b"A" * 32, client="ann")


class Node:
    """One node, whose clients are only made up: what the mesh is to tell them is kept."""

    def __init__(self, bounds: ClientSettings | None = None) -> None:
        settings = NodeSettings(
            LinkSettings("home", "tcp://127.0.0.1:7171"),
            MeshSettings("home"),
            GossipSettings(),
            clients=bounds or ClientSettings(paced=True),
        )
        node = Identity.generate(Random("node"))
        ring = KeyRing(b"k" * 32)
        chance = Random("chance")
        self.core = NodeCore(settings, node, ring, clients={}, rng=chance, instance=b"n" * 16, now_ns=1000)
        self.told: list[bytes] = []
        self.dismissed: list[bytes] = []
        self.core._mesh.step = self._mesh  # type: ignore[method-assign]
        self.core._link.step = self._link  # type: ignore[method-assign]
        for peer in (*EVE, ANN):
            self.core._on_entered(Entered(peer, {}))
        self.turn()

    def _mesh(self, now_ns: int, event: object) -> list[object]:
        if isinstance(event, Whisper):
            self.told.append(event.instance)
        return []

    def _link(self, now_ns: int, event: object) -> list[Send]:
        if isinstance(event, Dismiss):
            self.dismissed.append(event.instance)
            (peer,) = [one for one in (*EVE, ANN) if one.instance == event.instance]
            self.core._on_exited(Exited(peer, "dismissed"))
        return []

    def ask(self, peer: Peer, count: int = 1, payload: bytes = b"") -> None:
        for call in range(count):
            self.core._on_whispered(Whispered(peer, messages.encode(peer.identifier, GetMembers(call), payload)))
        self.core._run()

    def turn(self, requests: int = 1, now_ns: int = 1000) -> list[bytes]:
        """One turn of the loop that has time for so many requests; who was answered in it."""
        self.told.clear()
        for _ in range(requests):
            self.core.step(now_ns, Serve())
        self.core.step(now_ns, Drained())
        return list(self.told)


def test_requests_wait_until_the_host_serves_them() -> None:
    node = Node()
    node.ask(EVE[0], 25)
    assert node.turn(0) == []
    assert [len(node.turn(10)), len(node.turn(10))] == [10, 10]
    assert node.core.waiting
    assert len(node.turn(10)) == 5
    assert not node.core.waiting


def test_host_without_time_limits_serves_all_requests_at_once() -> None:
    node = Node(ClientSettings())
    node.ask(EVE[0], 25)
    assert len(node.turn(0)) == 25


def test_client_with_one_request_is_served_in_the_first_turn() -> None:
    node = Node()
    for peer in EVE:
        node.ask(peer, 500)
    node.ask(ANN)
    assert ANN.instance in node.turn(2)


def test_busy_node_serves_only_light_clients() -> None:
    node = Node(ClientSettings(paced=True, light_per_second=10))
    node.ask(ANN)
    node.ask(EVE[0], 500)
    assert set(node.turn(20)) == {ANN.instance, EVE[0].instance}
    assert node.core.contended
    assert node.core.waiting
    assert not node.core.light_waiting
    node.told.clear()
    node.core.step(1000, Serve(light=True))
    assert node.told == []
    node.ask(ANN)
    assert node.core.light_waiting
    for _ in range(3):
        node.core.step(1000, Serve(light=True))
    assert node.told == [ANN.instance]


@pytest.mark.parametrize(("under_way", "behind"), [((0, 0), False), ((15, 1000), False), ((16, 1), True)])
def test_node_with_many_writes_under_way_is_behind(under_way: tuple[int, int], behind: bool) -> None:
    node = Node(ClientSettings(paced=True, behind_bytes=65536))
    assert not node.core.behind
    node.core.journal = SimpleNamespace(under_way=under_way)  # type: ignore[assignment]
    assert node.core.behind == behind


def test_contention_lasts_while_the_node_is_behind_with_writes() -> None:
    node = Node(ClientSettings(paced=True, behind_bytes=65536))
    for peer in (ANN, EVE[0]):
        node.ask(peer)
    node.turn(2, now_ns=SECOND)
    node.core.journal = SimpleNamespace(under_way=(17, 0), has_writers=False)  # type: ignore[assignment]
    for second in range(1, 20):
        node.turn(0, now_ns=second * SECOND)
        assert node.core.contended
    node.core.journal = SimpleNamespace(under_way=(0, 0), has_writers=False)  # type: ignore[assignment]
    for second in range(20, 30):
        node.turn(0, now_ns=second * SECOND)
    assert not node.core.contended


def test_clients_with_large_requests_do_not_hold_each_other_back() -> None:
    node = Node()
    for peer in (EVE[0], ANN, EVE[0], ANN):
        node.ask(peer, payload=bytes(500_000))
    assert len(node.turn(4)) == 4
    assert not node.core.contended
    node.ask(EVE[1])
    node.turn()
    assert not node.core.contended, "this client has just sent large requests"
    for peer in (ANN, EVE[0]):
        node.ask(peer)
    node.turn(2, now_ns=5 * SECOND)
    assert node.core.contended


def test_requests_of_a_single_client_are_not_charged() -> None:
    node = Node(ClientSettings(paced=True, light_per_second=1))
    node.ask(EVE[0], 500)
    node.turn(400)
    assert not node.core.contended
    assert node.core.light_waiting


def test_client_above_the_waiting_bound_loses_only_its_own_session() -> None:
    node = Node(ClientSettings(paced=True, session_bytes_max=10_000))
    node.ask(ANN)
    node.ask(EVE[0], 200)
    assert node.dismissed[0] == EVE[0].instance
    assert set(node.dismissed) == {EVE[0].instance}
    assert node.core.client_counts["requests_dropped"] > 0
    assert ANN.instance in node.turn(2)


def test_requests_of_a_client_that_left_are_not_served() -> None:
    node = Node()
    node.ask(EVE[0], 5)
    node.core._on_exited(Exited(EVE[0], "gone"))
    assert node.turn(9) == []


def test_messages_between_nodes_do_not_wait_for_clients() -> None:
    node = Node()
    node.ask(EVE[0], 100)
    peer = replace(ANN, client="", endpoint="tcp://127.0.0.1:7172")
    node.core._on_whispered(Whispered(peer, parcel.encode(parcel.Parcel(peer.identifier, 15, b"", b""))))
    assert [effect.event for effect in node.core._out] == ["parcel refused"]
