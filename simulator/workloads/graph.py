"""The graph: seven nodes that accept writes even while they cannot reach each other, and a member that lies.

Clients are not processes of the world: their requests reach a node, and its answers reach them, unless the node dies.
One of them follows a stream from node to node. The rogue is a member whose key signs anything: contradicting branches,
orphans, and confirmations that no member issued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from random import Random
from typing import Any, ClassVar

from chaplain.core import Requested, Send, Settled
from chaplain.graph import admission
from chaplain.graph.messages import client, event, peer
from chaplain.graph.messages.client import Append
from chaplain.graph.settings import GraphSettings
from chaplain.graph.storage import store
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.units import MILLISECOND_NS, SECOND_NS
from chaplain.wire import parcel
from simulator.actors.graph_clients import Follower, Rogue
from simulator.adapters.graph_node import GraphNode
from simulator.checkers import graph
from simulator.checkers.graph import GraphChecker
from simulator.faults.plan import CLOCK, NETWORK, PROCESS, Fault
from simulator.memo import Pure
from simulator.workloads import Workload
from simulator.world.machine import BEGUN_NOT_WRITTEN, SYNCED_NOT_TOLD, WRITTEN_NOT_SYNCED, CrashPoint
from simulator.world.world import World

CLUSTER = "simulated"
NODES = 7
WRITES_MAX = 150
STREAMS = ("notes", "audit")


class Graph(Workload):
    kinds: ClassVar[Sequence[str]] = (*NETWORK, *PROCESS, *CLOCK, "slow disk", "EIO", "everybody's power", "crowd")
    points: ClassVar[Sequence[CrashPoint]] = (
        WRITTEN_NOT_SYNCED,
        SYNCED_NOT_TOLD,
        BEGUN_NOT_WRITTEN,
        CrashPoint("after an acknowledgement", lambda effect: isinstance(effect, Settled)),
        CrashPoint("after telling a peer", lambda effect: isinstance(effect, Send)),
    )
    heals_all: bool = True
    memoized_functions: ClassVar[Sequence[Pure]] = (
        (parcel, "decode"),
        (peer, "decode"),
        (event, "decode"),
        (admission, "decode"),
        (store, "decode"),
        (graph, "decode"),
    )

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.numbers = tuple(range(1, NODES + 1))
        self.names = tuple(f"g{number}" for number in self.numbers)
        self.leaving = rng.random() < 0.3
        """True if nodes that are away for long are reported as having left; that must change nothing."""
        self._identities = {number: Identity(sha256(b"node %d" % number).digest()) for number in self.numbers}
        self._peers = {
            number: Peer(bytes((number,)) * 16, one.identifier, one.key, self.endpoint_of(number))
            for number, one in self._identities.items()
        }
        self.rogue = Rogue(self, rng)
        self.founders = [*(one.key for one in self._identities.values()), self.rogue.peer.key]
        small = rng.random() < 0.3
        self.settings = GraphSettings(
            CLUSTER,
            segment_bytes=64 * 1024,
            past_ns=8 * SECOND_NS,
            page_events_max=3 if small else 64,
            push_max=2 if small else 16,
            recent_bytes_max=2000 if small else 1 << 20,
            orphans_max=32,
            orphans_per_author=8,
            checks_inline_max=rng.choice((0, 0, 2)),
            page_bytes_max=16 * 1024,
            watched_max=rng.choice((10, 10_000)),
        )
        self._pace_ns = rng.choice((200, 500, 1000)) * MILLISECOND_NS
        self._calls = 0
        self.appends: dict[int, str] = {}
        """By call: the node at which the writer made it."""
        self._checker = GraphChecker(self)
        self.followers = [Follower(self, STREAMS[0], only_read) for only_read in (False, True)]

    def number(self, name: str) -> int:
        return self.names.index(name) + 1

    def endpoint_of(self, number: int) -> str:
        return self.endpoint(self.names[number - 1])

    def identity(self, number: int) -> Identity:
        return self._identities[number]

    def peer(self, number: int) -> Peer:
        return self._peers[number]

    def make_node(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> GraphNode:
        return GraphNode(self, name, rng, disk, now_ns)

    def checkers(self) -> list[Any]:
        return [self._checker]

    def next_call(self) -> int:
        self._calls += 1
        return self._calls

    # Requests to the nodes.

    def begin(self, world: World) -> None:
        self._checker.begin(world)
        for host in world.hosts.values():
            # A graph reports what it recovers at a start, and does not write it again
            # (docs/decisions/votes-after-data-loss.md).
            host.disk.cache_is_lost = 1.0
        self.rogue.begin(world)
        world.after(SECOND_NS // 10, self._write, world)
        for follower in self.followers:
            world.after(SECOND_NS, follower.ask, world)
        # A node whose clock was behind has events that others refuse until it writes with the right time.
        clocks_were_wrong = any(fault.kind in CLOCK for fault in self.plan.faults)
        for name in self.names if clocks_were_wrong else ():
            for stream in STREAMS:
                world.after(self.plan.heal_ns + SECOND_NS, self.append, world, name, stream)
                world.after(self.plan.heal_ns + 3 * SECOND_NS, self.append, world, name, stream)

    @property
    def last_write_ns(self) -> int:
        """In liveness mode writes stop at the heal, or the nodes could never become equal."""
        return self.plan.heal_ns

    def _write(self, world: World) -> None:
        if world.now_ns >= self.last_write_ns or len(self.appends) >= WRITES_MAX:
            return
        self.append(world, self.rng.choice(self.names))
        world.after(self.rng.randrange(1, self._pace_ns), self._write, world)

    def append(self, world: World, name: str, stream: str = "") -> None:
        call = self.next_call()
        self.appends[call] = name
        body = client.encode(Append(stream or self.rng.choice((STREAMS[0], STREAMS[0], STREAMS[1]))))
        content = b"%d " % call + bytes(self.rng.choice((0, 10, 200)))
        world.tell(world.hosts[name], Requested(call, "ann", body, content))

    def inject_fault(self, world: World, fault: Fault) -> None:
        if fault.kind == "everybody's power":
            for each in world.hosts.values():
                world.crash(each, power=True, reason=fault.kind)
                world.after(SECOND_NS, world.restart, each)
        else:
            for _ in range(40):
                self.append(world, fault.nodes[0])


WORKLOAD = Graph
