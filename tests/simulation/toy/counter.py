"""A toy for trying the simulator on: nodes that count aloud, and never say a number that is not on their disk.

Each node adds one to its number every half second, writes it into one of two slots, and tells the others once the disk
has it. A node that starts again goes on from the larger slot whose checksum holds, and tells nobody that number: after
a sync that failed it may be in the page cache alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from chaplain.core import (
    Admit,
    Arrived,
    Cast,
    Connected,
    Dial,
    Disconnected,
    Halt,
    Knocked,
    Persist,
    Persisted,
    PersistFailed,
    Send,
    Woken,
    WriteAt,
)
from simulator.checkers.base import Checker, Watcher
from simulator.faults.plan import ALL, ATTACK, CLOCK, NETWORK, PROCESS
from simulator.workloads import Workload
from simulator.world.machine import BEGUN_NOT_WRITTEN, SYNCED_NOT_TOLD, WRITTEN_NOT_SYNCED, Host

SECOND = 10**9
SLOT = 512


def record(number: int) -> bytes:
    body = number.to_bytes(8, "big")
    return body + zlib.crc32(body).to_bytes(4, "big")


def stored(disk: Mapping[str, bytes]) -> int:
    data = disk.get("count", b"")
    numbers = [(int.from_bytes(data[at : at + 8], "big"), data[at : at + 12]) for at in (0, SLOT)]
    return max((number for number, slot in numbers if slot == record(number)), default=0)


class Counter:
    def __init__(self, rng: Random, number: int, peers: Sequence[str], now_ns: int) -> None:
        self.routing_id = b"\x01" + rng.randbytes(16)
        self.number = number
        self.durable = 0
        self._wake_ns = now_ns
        self._wanted = dict(enumerate(peers))
        self._asked: set[int] = set()
        self._up: list[int] = []
        self._next_dial = len(peers)

    def deadline(self) -> int | None:
        return self._wake_ns

    def step(self, now_ns: int, event: Any) -> list[Any]:
        match event:
            case Woken():
                return self._tick(now_ns)
            case Knocked(request=request):
                return [Admit(request, "someone")]
            case Connected(dial=dial):
                self._up.append(dial)
                return [Send(dial, record(self.durable))]
            case Disconnected(channel=int() as dial):
                endpoint = self._wanted.pop(dial)
                self._up = [other for other in self._up if other != dial]
                self._next_dial += 1
                self._wanted[self._next_dial] = endpoint
                return []
            case Persisted(ticket=ticket):
                self.durable = ticket
                return self._say(ticket)
            case PersistFailed(reason=reason):
                return [Halt(reason)]
            case _:
                return []

    def _tick(self, now_ns: int) -> list[Any]:
        self._wake_ns = now_ns + SECOND // 2
        self.number += 1
        slot = (self.number % 2) * SLOT
        effects: list[Any] = [Persist(self.number, (WriteAt("count", slot, record(self.number)),))]
        for dial in sorted(self._wanted.keys() - self._asked):
            self._asked.add(dial)
            effects.append(Dial(dial, self._wanted[dial], b"toy", b"%d" % dial))
        return effects

    def _say(self, number: int) -> list[Any]:
        return [*(Send(dial, record(number)) for dial in self._up), Cast(record(number))]


class Remembered(Watcher):
    """Whatever number a node has told anyone, it knows when it starts again."""

    name = "remembered"

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        for effect in effects:
            if isinstance(effect, Send | Cast):
                frame = effect.frame if isinstance(effect, Send) else effect.datagram
                self._told[host.name] = max(self._told.get(host.name, 0), int.from_bytes(frame[:8], "big"))

    def process_started(self, time_ns: int, host: Host, /) -> None:
        core = host.core
        assert isinstance(core, Counter)
        if core.number < self._told.get(host.name, 0):
            self.complain(f"{host.name} told {self._told[host.name]} and starts from {core.number}")


class Heard(Watcher):
    """After a heal, each mended node hears every other say a number that is new."""

    name = "heard"

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], int] = {}

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        if isinstance(event, Arrived) and isinstance(event.channel, bytes):
            self._last[host.name, event.channel.hex()] = time_ns

    def finish(self, healed: Sequence[Host], /) -> None:
        for host in healed:
            for other in healed:
                if other is not host and (host.name, other.core.routing_id.hex()) not in self._last:
                    self.complain(f"{host.name} never heard {other.name}")


class Toy(Workload):
    kinds = NETWORK + PROCESS + CLOCK + ATTACK + ("EIO", "ENOSPC", "slow disk")
    points = (BEGUN_NOT_WRITTEN, WRITTEN_NOT_SYNCED, SYNCED_NOT_TOLD)

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.names = ("a", "b", "c", "d", "e")[: rng.choice((2, 3, 5))]

    def make_node(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> Counter:
        peers = [self.endpoint(other) for other in self.names if other != name]
        return Counter(rng, stored(disk), peers, now_ns)

    def checkers(self) -> list[Checker]:
        return [Remembered(), Heard()]


class ToyOnBadDisks(Toy):
    """Rot and wiped disks make a node forget, so only the living are watched."""

    kinds = ALL

    def checkers(self) -> list[Checker]:
        return [Heard()]
