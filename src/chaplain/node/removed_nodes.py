"""Tracks connected nodes that the cluster has removed, and which layers may still exchange messages with them.

The journal supplies the keys of removed nodes. A removed node may connect, so that it learns of its removal, but only
the journal sees it. If a node is connected when it is removed, some layers have to agree on continuing without it
(`serves_removed_nodes`). They exchange messages with it until its session ends; the node *lingers*. In a cluster
without a journal no node is ever removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from chaplain.link.events import Peer
from chaplain.units import SECOND_NS

HEARD_EVERY_NS = SECOND_NS
"""The interval of sign-of-life messages to gossip for each peer; every frame would be too many."""


class RemovedNodes:
    def __init__(self, still_served_by: Collection[int]) -> None:
        self.still_served_by = still_served_by
        """Layers that exchange messages with lingering nodes."""
        self._expelled: frozenset[bytes] = frozenset()
        self.connected: dict[bytes, tuple[int, int]] = {}
        """Connected nodes that are not removed, by instance: identifier, and when gossip was last informed."""
        self._lingering: dict[bytes, None] = {}
        """Instances that were removed while they were connected."""

    def is_expelled(self, peer: Peer) -> bool:
        return not peer.client and peer.key in self._expelled

    def enter(self, now_ns: int, peer: Peer) -> None:
        self.connected[peer.instance] = (peer.identifier, now_ns)

    def exit(self, peer: Peer) -> bool:
        """Whether the peer was connected and not removed."""
        return self.connected.pop(peer.instance, None) is not None

    def expel(self, keys: frozenset[bytes], peers: Iterable[Peer]) -> list[Peer]:
        """Return the connected peers that are removed now and linger from now on."""
        self._expelled = keys
        out = [peer for peer in peers if peer.key in keys and self.exit(peer)]
        self._lingering.update((peer.instance, None) for peer in out)
        return out

    def is_excluded(self, peer: Peer, layer: int) -> bool:
        """Whether this layer must not get messages of the peer. The journal gets all messages."""
        return self.is_expelled(peer) and not (layer in self.still_served_by and peer.instance in self._lingering)

    def end_lingering(self, peer: Peer) -> bool:
        """Whether the peer was lingering; its session has ended."""
        lingered = peer.instance in self._lingering
        self._lingering.pop(peer.instance, None)
        return lingered

    def record_heard(self, now_ns: int, instance: bytes) -> int:
        """Gossip is informed of a sign of life of this connected node. Returns the node's identifier."""
        identifier, _ = self.connected[instance]
        self.connected[instance] = (identifier, now_ns)
        return identifier
