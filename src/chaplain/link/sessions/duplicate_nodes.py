"""Detects nodes that run twice: the data directory was copied, and the copy was started beside the original.

Two processes with one identity displace each other's sessions in turns. Each process start has a new random instance.
So if an older instance returns after a newer one, the older process did not end when the newer one started. A late
message can cause two returns: of an old instance, and then of the instance that it displaced. `RETURNS_MIN` returns
cannot be explained in this way. This module reports a duplicate and stops neither process: other nodes cannot know
which of the two is the copy.

Bounds: `INSTANCES_MAX` instances of each key, and `keys_max` keys; the least recently used are forgotten first.
"""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.link.events import Peer

INSTANCES_MAX = 4
"""Instances remembered of each key."""
RETURNS_MIN = 3
"""Returns within `RECENT_NS` that identify a duplicate."""
RECENT_NS = 60 * 1_000_000_000
"""The period over which returns are counted, and the interval between two reports of the same duplicate."""


class DuplicateNode(Frozen, frozen=True):
    """A node identity that two or more running processes use."""

    identifier: int
    endpoints: tuple[str, ...]
    """The endpoints that they advertise; both may advertise the same."""


class _Known:
    __slots__ = ("instances", "reported_ns", "returned_ns")

    def __init__(self) -> None:
        self.instances: dict[bytes, Peer] = {}
        """In the order of their last sessions."""
        self.returned_ns: list[int] = []
        self.reported_ns: int | None = None


class DuplicateNodes:
    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._known: dict[bytes, _Known] = {}

    def met(self, now_ns: int, peer: Peer) -> DuplicateNode | None:
        """Record a new session of a node. Returns a duplicate that is to be reported now."""
        known = self._known.pop(peer.key, None) or _Known()
        self._known[peer.key] = known
        if len(self._known) > self._keys_max:
            del self._known[next(iter(self._known))]
        last = next(reversed(known.instances), None)
        returned = known.instances.pop(peer.instance, None) is not None
        known.instances[peer.instance] = peer
        if len(known.instances) > INSTANCES_MAX:
            del known.instances[next(iter(known.instances))]
        if returned and last != peer.instance:
            known.returned_ns = [*known.returned_ns, now_ns][-RETURNS_MIN:]
        if not _is_duplicate(now_ns, known) or (
            known.reported_ns is not None and now_ns - known.reported_ns < RECENT_NS
        ):
            return None
        known.reported_ns = now_ns
        return _duplicate(known)

    def current(self, now_ns: int) -> list[DuplicateNode]:
        """All duplicates at this time."""
        return [_duplicate(known) for known in self._known.values() if _is_duplicate(now_ns, known)]


def _is_duplicate(now_ns: int, known: _Known) -> bool:
    return len(known.returned_ns) == RETURNS_MIN and now_ns - known.returned_ns[0] < RECENT_NS


def _duplicate(known: _Known) -> DuplicateNode:
    peers = list(known.instances.values())
    return DuplicateNode(peers[-1].identifier, tuple(sorted({peer.endpoint for peer in peers[-2:]})))
