"""Which nodes that are connected have a part here, and which only a session.

Decides it from the keys of those that the cluster removed, as the journal tells them: whoever has one of these may
connect, to be told that it was removed, but for every layer but the journal it is not there. In a cluster without a
journal nobody is ever removed.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.link.events import Peer

HEARD_EVERY_NS = 10**9
"""Gossip wants to know who was heard, but not of every frame."""


class Presence:
    def __init__(self) -> None:
        self._expelled: frozenset[bytes] = frozenset()
        self._heard: dict[bytes, tuple[int, int]] = {}
        """Those that have a part, by instance: identifier, and when gossip was last told that it was heard."""

    def is_expelled(self, peer: Peer) -> bool:
        return not peer.client and peer.key in self._expelled

    def enter(self, now_ns: int, peer: Peer) -> None:
        self._heard[peer.instance] = (peer.identifier, now_ns)

    def exit(self, peer: Peer) -> bool:
        """Whether it had a part."""
        return self._heard.pop(peer.instance, None) is not None

    def expel(self, keys: frozenset[bytes], peers: Iterable[Peer]) -> list[Peer]:
        """Those of these peers that had a part, and have none any more."""
        self._expelled = keys
        return [peer for peer in peers if peer.key in keys and self.exit(peer)]

    def hear(self, now_ns: int, instance: bytes) -> int:
        """The identifier of whom gossip should know that it was heard, or 0."""
        heard = self._heard.get(instance)
        if heard is None or now_ns - heard[1] < HEARD_EVERY_NS:
            return 0
        self._heard[instance] = (heard[0], now_ns)
        return heard[0]
