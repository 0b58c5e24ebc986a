"""Whether executors still agree about one database: fingerprints of the same position, side by side.

Decides who has diverged: whoever is contradicted by a majority of all executors; or everybody, if all have spoken and
no majority agrees, because then nobody can tell. One executor that is contradicted by a minority goes on and says whom
it differs from. Refuses to know why.

Only executors are counted. Any member can send a fingerprint, and where there are one or two executors a single member
that lies would otherwise stop them.

Invariants: who agrees with a majority is never stopped; nothing is decided about a position that was not reached here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection

from chaplain.core import Frozen

HISTORY_MAX = 4096
"""Own fingerprints that are remembered."""
HEARD_MAX = 64
"""Positions at which others' fingerprints wait for ours."""


class FingerprintMismatch(Frozen, frozen=True):
    """Fingerprints differ."""

    index: int
    nodes: tuple[int, ...]
    """Whose differ from ours."""
    diverged: bool
    """Whether it is us."""


class Comparison:
    def __init__(self, executors: Callable[[], Collection[int]]) -> None:
        """`executors` gives the node ids of all executors, our own among them."""
        self._executors = executors
        self._indexes: deque[int] = deque(maxlen=HISTORY_MAX)
        self._own: deque[bytes] = deque(maxlen=HISTORY_MAX)
        self._heard: dict[int, dict[int, bytes]] = {}
        self._told: set[tuple[int, int]] = set()

    def reached(self, index: int, fingerprint: bytes) -> FingerprintMismatch | None:
        """We have this one after that message."""
        assert not self._indexes or index > self._indexes[-1], "a position was reached twice"
        self._indexes.append(index)
        self._own.append(fingerprint)
        return self._judge(index) if index in self._heard else None

    def heard(self, node: int, index: int, fingerprint: bytes) -> FingerprintMismatch | None:
        """That is another's."""
        if node not in self._executors():
            return None
        self._heard.setdefault(index, {})[node] = fingerprint
        if len(self._heard) > HEARD_MAX:
            del self._heard[min(self._heard)]
        return self._judge(index)

    def at(self, index: int) -> bytes | None:
        """Ours at a position between messages; None if it is not known any more."""
        place = bisect_right(self._indexes, index)
        return self._own[place - 1] if place else None

    def _judge(self, index: int) -> FingerprintMismatch | None:
        place = bisect_right(self._indexes, index) - 1
        heard = self._heard.get(index)
        if heard is None or place < 0 or self._indexes[place] != index:
            return None
        own, executors = self._own[place], self._executors()
        heard = {node: fingerprint for node, fingerprint in heard.items() if node in executors}
        differing = tuple(sorted(node for node, fingerprint in heard.items() if fingerprint != own))
        if not differing:
            return None
        told = FingerprintMismatch(index, differing, self._outvoted(own, heard))
        new = told.diverged or any((index, node) not in self._told for node in differing)
        self._told = {(index, node) for node in differing}
        return told if new else None

    def _outvoted(self, own: bytes, heard: dict[int, bytes]) -> bool:
        votes = Counter([own, *heard.values()])
        winner, count = votes.most_common(1)[0]
        executors = len(self._executors())
        if 2 * count > executors:
            return winner != own
        return len(heard) + 1 >= executors
