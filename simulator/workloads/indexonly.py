"""Index-only serializers: three that store only the order, and two or three nodes that hold data, as in `retention`.

What must hold is what `retention` demands, and in addition: before a serializer is shown a message, `copies` nodes have
it on disk with its payloads. One disk is wiped in a run: that of a serializer, or that of a node that holds data, if
there are copies elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from simulator.checkers.index_only import CopiesChecker
from simulator.workloads.retention import Retention

SERIALIZERS = 3


class IndexOnly(Retention):
    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.heals_all = True
        self._copies = CopiesChecker(self)

    def draw_size(self, rng: Random) -> int:
        holders = rng.choice((2, 2, 3))
        self.copies = min(holders, rng.choice((1, 2, 2, 2, 3)))
        return SERIALIZERS + holders

    @property
    def serializers(self) -> tuple[int, ...]:
        return self.numbers[:SERIALIZERS]

    @property
    def holders(self) -> Sequence[str]:
        return self.names[SERIALIZERS:]

    @property
    def client_nodes(self) -> list[str]:
        """Serializers accept only configuration requests, so few clients go there."""
        return [*self.names, *self.holders, *self.holders, *self.holders]

    def demands(self, healed: Sequence[str], voting: Sequence[str], forgetful: Sequence[str] = ()) -> bool:
        """New messages need copies, and some node must have what was ordered before."""
        here = sum(name in healed for name in self.holders)
        return (
            super().demands(healed, voting, forgetful)
            and here >= self.copies
            and here + self.copies > len(self.holders)
        )

    def checkers(self) -> list[Any]:
        return [*super().checkers(), self._copies]

    def may_damage(self, name: str) -> bool:
        return (name not in self.holders or self.copies > 1) and super().may_damage(name)


WORKLOAD = IndexOnly
