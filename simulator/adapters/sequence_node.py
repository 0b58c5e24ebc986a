"""Adapter that runs a sequence core in the simulator.

It dials every peer and begins each frame with its number and its instance. What link and mesh guarantee is assumed
here: messages of an instance that was replaced are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from chaplain.core import Arrived, Send
from chaplain.gossip.events import GossipParcel
from chaplain.link.events import Meet, Peer
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.sequence.core import SequenceCore
from chaplain.sequence.settings import SequenceSettings
from chaplain.wire import parcel
from simulator.adapters.core_adapter import CoreAdapter
from simulator.adapters.dialer import Dialer

LEAD = 17
"""Bytes of a frame before its content: number and instance."""


class SequenceNode(CoreAdapter):
    """A sequence core that a host can run."""

    def __init__(self, settings: SequenceSettings, endpoint_of: Callable[[int], str], rng: Random, now_ns: int) -> None:
        self._rng = rng
        self._endpoint_of = endpoint_of
        self.number = settings.identifier
        self.instance = rng.randbytes(16)
        self.routing_id = b"\x01" + self.instance
        self.sequence = SequenceCore(settings, rng, now_ns)
        self._lead = bytes((self.number,)) + self.instance
        super().__init__(self.sequence, Dialer(settings.listed, endpoint_of, rng, now_ns))
        self._shown: dict[int, bytes] = {}
        """The latest instance of each peer."""
        self._present: dict[int, bytes] = {}
        """Peers that were reported as entered."""
        self._replaced: set[bytes] = set()

    def _up(self, now_ns: int, peer: int, effects: list[Any]) -> None:
        effects.append(Send(self._dialer.to[peer], self._lead))
        self._see(now_ns, peer, effects)

    def _peer(self, number: int, instance: bytes) -> Peer:
        return Peer(instance, number, bytes(32), self._endpoint_of(number))

    def _arrived(self, now_ns: int, event: Arrived, effects: list[Any]) -> None:
        instance = event.frame[1:LEAD]
        if instance in self._replaced:
            return
        number = self._dialer.arrived(event)
        former = self._shown.get(number)
        if former is not None and former != instance:
            self._replaced.add(former)
            self._exit(now_ns, number, effects)
        self._shown[number] = instance
        self._see(now_ns, number, effects)
        if len(event.frame) > LEAD and self._present.get(number) == instance:
            content = parcel.decode(event.frame[LEAD:])
            self._feed(now_ns, GossipParcel(self._peer(number, instance), content), effects)

    def _see(self, now_ns: int, number: int, effects: list[Any]) -> None:
        instance = self._shown.get(number)
        if instance is not None and number in self._dialer.to and number not in self._present:
            self._present[number] = instance
            self._feed(now_ns, Entered(self._peer(number, instance), {}), effects)

    def _exit(self, now_ns: int, number: int, effects: list[Any]) -> None:
        instance = self._present.pop(number, None)
        if instance is not None:
            self._feed(now_ns, Exited(self._peer(number, instance), "gone"), effects)

    def _down(self, now_ns: int, peer: int, reason: str, effects: list[Any]) -> None:
        self._exit(now_ns, peer, effects)

    def _feed(self, now_ns: int, event: Any, effects: list[Any]) -> None:
        for effect in self.sequence.step(now_ns, event):
            match effect:
                case Whisper():
                    peer = next((who for who, instance in self._present.items() if instance == effect.instance), 0)
                    if peer in self._dialer.to:
                        effects.append(Send(self._dialer.to[peer], self._lead + effect.content))
                case Meet():
                    pass
                case _:
                    effects.append(effect)
