"""Fingerprints at positions that all executors come by, so that nodes that go on meanwhile can be compared.

Decides which positions: every so many cluster messages, and wherever a node is when it is asked. Refuses to know what
a fingerprint is made of.

A fingerprint is made once for a position, however often it is asked for.

Bounds: the last `KEPT` are kept, so nodes can be compared that are less than `KEPT * APART` messages apart.
"""

from __future__ import annotations

from collections.abc import Callable

APART = 1024
"""A fingerprint hashes whatever changed since the last one: not for every message."""
KEPT = 4


class Fingerprints:
    def __init__(self, fingerprint: Callable[[], bytes]) -> None:
        self._fingerprint = fingerprint
        self._kept: dict[int, bytes] = {}
        self._latest = (-1, b"")
        """Where a fingerprint was asked for last, and the fingerprint."""

    def on_applied(self, index: int) -> None:
        """The message of this index was executed, and none behind it."""
        if index % APART == 0:
            self._kept[index] = self._fingerprint()
            while len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]

    def at(self, index: int) -> dict[int, bytes]:
        """The fingerprints that can be given now, at this index, by position."""
        if index not in self._kept and self._latest[0] != index:
            self._latest = (index, self._fingerprint())
        return {**self._kept, index: self._kept.get(index) or self._latest[1]}


def common(held: dict[int, dict[int, str]]) -> tuple[int, dict[int, str]]:
    """Of what each node holds by position: the position that most of them hold, the furthest of these, and what each
    holds there. Zero, and nothing, if nobody holds any.
    """
    counts: dict[int, int] = {}
    for positions in held.values():
        for position in positions:
            counts[position] = counts.get(position, 0) + 1
    if not counts:
        return 0, {}
    best = max(counts, key=lambda position: (counts[position], position))
    return best, {node: positions[best] for node, positions in held.items() if best in positions}
