"""Adapter that runs a graph core in the simulator.

It dials every peer, begins each frame with its number, reads its log back from what it has written, and verifies
signatures with a short delay. In some seeds it reports peers that are away for long as having left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from chaplain.core import (
    Arrived,
    Persist,
    Send,
)
from chaplain.gossip.events import GossipParcel, MemberChanged, MemberState, MemberView
from chaplain.graph.core import GraphCore
from chaplain.graph.events import CheckSignatures, EventsRead, ReadEvents, SignaturesChecked, holds
from chaplain.graph.storage.store import events_at
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.units import SECOND_NS
from chaplain.wire import parcel
from simulator.adapters.core_adapter import CoreAdapter
from simulator.adapters.delayed_answers import DelayedAnswers
from simulator.adapters.dialer import Dialer
from simulator.world.disk import apply, segments_of

if TYPE_CHECKING:
    from simulator.workloads.graph import Graph

_LEFT_NS = 6 * SECOND_NS


class GraphNode(CoreAdapter):
    """A graph core that a host can run."""

    def __init__(self, workload: Graph, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> None:
        self._workload = workload
        self._rng = rng
        self.routing_id = b"\x01" + rng.randbytes(16)
        self.number = workload.number(name)
        self._files = {file: bytearray(data) for file, data in disk.items()}
        self.graph = GraphCore(
            workload.settings,
            workload.identity(self.number),
            rng,
            now_ns=now_ns,
            founders=workload.founders,
            segments=segments_of(disk),
        )
        self._begun = False
        peers = (peer for peer in workload.numbers if peer != self.number)
        super().__init__(self.graph, Dialer(peers, workload.endpoint_of, rng, now_ns))
        self._left_ns: dict[int, int] = {}
        self._delayed = DelayedAnswers(rng)

    def step(self, now_ns: int, event: Any, /) -> list[Any]:
        effects: list[Any] = []
        if not self._begun:
            self._begun = True
            self._feed(now_ns, Entered(self._workload.rogue.peer, {}), effects)
        return effects + super().step(now_ns, event)

    def _due(self) -> Iterable[int]:
        return (*self._left_ns.values(), *self._delayed.due())

    def _arrived(self, now_ns: int, event: Arrived, effects: list[Any]) -> None:
        number = self._dialer.arrived(event)
        self._feed(now_ns, GossipParcel(self._workload.peer(number), parcel.decode(event.frame[1:])), effects)

    def _up(self, now_ns: int, peer: int, effects: list[Any]) -> None:
        self._left_ns.pop(peer, None)
        if self._workload.leaving:
            self._feed(now_ns, self._member(peer, MemberState.ALIVE), effects)
        self._feed(now_ns, Entered(self._workload.peer(peer), {}), effects)

    def _member(self, number: int, state: MemberState) -> MemberChanged:
        peer = self._workload.peer(number)
        return MemberChanged(MemberView(peer.identifier, peer.endpoint, peer.key, 1, state), None)

    def _down(self, now_ns: int, peer: int, reason: str, effects: list[Any]) -> None:
        if self._workload.leaving:
            self._left_ns.setdefault(peer, now_ns + _LEFT_NS)
        self._feed(now_ns, Exited(self._workload.peer(peer), reason), effects)

    def _late(self, now_ns: int) -> Iterator[Any]:
        for peer in [peer for peer, when in self._left_ns.items() if when <= now_ns]:
            del self._left_ns[peer]
            yield self._member(peer, MemberState.LEFT)
        yield from self._delayed.take(now_ns)

    def _feed(self, now_ns: int, event: Any, effects: list[Any]) -> None:
        """Step the graph, and carry out the effects that a host does not know."""
        for effect in self.graph.step(now_ns, event):
            match effect:
                case Whisper():
                    self._whisper(effect, effects)
                case ReadEvents():
                    raws = events_at([data for _, data in segments_of(self._files)], effect.places)
                    self._delayed.add(now_ns, EventsRead(effect.token, raws))
                case CheckSignatures():
                    answer = SignaturesChecked(effect.ticket, tuple(map(holds, effect.checks)))
                    self._delayed.add(now_ns, answer)
                case Persist():
                    for operation in effect.operations:
                        apply(self._files, operation)
                    effects.append(effect)
                case _:
                    effects.append(effect)

    def _whisper(self, effect: Whisper, effects: list[Any]) -> None:
        for peer, dial in self._dialer.to.items():
            if self._workload.peer(peer).instance == effect.instance:
                effects.append(Send(dial, bytes((self.number,)) + effect.content))
                return
