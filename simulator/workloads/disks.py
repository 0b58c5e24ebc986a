"""The whole journal, as in `retention`, while the disks of all nodes are replaced, one after the other.

A disk is replaced when every other node has a vote and lacks nothing that is retained, as an operator does who watches
the status of the nodes. An admin releases the first part of the log, and no retention rule drops anything.

What must hold is what `retention` demands: at the end every node has everything that was not released.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from chaplain.journal.settings import RetentionRules
from chaplain.units import SECOND_NS
from simulator.checkers.requests import has_a_vote
from simulator.checkers.retention import first_of
from simulator.workloads.requests import Requests
from simulator.workloads.retention import Retention
from simulator.world.world import World

_LOOK_NS = SECOND_NS
_REPLACED_MAX = 4


class Disks(Retention):
    kinds: ClassVar[Sequence[str]] = (*Requests.kinds, "long absence")

    padding_bytes: ClassVar[int] = 600

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.rules = RetentionRules()
        self.heals_all = self.asks = True
        self._left = rng.randrange(1, _REPLACED_MAX)

    def begin(self, world: World) -> None:
        super().begin(world)
        world.after(3 * SECOND_NS, self._replace, world)

    def _replace(self, world: World) -> None:
        """Replace a disk if no other node lacks anything, and no node has the start of the log any more."""
        if not self._left or self.damaged or world.now_ns >= self.plan.heal_ns + 5 * SECOND_NS:
            return
        world.after(_LOOK_NS, self._replace, world)
        host = world.hosts[self.rng.choice(self.names)]
        others = [world.hosts[name] for name in self.names if name != host.name]
        if all(has_a_vote(other) and 1 < first_of(other) <= self.released + 1 for other in others):
            self._left -= 1
            world.counts["disks replaced"] += 1
            self.wiped = (*self.wiped, host.name)
            self.wipe(world, host)

    def releases_most(self, reached: int) -> int:
        return reached // 3 + 1

    def may_damage(self, name: str) -> bool:
        """True only in runs without replaced disks: two nodes without memory at the same time are too many."""
        return (not self.wiped or bool(self.damaged)) and super().may_damage(name)


WORKLOAD = Disks
