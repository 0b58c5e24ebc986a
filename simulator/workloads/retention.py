"""The whole journal, as in `requests`, with a checkpoint after every few messages, and segments that are dropped early.

Disks are wiped, too, those of a minority in one run: a node that comes back finds that the others no longer have the
start of the log, and continues from a checkpoint. An admin requests checkpoints and releases messages at any time.

What must hold is what `requests` demands, and in addition: a node's log never starts after its reported start, and its
files contain what was agreed.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar

import msgspec

from chaplain.journal.messages.config import MakeCheckpoint
from chaplain.journal.model.bootstrap import ExecutionPolicy
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
        """All other nodes stop when the next checkpoint is about to be written."""
        super().__init__(rng)
        self.rules = RetentionRules(
            keep_bytes=rng.choice((0, 1, 1, 3 * _SEGMENT_BYTES)), keep_ns=rng.choice((0, 5 * SECOND_NS))
        )
        self.heals_all = rng.random() < 0.5
        self.asks = rng.random() < 0.7
        if rng.random() < 0.5:  # an abandoned attempt retains everything after it for an hour
            self.clients = [client for client in self.clients if not isinstance(client, SimSink)]
        self.released = 0
        """The message up to which an admin asked for the log to be dropped."""
        self.retention = RetentionChecker(self)

    def policy(self, rng: Random) -> ExecutionPolicy:
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
        """An admin requests a checkpoint, and perhaps a later start of the log."""
        world.after(self.rng.randrange(4 * SECOND_NS), self._ask, world)
        most = self.releases_most(self.retention.reached)
        through = self.rng.randrange(most) if self.rng.random() < 0.7 else 0
        self.released = max(self.released, through)
        self.clients[0].wish(world, MakeCheckpoint(through))

    def releases_most(self, reached: int) -> int:
        """The message below which the log is released, if this many have been written."""
        return reached + 20

    def inject_fault(self, world: World, fault: Fault) -> None:
        host = world.hosts[fault.nodes[0]]
        if fault.kind == "alone with a checkpoint":
            self._lonely = True
            return
        if fault.kind == "long absence":
            world.crash(host, power=False, reason=fault.kind)
            world.after(10 * SECOND_NS, world.restart, host)
            return
        if fault.kind != "disk wiped":
            super().inject_fault(world, fault)
        elif self.may_damage(host.name):
            self.wipe(world, host)

    def wipe(self, world: World, host: Host) -> None:
        """Cut the power, and replace the disk with an empty one."""
        world.crash(host, power=True, reason="disk wiped")
        host.disk.wipe()
        self._disks[host.name] = self.rng.randbytes(16)
        world.after(SECOND_NS, world.restart, host)

    def writes_checkpoint(self, world: World, host: Host) -> None:
        """The first node is about to write a checkpoint: if it stays alone, no other disk has what the checkpoint
        covers.
        """
        if not self._lonely:
            return
        self._lonely = False
        for other in world.hosts.values():
            if other is not host:
                world.after(0, world.crash, other, self.rng.random() < 0.2, "alone with a checkpoint")
                world.after(self.rng.randrange(3 * SECOND_NS, 8 * SECOND_NS), world.restart, other)


WORKLOAD = Retention
