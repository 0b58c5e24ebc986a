"""Which nodes are enough: a majority of one set of serializers, or of two sets at once while one replaces the other.

Decides by counting alone. Refuses to know what is counted, and who is alive.

Invariant: two quorums of one configuration share a node, and so do a quorum of one set and a quorum of this set and
another jointly. That is what makes a change from a set to the next one safe; see docs/protocol/configuration.md.
"""

from __future__ import annotations

from collections.abc import Collection

from chaplain.core import Frozen


class Quorum(Frozen, frozen=True):
    sets: tuple[tuple[int, ...], ...]
    """One set, or the old one and the new one."""

    @property
    def voters(self) -> tuple[int, ...]:
        """Everybody who counts, in rising order."""
        return tuple(sorted({node for members in self.sets for node in members}))

    def reached(self, nodes: Collection[int]) -> bool:
        """Whether these are more than half of each set."""
        for members in self.sets:
            found = 0
            for node in members:
                found += node in nodes
            if found <= len(members) // 2:
                return False
        return True
