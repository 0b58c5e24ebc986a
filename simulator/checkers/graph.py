"""Checks the graph from outside: no accepted event is lost, no member counts twice, and all Models become equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chaplain.core import Persisted, Send, Settled
from chaplain.errors import Malformed
from chaplain.graph.messages import peer
from chaplain.graph.messages.client import Appended, Page, decode_answer
from chaplain.graph.messages.event import SignedEvent, decode
from chaplain.graph.messages.peer import EventBatch, Fetched, Inv, SyncEvent
from chaplain.graph.stream import Stream
from chaplain.units import MILLISECOND_NS, SECOND_NS
from chaplain.wire import parcel
from simulator.checkers.base import Watcher
from simulator.world.machine import Host

if TYPE_CHECKING:
    from simulator.workloads.graph import Graph
    from simulator.world.world import World

EQUAL_NS = 10 * SECOND_NS
"""How long after a heal all Models must be equal, including the transfer."""
_LOOK_NS = 250 * MILLISECOND_NS


class GraphChecker(Watcher):
    name = "graph"

    def __init__(self, workload: Graph) -> None:
        self._workload = workload
        self._world: World | None = None
        self._events: dict[bytes, SignedEvent] = {}
        """All events that were ever on a disk."""
        self._has: dict[str, set[bytes]] = {name: set() for name in workload.names}
        """By node: the events that it was seen to have on disk."""
        self._read: dict[str, set[bytes]] = {name: set() for name in workload.names}
        self._promised: dict[str, dict[bytes, str]] = {name: {} for name in workload.names}
        """By node: the events that it claimed to have, and how."""
        self._durable: dict[tuple[str, str], int] = {}
        self._ranked: dict[tuple[str, str], int] = {}
        self._half = len(workload.founders) // 2
        """How many others must have an event that is called read. No member is ever removed, however silent."""
        self._equal_ns: int | None = None
        self._keys = {workload.identity(number).key: workload.names[number - 1] for number in workload.numbers}

    def begin(self, world: World) -> None:
        self._world = world
        if self._workload.plan.healed:
            world.at(self._workload.plan.heal_ns, self._look)

    # Processes.

    def process_started(self, time_ns: int, host: Host, /) -> None:
        """A starting node has everything that it ever claimed to have, and read events stay read."""
        graph = _graph(host)
        found = {stream.model.id_of(n) for stream in graph.streams.values() for n in range(stream.durable)}
        for event_id, how in self._promised[host.name].items():
            if event_id not in found:
                self.complain(f"{host.name} lost an event that it had {how}")
        for event_id in self._read[host.name]:
            if not any(_is_read(stream, event_id) for stream in graph.streams.values()):
                self.complain(f"{host.name} forgot that an event was read")
        for name, stream in graph.streams.items():
            self._durable[host.name, name] = self._ranked[host.name, name] = 0
            self._note(host, name, stream)

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        graph = _graph(host)
        if isinstance(event, Persisted):
            for name, stream in graph.streams.items():
                self._note(host, name, stream)
        for effect in effects:
            if isinstance(effect, Settled):
                self._settled(host, effect)
            elif isinstance(effect, Send):
                self._sent(host, effect.frame)
        settings = self._workload.settings
        if len(graph.admission.orphans) > settings.orphans_max:
            self.complain(f"{host.name} keeps {len(graph.admission.orphans)} orphans")
        for event_id in graph.admission.refused.ids():
            if any(stream.model.find(event_id) >= 0 for stream in graph.streams.values()):
                self.complain(f"{host.name} has an event that it refuses as too old")

    # What a node has, and what it claims.

    def _note(self, host: Host, name: str, stream: Stream) -> None:
        """Check the events that are newly on disk or newly read."""
        model, key = stream.model, (host.name, name)
        for number in range(self._durable.get(key, 0), stream.durable):
            parents = model.parents_of(number)
            if any(parent >= number for parent in parents):
                self.complain(f"{host.name} has a child before its parent")
            self._has[host.name].add(model.id_of(number))
        self._durable[key] = stream.durable
        for number in model.read_order[self._ranked.get(key, 0) :]:
            self._became_read(host, stream, number)
        self._ranked[key] = len(model.read_order)

    def _became_read(self, host: Host, stream: Stream, number: int) -> None:
        event_id, model = stream.model.id_of(number), stream.model
        author = self._keys.get(model.author_of(number), "")
        self._read[host.name].add(event_id)
        having = [name for name, has in self._has.items() if event_id in has and name != author]
        if len(having) < self._half - 1:  # the rogue may say that it has whatever it likes
            self.complain(f"{host.name} calls an event read that {len(having)} others have")
        if any(not model.is_read(parent) for parent in model.parents_of(number)):
            self.complain(f"{host.name} calls an event read whose parent is not")

    def _settled(self, host: Host, settled: Settled) -> None:
        if self._workload.appends.get(settled.call) == host.name and not settled.kind:
            self._promise(host, decode_answer(settled.payload, Appended).id, "acknowledged")
            return
        assert self._world is not None
        for row in decode_answer(settled.payload, Page).rows if not settled.kind else ():
            if decode(row.raw).id not in self._has[host.name]:
                self.complain(f"{host.name} shows an event that is not on its disk")
        for follower in self._workload.followers:
            follower.answered(self._world, settled)

    def _promise(self, host: Host, event_id: bytes, how: str) -> None:
        self._promised[host.name].setdefault(event_id, how)

    def _sent(self, host: Host, frame: bytes) -> None:
        said = parcel.decode(frame[1:])
        try:
            message = peer.decode(said.body, said.payload)
        except Malformed as wrong:
            self.complain(f"{host.name} says what nobody can read: {wrong}")
        own = self._workload.identity(self._workload.number(host.name)).key
        match message:
            case EventBatch() | Fetched():
                for item in message.items:
                    self._given(host, own, item)
            case Inv():
                for word in message.confirmations:
                    if word.member == own:
                        self._promise(host, word.event, "confirmed")
            case SyncEvent():
                for leaves in message.streams:
                    for event_id in leaves.ids:
                        self._promise(host, event_id, "told as a leaf")
            case _:
                pass

    def _given(self, host: Host, own: bytes, item: Any) -> None:
        event = decode(item.raw)
        self._events.setdefault(event.id, event)
        if event.author == own:
            self._promise(host, event.id, "broadcast")
        if any(member == own for member, _ in item.confirmations):
            self._promise(host, event.id, "confirmed")

    # The end of the run.

    def _look(self) -> None:
        """After the heal: check whether the Models are equal yet."""
        world = self._world
        assert world is not None
        graphs = [_graph(host) for host in world.hosts.values() if host.core is not None]
        prints = {
            tuple(sorted((name, stream.durable, stream.model.fingerprint) for name, stream in graph.streams.items()))
            for graph in graphs
        }
        everything = set().union(*self._has.values())
        if len(graphs) == len(world.hosts) and len(prints) == 1:
            (only,) = prints
            if sum(durable for _, durable, _ in only) == len(everything):
                self._equal_ns = world.now_ns
                return
        world.after(_LOOK_NS, self._look)

    def finish(self, healed: Sequence[Host], /) -> None:
        assert self._world is not None
        hosts = [host for host in self._world.hosts.values() if host.up]
        for host in hosts:
            for stream in _graph(host).streams.values():
                self._judge_order(host, stream)
        if healed:
            self._judge_heal(healed)
        self._world.counts["events"] += len(set().union(*self._has.values()))
        self._world.counts["forks"] += sum(len(s.model.forks) for host in hosts for s in _graph(host).streams.values())

    def is_satisfied(self, healed: Sequence[Host], /) -> bool:
        return all(host.up for host in healed) and not self._wrong(healed)

    def _judge_heal(self, healed: Sequence[Host]) -> None:
        wrong = self._wrong(healed)
        if wrong:
            self.complain(wrong)

    def _wrong(self, healed: Sequence[Host]) -> str:
        """What is not yet as it must be after a heal."""
        heal_ns = self._workload.plan.heal_ns
        if self._equal_ns is None:
            return "after the heal the Models never became equal"
        if self._equal_ns - heal_ns > EQUAL_NS:
            return f"the Models were equal only {(self._equal_ns - heal_ns) / SECOND_NS:.1f} s after the heal"
        for host in healed:
            for name, stream in _graph(host).streams.items():
                if len(stream.model.read_order) != len(stream.model):
                    return f"{host.name} still has unread events of {name} in the end"
        for follower in self._workload.followers:
            stream = _graph(healed[0]).streams.get(follower.stream)
            if stream is not None and len(follower.seen) != len(stream.model):
                return f"a reader got {len(follower.seen)} of {len(stream.model)} events"
        return ""

    def _judge_order(self, host: Host, stream: Stream) -> None:
        """Compute the order and the leaves again from the events themselves."""
        model = stream.model
        order = list(model.ordered())
        words = [(model.height_of(number), model.id_of(number)) for number in range(len(model))]
        if [words[number] for number in order] != sorted(words):
            self.complain(f"{host.name} has another order than by height and id")
        known = [self._events.get(event_id) for _, event_id in words]
        named = {link.id for event in known if event is not None for link in event.links}
        if all(event is not None for event in known):
            leaves = {event_id for _, event_id in words if event_id not in named}
            if leaves != {model.id_of(number) for number in model.leaves}:
                self.complain(f"{host.name} has other leaves than its events say")
            if any(event.height != height for event, (height, _) in zip(known, words, strict=True) if event):
                self.complain(f"{host.name} has another height than the event says")


def _is_read(stream: Stream, event_id: bytes) -> bool:
    number = stream.model.find(event_id)
    return number >= 0 and stream.model.is_read(number)


def _graph(host: Host) -> Any:
    core: Any = host.core
    return core.graph
