"""A stage for the client core: a link without seals, nodes in memory, and a clock that only moves when told."""

from __future__ import annotations

from collections import deque
from hashlib import sha256
from random import Random

from chaplain.client.protocol.core import ClientCore
from chaplain.client.protocol.events import (
    Cancelled,
    ClientCall,
    ClientEffect,
    ListeningBegan,
    Outcome,
    Raised,
    Returned,
    Settings,
    Yielded,
)
from chaplain.client_service import messages
from chaplain.client_service.messages import ClientRequest, Done, EventItem, Failed, NodeReply, PoolItem, Started
from chaplain.core import Arrived, Connected, Dial, Disconnected, Drained, HangUp, Report, Send, Woken
from chaplain.link.events import (
    CommandDropped,
    Forget,
    LinkEffect,
    LinkInput,
    Meet,
    Met,
    Missed,
    Parted,
    Peer,
    PinNodeKeys,
    Said,
    Say,
)
from chaplain.wire import command, parcel
from chaplain.wire.command import Alive, DecenAck, Hello, Ping

SECOND_NS = 1_000_000_000
HELLO = Hello(1, "127.0.0.1", 1, (), 0, {})


class PlainLink:
    """Greets whoever sends `HELLO` and an instance; other frames are commands, unsealed."""

    def __init__(self) -> None:
        self.dials: dict[int, str] = {}
        self.met: dict[int, bytes] = {}
        self.last = 0
        self.full = False
        self.lost = 0
        self.drained = 0
        self.pinned: frozenset[bytes] = frozenset()
        """Nodes whose greetings are believed; empty: everybody's."""

    def step(self, now_ns: int, event: LinkInput) -> list[LinkEffect]:
        match event:
            case Meet(endpoint):
                return self._dial(endpoint)
            case Forget(endpoint):
                gone = [dial for dial, known in self.dials.items() if known == endpoint]
                for dial in gone:
                    del self.dials[dial]
                    self.met.pop(dial, None)
                return [HangUp(dial) for dial in gone]
            case Disconnected(channel, reason) if channel in self.dials:
                endpoint, instance = self.dials.pop(channel), self.met.pop(channel, None)
                parted = [] if instance is None else [Parted(peer_of(instance, endpoint), reason, 0)]
                return [*parted, *self._dial(endpoint)]
            case Arrived(int() as dial, frame) if dial in self.dials and frame.startswith(b"HELLO"):
                peer = peer_of(frame[5:], self.dials[dial])
                if self.pinned and peer.key not in self.pinned:
                    return [Report("greeting refused", self.dials[dial], {"reason": "key not pinned"})]
                self.met[dial] = frame[5:]
                return [Met(peer, HELLO)]
            case PinNodeKeys(keys, gone):
                self.pinned = (self.pinned | keys) - gone
            case Arrived(int() as dial, frame) if frame.startswith(b"REFUSE"):
                return [Report("greeting refused", self.dials[dial], {"reason": frame[6:].decode()})]
            case Arrived(int() as dial, frame) if dial in self.met:
                lost, self.lost = self.lost, 0
                missed = [Missed(self.met[dial], lost)] if lost else []
                return [*missed, Said(self.met[dial], (frame,))]
            case Say(instance, spoken):
                return self._say(instance, spoken)
            case Drained():
                self.drained += 1
        return []

    def deadline(self) -> int | None:
        return None

    def _dial(self, endpoint: str) -> list[LinkEffect]:
        self.last += 1
        self.dials[self.last] = endpoint
        return [Dial(self.last, endpoint, b"", b"")]

    def _say(self, instance: bytes, spoken: bytes) -> list[LinkEffect]:
        if self.full:
            return [CommandDropped(instance, spoken, "the queue is full")]
        dial = next(dial for dial, known in self.met.items() if known == instance)
        return [Send(dial, spoken)]


def peer_of(instance: bytes, endpoint: str) -> Peer:
    return Peer(instance, 1, key_of(instance), endpoint)


def key_of(instance: bytes) -> bytes:
    return sha256(instance).digest()


class PlainNode:
    """Answers nothing by itself but PINGs; a test reads `requests` and answers through the stage."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.instance = endpoint.encode()
        self.up = True
        self.mute = False
        self.refusal = ""
        self.dial: int | None = None
        self.sequences: list[int] = []
        self.requests: list[tuple[ClientRequest, bytes]] = []
        self.pings = 0

    def receive(self, frame: bytes) -> list[bytes]:
        spoken = command.decode(frame)
        self.sequences.append(spoken.sequence)
        if isinstance(spoken, Alive):
            opened = parcel.decode(spoken.content)
            self.requests.append((messages.decode_request(opened.body), opened.payload))
        if isinstance(spoken, Ping):
            self.pings += 1
            return [] if self.mute else [command.encode(DecenAck(9))]
        return []


class Stage:
    def __init__(self, count: int = 3, settings: Settings | None = None, seed: int = 7) -> None:
        endpoints = [f"tcp://127.0.0.1:{port}" for port in range(1, count + 1)]
        self.nodes = {endpoint: PlainNode(endpoint) for endpoint in endpoints}
        self.link = PlainLink()
        self.core = ClientCore(self.link, 77, endpoints, settings or Settings(), Random(seed))
        self.now_ns = 0
        self.outcomes: list[Outcome] = []
        self.reports: list[Report] = []
        self.dialled: list[str] = []
        self._todo: deque[object] = deque()

    def give(self, event: object) -> None:
        """Step, perform what follows, and what follows from that."""
        self._todo.append(event)
        while self._todo:
            for effect in self.core.step(self.now_ns, self._todo.popleft()):  # type: ignore[arg-type]
                self._perform(effect)

    def call(self, request: ClientRequest, payload: bytes = b"", timeout_s: float = 10) -> None:
        self.give(ClientCall(request, payload, int(timeout_s * SECOND_NS)))

    def cancel(self, call: int) -> None:
        self.give(Cancelled(call))

    def run(self, seconds: float) -> None:
        """Let time pass, waking the core whenever it asked for it."""
        end_ns = self.now_ns + int(seconds * SECOND_NS)
        while (due := self.core.deadline()) is not None and due <= end_ns:
            before = self.now_ns
            self.now_ns = max(self.now_ns, due)
            self.give(Woken())
            after = self.core.deadline()
            assert after is None or after > self.now_ns or self.now_ns > before, "the core asks to be woken for nothing"
        self.now_ns = end_ns

    def serving(self) -> PlainNode:
        """The node that the next call goes to."""
        session = next(iter(self.core._connections.sessions.values()), None)
        assert session is not None
        return self.nodes[session.endpoint]

    def reply(self, node: PlainNode, reply: NodeReply, payload: bytes = b"") -> None:
        content = messages.encode(1, reply, payload)
        self.frame(node, command.encode(Alive(2, content)))

    def frame(self, node: PlainNode, frame: bytes) -> None:
        assert node.dial is not None
        self.give(Arrived(node.dial, frame))

    def kill(self, node: PlainNode) -> None:
        node.up = False
        dial, node.dial = node.dial, None
        if dial is not None:
            self.give(Disconnected(dial, "connection reset"))

    def of(self, call: int) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.call == call]

    def _perform(self, effect: ClientEffect) -> None:
        match effect:
            case Dial(dial, endpoint):
                self.dialled.append(endpoint)
                self._connect(dial, self.nodes[endpoint])
            case Send(int() as dial, frame):
                for node in self.nodes.values():
                    if node.dial == dial:
                        self._todo.extend(Arrived(dial, answer) for answer in node.receive(frame))
            case HangUp(dial):
                for node in self.nodes.values():
                    if node.dial == dial:
                        node.dial = None
            case Returned() | Raised() | ListeningBegan() | Yielded():
                self.outcomes.append(effect)
            case Report():
                self.reports.append(effect)

    def _connect(self, dial: int, node: PlainNode) -> None:
        if not node.up:
            self._todo.append(Disconnected(dial, "connection refused"))
        elif node.refusal:
            self._todo.append(Arrived(dial, b"REFUSE" + node.refusal.encode()))
        else:
            node.dial = dial
            node.sequences, node.requests = [], []
            self._todo.append(Connected(dial))
            if not node.mute:
                self._todo.append(Arrived(dial, b"HELLO" + node.instance))


__all__ = ["SECOND_NS", "Done", "EventItem", "Failed", "PlainNode", "PoolItem", "Stage", "Started"]


def up(count: int = 3, settings: Settings | None = None) -> Stage:
    """A client that has met its nodes."""
    stage = Stage(count, settings)
    stage.run(0.001)
    return stage
