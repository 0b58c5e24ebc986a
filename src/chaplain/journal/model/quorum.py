"""Quorums: a majority of one serializer set, or of two sets at once while one replaces the other.

Decides only by counting. Does not know what the nodes agreed to, or which nodes are alive.

Invariant: any two quorums of one configuration share a node. A quorum of one set and a joint quorum of that set and
another one share a node, too. This makes the change from one set to the next safe, as joint consensus does in Raft; see
docs/protocol/configuration.md.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from chaplain.core import Frozen


class Quorum(Frozen, frozen=True, dict=True, gc=True):
    """One serializer set, or two during a change."""

    sets: tuple[tuple[int, ...], ...]
    """One set, or the old one and the new one."""

    @cached_property
    def voters(self) -> tuple[int, ...]:
        """All nodes of the sets, in rising order."""
        return tuple(sorted({node for members in self.sets for node in members}))

    def reached(self, nodes: Collection[int]) -> bool:
        """True if these nodes include more than half of each set."""
        for members in self.sets:
            found = 0
            for node in members:
                found += node in nodes
            if found <= len(members) // 2:
                return False
        return True
