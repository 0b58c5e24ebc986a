"""What clients and peers with a session may say to a whole node: whatever it is, the node goes on, and answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from chaplain.client_service import messages
from chaplain.client_service.events import ClientServiceSettings
from chaplain.client_service.messages import (
    AnswerQuestions,
    AskQuestion,
    Cancel,
    ClientRequest,
    Done,
    Failed,
    FireAndWait,
    FireEvent,
    GetMembers,
    GetStatus,
    GiveAnAnswer,
    Instruct,
    JoinAPool,
    ListenEvents,
    ListenMessages,
    ListenNews,
    LookUp,
    NodeReply,
    RotateKeys,
    SendToMember,
    ShoutToPool,
    Started,
)
from chaplain.core import Drained, Halt, Report, Requested, Settled, Woken
from chaplain.gossip import codec
from chaplain.gossip import member_record as cards
from chaplain.gossip.codec import Cards
from chaplain.gossip.layer_api import LayerCore, LayerInput
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import Identity
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.events import Met, Peer, Said, Say
from chaplain.link.settings import LinkSettings
from chaplain.mesh.settings import MeshSettings
from chaplain.node.core import NodeCore
from chaplain.node.settings import NodeSettings
from chaplain.wire import command, parcel
from chaplain.wire.command import Alive, Broadcast, Hello
from chaplain.wire.limits import PARCEL_BODY_BYTES_MAX
from chaplain.wire.parcel import Layer, Parcel

T = TypeVar("T")

NOW_NS = 10**12
CONTENT_BYTES_MAX = 50
CONTENT_OF_MESH = 12_000
OPENED = (SendToMember, AskQuestion, FireAndWait, RotateKeys, LookUp, Instruct)
"""Requests that another layer answers, now or later."""
_OWN, _OTHER = Identity(b"o" * 32), Identity(b"p" * 32)
_NODE = Peer(b"p" * 16, _OTHER.identifier, _OTHER.key, "tcp://127.0.0.1:7001")
_CLIENTS = tuple(Peer(bytes([number]) * 16, number, bytes([number]) * 32, client=f"c{number}") for number in (1, 2))
_CARD = codec.encode(Cards((cards.make(_OTHER, _NODE.endpoint, 1),)))

_NAMES = ("load", "version", "members", "a", "b", "c", "", "two words", "ä", "\0", "x" * 255, "x" * 256, "y" * 9999)
_NUMBERS = (0, 1, 2, -1, 255, 2**16, 2**32 - 1, 2**32, 2**40, 2**63, 2**64 - 1, -(2**31), -(2**63))
_LAYERS = (Layer.GRAPH, 0, -1, 99, 2**64 - 1)
_SIZES = (0, 1, CONTENT_BYTES_MAX, CONTENT_BYTES_MAX + 1, CONTENT_OF_MESH - 1024, CONTENT_OF_MESH - 1023, 15_000)
_PAYLOADS = tuple(bytes(size) for size in _SIZES)
_BODIES = (b"", b"body", b"x" * 255, b"x" * (PARCEL_BODY_BYTES_MAX - 50))
_QUERIES = ("", "no id", "1-1-1", "-1--1--1", f"{_OWN.identifier:08x}-{NOW_NS:x}-1", "f" * 9999 + "-1-1", "0x1-1_0-+1")

SEEDS = {
    "target_client_wishes": [bytes(range(first, first + 40)) for first in range(0, 200, 20)],
    "target_client_says": [
        messages.encode(1, request, b"payload")
        for request in (FireEvent(1, "deployed"), FireEvent(2, "deployed", 2**40), JoinAPool(3, "chat"))
    ],
    "target_peer_shouts": [
        parcel.encode(Parcel(1, Layer.CLIENT, body, b"hi")) for body in (b"ann", b"\xff", bytes(PARCEL_BODY_BYTES_MAX))
    ],
}


class _Choice:
    """Reads bytes as choices among what is given; when they have ended, it is the first of each."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def over(self) -> bool:
        return self._at >= len(self._data)

    def of(self, given: Sequence[T]) -> T:
        octet = 0 if self.over else self._data[self._at]
        self._at += 1
        return given[octet % len(given)]


_BUILDS: tuple[Callable[[int, _Choice], ClientRequest], ...] = (
    lambda call, _: GetStatus(call),
    lambda call, _: GetMembers(call),
    lambda call, of: AskQuestion(call, of.of(_NAMES), of.of(_NUMBERS)),
    lambda call, of: FireEvent(call, of.of(_NAMES), of.of((None, *_NUMBERS))),
    lambda call, of: FireAndWait(call, of.of(_NAMES), of.of(_NUMBERS), of.of((None, *_NUMBERS))),
    lambda call, _: ListenEvents(call),
    lambda call, _: ListenNews(call),
    lambda call, of: JoinAPool(call, of.of(_NAMES)),
    lambda call, of: ShoutToPool(call, of.of(_NAMES)),
    lambda call, of: SendToMember(call, of.of(_NUMBERS), of.of(_NUMBERS)),
    lambda call, _: ListenMessages(call),
    lambda call, of: AnswerQuestions(call, of.of(_NAMES)),
    lambda call, of: GiveAnAnswer(call, of.of(_QUERIES)),
    lambda call, _: RotateKeys(call),
    lambda call, of: LookUp(call, of.of(_LAYERS), of.of(_BODIES)),
    lambda call, of: Instruct(call, of.of(_LAYERS), of.of(_BODIES)),
    lambda call, _: Cancel(call),
)


class _Echo(LayerCore):
    """A layer that refuses everything in the client's own words."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def step(self, now_ns: int, event: LayerInput, /) -> list[Settled]:
        return [Settled(event.call, kind="refused", reason=event.body.decode())] if isinstance(event, Requested) else []

    def deadline(self) -> int | None:
        return None

    def status(self) -> dict[str, object]:
        return {}


class _Stage:
    """A node with small bounds, a peer and two clients; what it says to these is kept, and must be readable."""

    def __init__(self) -> None:
        self.now_ns = NOW_NS
        self.heard: list[NodeReply] = []
        self._numbers = {peer.instance: 1 for peer in (_NODE, *_CLIENTS)}
        settings = NodeSettings(
            LinkSettings("fuzz", endpoint="tcp://127.0.0.1:7000"),
            MeshSettings("fuzz", pools_max=2, content_bytes_max=CONTENT_OF_MESH),
            GossipSettings(content_bytes_max=CONTENT_BYTES_MAX, queries_max=4, questions_max=2),
            ClientServiceSettings(listeners_max=5, calls_max=4),
            node_ids={_OWN.identifier: 1, _OTHER.identifier: 2},
        )
        self.node = NodeCore(
            settings,
            _OWN,
            KeyRing(b"k" * 32),
            clients={},
            rng=Random(1),
            instance=b"o" * 16,
            now_ns=NOW_NS,
            uppers={Layer.GRAPH: _Echo()},
        )
        self.node._mesh.route(self._hear, Say)
        for peer in (_NODE, *_CLIENTS):
            self._feed(Met(peer, Hello(1, "127.0.0.1", 7001, (), 0, {})), self.node._mesh)
        self.say(_NODE, [parcel.encode(Parcel(_OTHER.identifier, Layer.GOSSIP, _CARD))])

    def say(self, peer: Peer, contents: list[bytes]) -> None:
        """All of it in one frame."""
        self._said(peer, [lambda number, content=content: Alive(number, content) for content in contents])

    def shout(self, content: bytes) -> None:
        self._said(_NODE, [lambda number: Broadcast(number, "a", content)])

    def wait(self, duration_ns: int) -> None:
        end_ns = self.now_ns + duration_ns
        while (due_ns := self.node.deadline()) is not None and due_ns <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self._feed(None)
        self.now_ns = end_ns

    def _said(self, peer: Peer, builds: list[Callable[[int], Alive | Broadcast]]) -> None:
        commands = []
        for build in builds:
            self._numbers[peer.instance] = number = (self._numbers[peer.instance] + 1) % 65536
            commands.append(command.encode(build(number)))
        self._feed(Said(peer.instance, tuple(commands)), self.node._mesh)

    def _feed(self, event: object, place: object = None) -> None:
        if place is not None:
            self.node._work.append((place, event))
        for effect in [*self.node.step(self.now_ns, Woken()), *self.node.step(self.now_ns, Drained())]:
            assert not isinstance(effect, Halt), effect
            assert not isinstance(effect, Report) or effect.event not in ("content too large", "pool refused"), effect

    def _hear(self, say: Say) -> None:
        spoken = command.decode(say.command)
        if say.instance != _NODE.instance and isinstance(spoken, Alive):
            self.heard.append(messages.decode_reply(parcel.decode(spoken.content).body))


def make_target_client_wishes() -> Callable[[bytes], None]:
    """Well-formed requests with values that make no sense: each is answered once, and the pools are as was said."""
    stage = _Stage()

    def target(data: bytes) -> None:
        stage.heard.clear()
        choice, asked = _Choice(data), Counter[int]()
        client, contents = choice.of(_CLIENTS), []
        while not choice.over and len(contents) < 6:
            request = choice.of(_BUILDS)(choice.of((1, 2, 3, messages.CALL_MAX)), choice)
            asked[request.call] += not isinstance(request, OPENED)
            contents.append(messages.encode(client.identifier, request, choice.of(_PAYLOADS)))
        stage.say(client, contents)
        answered = Counter(reply.call for reply in stage.heard if isinstance(reply, Done | Failed | Started))
        assert all(answered[call] >= times for call, times in asked.items()), (asked, answered)
        joined = {topic.name for topic in stage.node.client_service._listeners._by_topic if topic.kind == "pool"}
        assert joined == set(stage.node.mesh.pools)
        answered_here = {
            topic.name for topic in stage.node.client_service._listeners._by_topic if topic.kind == "question"
        }
        assert answered_here == set(stage.node.gossip._questions._registered)
        stage.wait(10**8)

    return target


def make_target_client_says() -> Callable[[bytes], None]:
    stage = _Stage()

    def target(data: bytes) -> None:
        stage.say(_CLIENTS[0], [data])

    return target


def make_target_peer_shouts() -> Callable[[bytes], None]:
    """Whatever a node broadcasts to a pool, the clients that listen there can read what they are told."""
    stage = _Stage()
    stage.say(_CLIENTS[0], [messages.encode(1, JoinAPool(1, "a"))])

    def target(data: bytes) -> None:
        stage.shout(data)

    return target
