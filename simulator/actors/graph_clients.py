"""Actors of the graph workload: a client that follows a stream, and a member that lies."""

from __future__ import annotations

from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING

from chaplain.core import Requested, Settled
from chaplain.gossip.events import GossipParcel
from chaplain.graph.messages import client, peer
from chaplain.graph.messages.client import Page, ReadArrivals, decode_answer
from chaplain.graph.messages.event import EventDraft, ParentLink, SignedEvent, confirm_label, decode, sign
from chaplain.graph.messages.peer import AGAIN, FIRST, Confirmation, EventBatch, FetchMissing, GraphMessage, Inv, Item
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.units import MILLISECOND_NS, SECOND_NS
from chaplain.wire.parcel import Layer, Parcel
from simulator.checkers.base import Violation

if TYPE_CHECKING:
    from simulator.workloads.graph import Graph
    from simulator.world.world import World

_PATIENCE_NS = 3 * SECOND_NS


class Follower:
    """Reads a stream in arrival order at any node that answers; it must get every event once, parents first."""

    def __init__(self, workload: Graph, stream: str, only_read: bool) -> None:
        self._workload = workload
        self.stream = stream
        self.only_read = only_read
        self.seen: dict[bytes, None] = {}
        self._frontier: dict[bytes, None] = {}
        self._log, self._position = b"", 0
        self._call = 0

    def ask(self, world: World) -> None:
        """Request the next page; from another node if there is no answer in time."""
        rng = self._workload.rng
        self._call = self._workload.next_call()
        request = ReadArrivals(
            self.stream, self.only_read, tuple(self._frontier), self._log, self._position, rng.randrange(SECOND_NS)
        )
        name = rng.choice(self._workload.names)
        world.tell(world.hosts[name], Requested(self._call, "bob", client.encode(request), b""))
        world.after(_PATIENCE_NS, self._ask_again, world, self._call)

    def _ask_again(self, world: World, call: int) -> None:
        if call == self._call:
            self.ask(world)

    def answered(self, world: World, settled: Settled) -> None:
        if settled.call != self._call:
            return
        self._call = 0
        world.after(100 * MILLISECOND_NS, self.ask, world)
        if settled.kind:
            return
        page = decode_answer(settled.payload, Page)
        self._log, self._position = page.log, page.position
        for row in page.rows:
            self._take(decode(row.raw), row.read)

    def _take(self, event: SignedEvent, read: bool) -> None:
        links = [link.id for link in event.links]
        if event.id in self.seen:
            raise Violation("graph", "a reader gets an event twice")
        if any(link not in self.seen for link in links):
            raise Violation("graph", "a reader gets an event before its parents")
        if self.only_read and not read:
            raise Violation("graph", "a reader who wants read events gets one that is not")
        self.seen[event.id] = None
        for link in links:
            self._frontier.pop(link, None)
        self._frontier[event.id] = None


class Rogue:
    """A member that is no node: it signs anything and sends it to any node."""

    def __init__(self, workload: Graph, rng: Random) -> None:
        self._workload = workload
        self._rng = rng
        self._identity = Identity(sha256(b"rogue").digest())
        self.active = rng.random() < 0.5
        self.peer = Peer(b"r" * 16, self._identity.identifier, self._identity.key, "tcp://10.0.0.99:7171")
        self._past: list[SignedEvent] = []

    def begin(self, world: World) -> None:
        if self.active:
            world.after(SECOND_NS, self._act, world)

    def _act(self, world: World) -> None:
        if world.now_ns >= self._workload.last_write_ns:
            return
        act = self._rng.choice((self._fork, self._fork, self._orphan, self._forge, self._borrow, self._beg))
        message = act(world.now_ns)
        for host in world.hosts.values():
            if self._rng.random() < 0.3:
                body, payload = peer.encode(message)
                parcel = Parcel(self.peer.identifier, Layer.GRAPH, body, payload)
                world.tell(host, GossipParcel(self.peer, parcel))
        world.after(self._rng.randrange(SECOND_NS), self._act, world)

    def _sign(self, now_ns: int, links: tuple[ParentLink, ...], content: bytes) -> SignedEvent:
        previous = self._rng.choice([*self._past[-4:]]) if self._past and self._rng.random() < 0.8 else None
        first = None if previous is None else ParentLink(previous.id, previous.height)
        draft = EventDraft("notes", content, now_ns, first, links)
        return sign(draft, self._identity, self._workload.settings.cluster)

    def _fork(self, now_ns: int) -> GraphMessage:
        """Send one of several events with the same previous event."""
        event = self._sign(now_ns, (), self._rng.randbytes(8))
        self._past.append(event)
        return EventBatch((Item(event.raw),), FIRST if self._rng.random() < 0.5 else 0)

    def _orphan(self, now_ns: int) -> GraphMessage:
        links = tuple(sorted(ParentLink(self._rng.randbytes(32), self._rng.randrange(100)) for _ in range(3)))
        events = [self._sign(now_ns, links, self._rng.randbytes(8)) for _ in range(20)]
        return EventBatch(tuple(Item(event.raw) for event in events))

    def _forge(self, now_ns: int) -> GraphMessage:
        """Send confirmations in the names of all members, signed by itself, for a new or an old event."""
        cluster = self._workload.settings.cluster
        if self._past and self._rng.random() < 0.5:
            event = self._rng.choice(self._past)
            word = self._identity.sign(confirm_label(cluster), event.id)
            return Inv("notes", tuple(Confirmation(key, event.id, word) for key in self._workload.founders))
        event = self._sign(now_ns, (), self._rng.randbytes(8))
        self._past.append(event)
        word = self._identity.sign(confirm_label(cluster), event.id)
        return EventBatch((Item(event.raw, tuple((key, word) for key in self._workload.founders)),))

    def _borrow(self, now_ns: int) -> GraphMessage:
        """Send an event with another author's key and its own signature."""
        event = self._sign(now_ns, (), b"not mine")
        author = self._workload.identity(1).key
        return EventBatch((Item(event.raw[:1] + author + event.raw[33:]),), AGAIN)

    def _beg(self, now_ns: int) -> GraphMessage:
        return FetchMissing("notes", self._rng.randrange(1 << 32), 0, ())
