"""Which nodes run twice: a directory that was copied, and whose copy was started beside the original.

Two processes with one identity take each other's place at everybody's, in turns. An instance is drawn anew at every
start, so one that comes back after another instance of its key did not end when that one began. A last word that is
late brings an instance back once, and then the one that it displaced; more than that is no accident. Decides who is
named; stops nobody: which of two is the copy, nobody else can know.

Bounded: a few instances of each key, and so many keys; what was used longest ago is forgotten first.
"""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.link.events import Peer

INSTANCES_MAX = 4
RETURNS = 3
"""So often somebody came back before it is believed."""
RECENT_NS = 60 * 1_000_000_000
"""How long it is known after the last return, and how long it is not told again."""


class Double(Frozen, frozen=True):
    """Two processes, or more, that are one node."""

    identifier: int
    endpoints: tuple[str, ...]
    """Where they say that they are; both may say the same."""


class _Known:
    __slots__ = ("instances", "returned_ns", "told_ns")

    def __init__(self) -> None:
        self.instances: dict[bytes, Peer] = {}
        """The one that was met last is the last one."""
        self.returned_ns: list[int] = []
        self.told_ns: int | None = None


class DuplicateNodes:
    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._known: dict[bytes, _Known] = {}

    def met(self, now_ns: int, peer: Peer) -> Double | None:
        """A node has a session; gives what is to be told about it."""
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
            known.returned_ns = [*known.returned_ns, now_ns][-RETURNS:]
        if not _is_double(now_ns, known) or (known.told_ns is not None and now_ns - known.told_ns < RECENT_NS):
            return None
        known.told_ns = now_ns
        return _double(known)

    def now(self, now_ns: int) -> list[Double]:
        return [_double(known) for known in self._known.values() if _is_double(now_ns, known)]


def _is_double(now_ns: int, known: _Known) -> bool:
    return len(known.returned_ns) == RETURNS and now_ns - known.returned_ns[0] < RECENT_NS


def _double(known: _Known) -> Double:
    peers = list(known.instances.values())
    return Double(peers[-1].identifier, tuple(sorted({peer.endpoint for peer in peers[-2:]})))
