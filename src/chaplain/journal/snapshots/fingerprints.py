"""Fingerprints of the state at positions that all executors pass, so that running nodes can be compared.

Decides at which positions: after every `APART` cluster messages, and at the current position when a fingerprint is
requested. Refuses to know how a fingerprint is computed.

A fingerprint is computed only once for each position.

Bounds: the last `KEPT` are retained, so two nodes can be compared if they are less than `KEPT * APART` messages apart.
"""

from __future__ import annotations

from collections.abc import Callable

APART = 1024
"""A fingerprint hashes everything that changed since the last one; that is too expensive for every message."""
KEPT = 4


class Fingerprints:
    """The latest fingerprints of one node, by position."""

    def __init__(self, fingerprint: Callable[[], bytes]) -> None:
        self._fingerprint = fingerprint
        self._kept: dict[int, bytes] = {}
        self._latest = (-1, b"")
        """Position and fingerprint of the latest request."""

    def add(self, index: int) -> None:
        """Store a fingerprint. The state must be the one directly after this message, whose index is a multiple of
        `APART`.
        """
        assert index % APART == 0, "a fingerprint at a position that other nodes do not have"
        self._kept[index] = self._fingerprint()
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def at(self, index: int) -> dict[int, bytes]:
        """The fingerprints that are available at this index, by position."""
        if index not in self._kept and self._latest[0] != index:
            self._latest = (index, self._fingerprint())
        return {**self._kept, index: self._kept.get(index) or self._latest[1]}


def common(held: dict[int, dict[int, str]]) -> tuple[int, dict[int, str]]:
    """The position that most nodes have in common, and the fingerprint of each node there. Of several such positions,
    the highest one. Zero and an empty dictionary if no node has a fingerprint.
    """
    counts: dict[int, int] = {}
    for positions in held.values():
        for position in positions:
            counts[position] = counts.get(position, 0) + 1
    if not counts:
        return 0, {}
    best = max(counts, key=lambda position: (counts[position], position))
    return best, {node: positions[best] for node, positions in held.items() if best in positions}
