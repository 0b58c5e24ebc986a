"""Graph cores that talk to each other without a network: what one whispers, another is told."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

from chaplain.core import Drained, Persist, Persisted, Requested, Settled, Woken
from chaplain.gossip.events import GossipParcel, MemberChanged, MemberState, MemberView
from chaplain.graph.core import GraphCore
from chaplain.graph.events import CheckSignatures, EventsRead, ReadEvents, SignaturesChecked, holds
from chaplain.graph.messages import client
from chaplain.graph.messages import peer as messages
from chaplain.graph.messages.client import Append, Appended, Page, ReadArrivals, ReadSnapshot, decode_answer
from chaplain.graph.messages.event import EventDraft, ParentLink, SignedEvent, sign
from chaplain.graph.messages.peer import GraphMessage
from chaplain.graph.settings import GraphSettings
from chaplain.graph.storage.store import events_at
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.segment.layout import parse_name
from chaplain.units import MILLISECOND_NS, SECOND_NS
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel
from simulator.world.disk import apply

CLUSTER = "demo"
START_NS = 1_800_000_000 * SECOND_NS


@cache
def identity(number: int) -> Identity:
    return Identity(bytes((number,)) * 32)


def peer(number: int) -> Peer:
    who = identity(number)
    return Peer(bytes((number,)) * 16, who.identifier, who.key, f"tcp://10.0.0.{number}:7400")


def left(number: int, *, graceful: bool = False) -> MemberChanged:
    """Gossip gave the node up, or it said good-bye."""
    who = peer(number)
    return MemberChanged(MemberView(who.identifier, "", who.key, 1, MemberState.LEFT, graceful), MemberState.ALIVE)


def make(
    number: int, content: bytes, previous: SignedEvent | None = None, *parents: SignedEvent, **fields: Any
) -> SignedEvent:
    """An event of this author, behind these."""
    first = None if previous is None else ParentLink(previous.id, previous.height)
    links = tuple(sorted(ParentLink(one.id, one.height) for one in parents))
    stream, time_ns = fields.get("stream", "notes"), fields.get("time_ns", START_NS)
    return sign(EventDraft(stream, content, time_ns, first, links), identity(number), CLUSTER)


class Node:
    """One core, its disk, and what it said."""

    def __init__(self, number: int, members: int, **settings: Any) -> None:
        self.number = number
        self.cluster_members: Callable[[], tuple[bytes, ...]] | None = settings.pop("cluster_members", None)
        self.files: dict[str, bytearray] = {}
        self.members = members
        self.settings = GraphSettings(CLUSTER, segment_bytes=settings.pop("segment_bytes", 1 << 20), **settings)
        self.stalled = False
        """Whether the disk keeps its answers back."""
        self.skew_ns = 0
        """How far its clock is ahead of the stage's."""
        self.start()

    def start(self, now_ns: int = START_NS) -> None:
        """Begin anew from what is on the disk."""
        found = {name: data for name, data in sorted(self.files.items()) if name.endswith(".segment")}
        self.core = GraphCore(
            self.settings,
            identity(self.number),
            random.Random(self.number),
            now_ns=now_ns + self.skew_ns,
            founders=[identity(number).key for number in range(1, self.members + 1)],
            cluster_members=self.cluster_members,
            segments=[(parse_name(name)[1], bytes(data)) for name, data in found.items()],
        )
        self.settled: dict[int, Settled] = {}
        self.sent: deque[Whisper] = deque()
        self.others: list[Any] = []
        self.tickets: list[Persist] = []

    @property
    def model(self) -> Any:
        return self.core.streams["notes"].model

    def step(self, now_ns: int, event: Any) -> None:
        inbox = deque([event, Drained()])
        while inbox:
            for effect in self.core.step(now_ns + self.skew_ns, inbox.popleft()):
                match effect:
                    case Whisper():
                        self.sent.append(effect)
                    case Settled():
                        self.settled[effect.call] = effect
                    case CheckSignatures():
                        inbox.append(SignaturesChecked(effect.ticket, tuple(map(holds, effect.checks))))
                        inbox.append(Drained())
                    case ReadEvents():
                        raws = events_at([bytes(data) for data in self.files.values()], effect.places)
                        inbox.append(EventsRead(effect.token, raws))
                    case Persist():
                        self.tickets.append(effect)
                        if not self.stalled:
                            inbox.extend([self.synced(), Drained()])
                    case _:
                        self.others.append(effect)

    def deadline(self) -> int | None:
        due_ns = self.core.deadline()
        return None if due_ns is None else due_ns - self.skew_ns

    def synced(self) -> Persisted:
        """The oldest write is on disk."""
        persist = self.tickets.pop(0)
        for operation in persist.operations:
            apply(self.files, operation)
        return Persisted(persist.ticket)

    def hear(self, now_ns: int, number: int, message: GraphMessage) -> None:
        body, payload = messages.encode(message)
        said = Parcel(peer(number).identifier, Layer.GRAPH, body, payload)
        self.step(now_ns, GossipParcel(peer(number), said))

    def heard(self) -> list[GraphMessage]:
        """What it said since the last time, as messages."""
        said = [parcel.decode(self.sent.popleft().content) for _ in range(len(self.sent))]
        return [messages.decode(one.body, one.payload) for one in said]

    def enter(self, *numbers: int, now_ns: int = START_NS) -> None:
        for number in numbers:
            self.step(now_ns, Entered(peer(number), {}))


class Stage:
    """Some nodes, who is connected with whom, and one clock."""

    def __init__(self, count: int, **settings: Any) -> None:
        self.now_ns = START_NS
        self.nodes = {number: Node(number, count, **settings) for number in range(1, count + 1)}
        self.cut: set[frozenset[int]] = set()
        self._calls = 0
        for number in self.nodes:
            self.connect(number)

    def connect(self, number: int) -> None:
        for other in self.nodes:
            if other != number and frozenset((number, other)) not in self.cut:
                self.nodes[number].step(self.now_ns, Entered(peer(other), {}))
                self.nodes[other].step(self.now_ns, Entered(peer(number), {}))

    def part(self, side: set[int]) -> None:
        for one in side:
            for other in self.nodes.keys() - side:
                self.cut.add(frozenset((one, other)))
                self.nodes[one].step(self.now_ns, Exited(peer(other), "cut"))
                self.nodes[other].step(self.now_ns, Exited(peer(one), "cut"))

    def heal(self) -> None:
        self.cut.clear()
        for number in self.nodes:
            self.connect(number)

    def settle(self) -> int:
        """Let everything that was said arrive. Returns how many octets that were."""
        size = 0
        while any(node.sent for node in self.nodes.values()):
            for node in self.nodes.values():
                while node.sent:
                    whisper = node.sent.popleft()
                    other = whisper.instance[0]
                    if other in self.nodes and frozenset((node.number, other)) not in self.cut:
                        size += len(whisper.content)
                        said = parcel.decode(whisper.content)
                        self.nodes[other].step(self.now_ns, GossipParcel(peer(node.number), said))
        return size

    def run(self, span_ns: int) -> int:
        """Let time pass, in steps of the nodes' own deadlines. Returns the octets that travelled."""
        end_ns, size = self.now_ns + span_ns, self.settle()
        while True:
            due = min(deadline for node in self.nodes.values() if (deadline := node.deadline()) is not None)
            if due > end_ns:
                self.now_ns = end_ns
                return size
            self.now_ns = max(self.now_ns, due)
            for node in self.nodes.values():
                deadline = node.deadline()
                if deadline is not None and deadline <= self.now_ns:
                    node.step(self.now_ns, Woken())
            size += self.settle()
            self.now_ns += MILLISECOND_NS // 10

    def append(self, number: int, content: bytes, stream: str = "notes") -> bytes:
        settled = self.ask(number, Append(stream), content)
        assert not settled.kind, settled.reason
        return decode_answer(settled.payload, Appended).id

    def ask(self, number: int, request: client.GraphRequest, payload: bytes = b"") -> Settled:
        self._calls += 1
        self.nodes[number].step(self.now_ns, Requested(self._calls, "ann", client.encode(request), payload))
        return self.nodes[number].settled[self._calls]

    def pages(self, number: int, request: ReadSnapshot | ReadArrivals) -> Page:
        return decode_answer(self.ask(number, request).payload, Page)
