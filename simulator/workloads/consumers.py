"""Named consumers on a whole journal: workers of all three modes that are stopped and killed, beside writers.

The nodes and their faults are those of `requests`, and its checks hold, too. `ConsumerChecker` judges the consumers.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar

from chaplain.journal.messages.consumer import Mode
from chaplain.journal.model.bootstrap import ALL_STREAMS
from simulator.actors.consumer_worker import STREAM, SimWorker
from simulator.actors.journal_clients import SimClient
from simulator.checkers.consumers import ConsumerChecker
from simulator.workloads.requests import Requests
from simulator.world.world import World

_MODES = {"single": Mode.SINGLE, "keyed": Mode.KEYED, "queue": Mode.QUEUE}


class Consumers(Requests):
    people: ClassVar[Sequence[tuple[str, tuple[str, ...], bool]]] = (
        ("default", ALL_STREAMS, True),
        *((f"{mode}-{number}", ALL_STREAMS, False) for mode in _MODES for number in (1, 2, 3)),
    )

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.thief = False  # a thief of a worker's key may acknowledge what nobody processed
        self.consumer_checker = ConsumerChecker(self)

    def draw_size(self, rng: Random) -> int:
        return 3

    def make_client(self, name: str, seed: bytes, acl: bytes) -> SimClient:
        mode = _MODES.get(name.partition("-")[0])
        if mode is None:
            return SimClient(self, name, seed, acl, (STREAM, STREAM, "audit"))
        return SimWorker(self, name, seed, acl, (STREAM,), mode=mode)

    def rows_of(self, stream: str) -> list[tuple[int, int, bytes]]:
        """Every message that was written to the stream."""
        return self._checker.rows_of(stream)

    def checkers(self) -> list[Any]:
        return [*super().checkers(), self.consumer_checker]

    def begin(self, world: World) -> None:
        self.consumer_checker.world = world
        super().begin(world)


WORKLOAD = Consumers
