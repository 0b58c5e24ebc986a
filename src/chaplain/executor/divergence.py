"""Divergence check of one database: compares the fingerprints of all executors at the same position.

Decides which executor has diverged: one that a majority of all executors contradicts. If all have reported and no
majority agrees, all count as diverged, because the correct one cannot be determined. An executor that only a minority
contradicts continues and reports the difference. This module does not know the cause.

Only executors count. Any member can send a fingerprint; with one or two executors a single lying member could otherwise
stop them.

Invariants: an executor that agrees with a majority is never stopped; a position that this node has not reached is not
judged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection

from chaplain.core import Frozen

HISTORY_MAX = 4096
"""Own fingerprints that are remembered."""
HEARD_MAX = 64
"""Positions at which fingerprints of others wait for ours."""


class FingerprintMismatch(Frozen, frozen=True):
    """Fingerprints differ."""

    index: int
    nodes: tuple[int, ...]
    """The executors whose fingerprints differ from ours."""
    diverged: bool
    """True if this node is the one that diverged."""


class DivergenceCheck:
    def __init__(self, executors: Callable[[], Collection[int]]) -> None:
        """`executors` returns the node ids of all executors, including this one."""
        self._executors = executors
        self._indexes: deque[int] = deque(maxlen=HISTORY_MAX)
        self._own: deque[bytes] = deque(maxlen=HISTORY_MAX)
        self._heard: dict[int, dict[int, bytes]] = {}
        self._reported: set[tuple[int, int]] = set()

    def record_own(self, index: int, fingerprint: bytes) -> FingerprintMismatch | None:
        """Record our fingerprint after a message."""
        assert not self._indexes or index > self._indexes[-1], "a position was reached twice"
        self._indexes.append(index)
        self._own.append(fingerprint)
        return self._compare(index) if index in self._heard else None

    def record_peer(self, node: int, index: int, fingerprint: bytes) -> FingerprintMismatch | None:
        """Record another executor's fingerprint."""
        if node not in self._executors():
            return None
        self._heard.setdefault(index, {})[node] = fingerprint
        if len(self._heard) > HEARD_MAX:
            del self._heard[min(self._heard)]
        return self._compare(index)

    def at(self, index: int) -> bytes | None:
        """Our fingerprint at a position, which may be between messages; None if it is no longer remembered."""
        place = bisect_right(self._indexes, index)
        return self._own[place - 1] if place else None

    def _compare(self, index: int) -> FingerprintMismatch | None:
        place = bisect_right(self._indexes, index) - 1
        heard = self._heard.get(index)
        if heard is None or place < 0 or self._indexes[place] != index:
            return None
        own, executors = self._own[place], self._executors()
        heard = {node: fingerprint for node, fingerprint in heard.items() if node in executors}
        differing = tuple(sorted(node for node, fingerprint in heard.items() if fingerprint != own))
        if not differing:
            return None
        mismatch = FingerprintMismatch(index, differing, self._outvoted(own, heard))
        new = mismatch.diverged or any((index, node) not in self._reported for node in differing)
        self._reported = {(index, node) for node in differing}
        return mismatch if new else None

    def _outvoted(self, own: bytes, heard: dict[int, bytes]) -> bool:
        """True if this executor has diverged: a majority has another fingerprint, or all have reported and no
        fingerprint has a majority.
        """
        votes = Counter([own, *heard.values()])
        winner, count = votes.most_common(1)[0]
        executors = len(self._executors())
        if 2 * count > executors:
            return winner != own
        return len(heard) + 1 >= executors
