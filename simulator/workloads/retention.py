"""The journal whole, as in `requests`, with a checkpoint after every few messages, and segments that go when they can.

Disks are wiped, too, a minority's in one run: whoever comes back finds that the others no longer have the beginning,
and goes on from a checkpoint. An admin asks for checkpoints, and releases what was written, at any time.

What must hold is what `requests` demands, and: a node never begins behind what it was told to be its log's beginning,
and what its files hold is what was agreed.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar

import msgspec

from chaplain.journal.messages.config import MakeCheckpoint
from chaplain.journal.model.bootstrap import Policy
from chaplain.journal.settings import JournalSettings, RetentionRules
from chaplain.units import SECOND_NS
from simulator.actors.two_phase_client import SimSink
from simulator.checkers.retention import RetentionChecker
from simulator.faults.plan import Fault
from simulator.workloads.requests import Requests
from simulator.world.machine import Host
from simulator.world.world import World

_SEGMENT_BYTES = 24 * 1024


class Retention(Requests):
    kinds: ClassVar[Sequence[str]] = (
        *Requests.kinds,
        *("disk wiped", "disk wiped", "long absence", "alone with a checkpoint"),
    )
    padding_bytes: ClassVar[int] = 150
    drops: ClassVar[bool] = True

    def __init__(self, rng: Random) -> None:
        self._disks: dict[str, bytes] = {}
        self._lonely = False
        """Everybody else ends when the next checkpoint is about to be written."""
        super().__init__(rng)
        self.rules = RetentionRules(
            keep_bytes=rng.choice((0, 1, 1, 3 * _SEGMENT_BYTES)), keep_ns=rng.choice((0, 5 * SECOND_NS))
        )
        self.heals_all = rng.random() < 0.5
        self.asks = rng.random() < 0.7
        if rng.random() < 0.5:  # an attempt that nobody ends keeps all that follows it for an hour
            self.clients = [client for client in self.clients if not isinstance(client, SimSink)]
        self.released = 0
        """Up to which message an admin asked for the log to go."""
        self.retention = RetentionChecker(self)

    def policy(self, rng: Random) -> Policy:
        return msgspec.structs.replace(super().policy(rng), checkpoint_bytes=rng.choice((6, 20, 10_000)) * 1024)

    def settings(self, name: str) -> JournalSettings:
        settings = super().settings(name)
        order = msgspec.structs.replace(settings.order, segment_bytes=_SEGMENT_BYTES)
        return msgspec.structs.replace(settings, order=order, rules=self.rules)

    def _disk_now(self, name: str) -> bytes:
        return self._disks.get(name) or super()._disk_now(name)

    def checkers(self) -> list[Any]:
        return [*super().checkers(), self.retention]

    def begin(self, world: World) -> None:
        super().begin(world)
        self.retention.world = world
        if self.asks:
            world.after(2 * SECOND_NS, self._ask, world)

    def _ask(self, world: World) -> None:
        """An admin wants a checkpoint, and perhaps the log to begin later."""
        world.after(self.rng.randrange(4 * SECOND_NS), self._ask, world)
        most = self.releases_most(self.retention.reached)
        through = self.rng.randrange(most) if self.rng.random() < 0.7 else 0
        self.released = max(self.released, through)
        self.clients[0].wish(world, MakeCheckpoint(through))

    def releases_most(self, reached: int) -> int:
        """Below which message the log is let go, if so many have been written."""
        return reached + 20

    def strike(self, world: World, fault: Fault) -> None:
        host = world.hosts[fault.nodes[0]]
        if fault.kind == "alone with a checkpoint":
            self._lonely = True
            return
        if fault.kind == "long absence":
            world.crash(host, power=False, reason=fault.kind)
            world.after(10 * SECOND_NS, world.restart, host)
            return
        if fault.kind != "disk wiped":
            super().strike(world, fault)
        elif self.may_damage(host.name):
            self.wipe(world, host)

    def wipe(self, world: World, host: Host) -> None:
        """Power goes, and an empty disk comes in its place."""
        world.crash(host, power=True, reason="disk wiped")
        host.disk.wipe()
        self._disks[host.name] = self.rng.randbytes(16)
        world.after(SECOND_NS, world.restart, host)

    def writes_checkpoint(self, world: World, host: Host) -> None:
        """The first node is about to write one: if it stays alone, what that covers is on no other disk."""
        if not self._lonely:
            return
        self._lonely = False
        for other in world.hosts.values():
            if other is not host:
                world.after(0, world.crash, other, self.rng.random() < 0.2, "alone with a checkpoint")
                world.after(self.rng.randrange(3 * SECOND_NS, 8 * SECOND_NS), world.restart, other)


WORKLOAD = Retention
