"""Which nodes that are connected have a part here, and which only a session.

Decides it from the keys of those that the cluster removed, as the journal tells them: whoever has one of these may
connect, to be told that it was removed, but for every layer but the journal it is not there. One that was here when it
was removed lingers until its session ends, for layers that have to agree on doing without it. In a cluster without a
journal nobody is ever removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from chaplain.link.events import Peer

HEARD_EVERY_NS = 10**9
"""Gossip wants to know who was heard, but not of every frame."""


class RemovedNodes:
    def __init__(self, patient: Collection[int]) -> None:
        self.patient = patient
        """Layers that talk with whoever lingers."""
        self._expelled: frozenset[bytes] = frozenset()
        self._heard: dict[bytes, tuple[int, int]] = {}
        """Those that have a part, by instance: identifier, and when gossip was last told that it was heard."""
        self._lingering: dict[bytes, None] = {}

    def is_expelled(self, peer: Peer) -> bool:
        return not peer.client and peer.key in self._expelled

    def enter(self, now_ns: int, peer: Peer) -> None:
        self._heard[peer.instance] = (peer.identifier, now_ns)

    def exit(self, peer: Peer) -> bool:
        """Whether it had a part."""
        return self._heard.pop(peer.instance, None) is not None

    def expel(self, keys: frozenset[bytes], peers: Iterable[Peer]) -> list[Peer]:
        """Those of these peers that had a part, and from now on only linger."""
        self._expelled = keys
        out = [peer for peer in peers if peer.key in keys and self.exit(peer)]
        self._lingering.update((peer.instance, None) for peer in out)
        return out

    def is_shut_out(self, peer: Peer, layer: int) -> bool:
        """Whether what this peer says is not for that layer, unless that is the journal."""
        return self.is_expelled(peer) and not (layer in self.patient and peer.instance in self._lingering)

    def let_go(self, peer: Peer) -> bool:
        """Whether it lingered."""
        lingered = peer.instance in self._lingering
        self._lingering.pop(peer.instance, None)
        return lingered

    def hear(self, now_ns: int, instance: bytes) -> int:
        """The identifier of whom gossip should know that it was heard, or 0."""
        heard = self._heard.get(instance)
        if heard is None or now_ns - heard[1] < HEARD_EVERY_NS:
            return 0
        self._heard[instance] = (heard[0], now_ns)
        return heard[0]
