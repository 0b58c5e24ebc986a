"""One machine of the simulated world: a core while its process runs, and a clock and a disk that outlive the process.

`Host.process` numbers the processes of a machine. An input for an earlier process never reaches a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Protocol

from chaplain.core import Persist
from simulator.world.clock import Clock
from simulator.world.disk import Disk


class NodeCore(Protocol):
    """What a host can run: a core with host inputs and effects.

    Other inputs and effects than those of `chaplain.core` are allowed: the world passes inputs through as they are, and
    shows effects that it does not know only to the checkers.
    """

    @property
    def routing_id(self) -> bytes:
        """The name under which this process dials: the byte 0x01 and its instance."""
        ...

    def step(self, now_ns: int, event: Any, /) -> list[Any]: ...

    def deadline(self) -> int | None: ...


class MakeNode(Protocol):
    def __call__(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int, /) -> NodeCore:
        """Start a process: a new core with a new instance, from the contents of the disk."""
        ...


class CrashPoint:
    """A named moment at which a crash is interesting: right after an effect, or at a later moment of a `Persist`."""

    __slots__ = ("matches", "moment", "name")

    def __init__(self, name: str, matches: Callable[[object], bool], moment: str = "performed") -> None:
        assert moment in {"performed", "written", "synced"}
        self.name = name
        self.matches = matches
        self.moment = moment


WRITTEN_NOT_SYNCED = CrashPoint("after write before sync", lambda e: isinstance(e, Persist), "written")
SYNCED_NOT_TOLD = CrashPoint("after sync before Persisted", lambda e: isinstance(e, Persist), "synced")
BEGUN_NOT_WRITTEN = CrashPoint("after Persist before write", lambda e: isinstance(e, Persist))


class Armed:
    """A crash point that waits for its nth match."""

    __slots__ = ("left", "point", "power")

    def __init__(self, point: CrashPoint, nth: int, power: bool) -> None:
        self.point = point
        self.left = nth
        self.power = power


class Host:
    __slots__ = (
        "armed",
        "clock",
        "core",
        "disk",
        "disk_busy",
        "disk_error",
        "disk_queue",
        "disk_slow_until_ns",
        "drain_due",
        "endpoint",
        "inbox",
        "name",
        "paused",
        "process",
        "spins",
        "spun_at_ns",
        "wake_at_ns",
        "wake_deadline_ns",
        "wants_drained",
        "wants_flushed",
    )

    def __init__(self, name: str, endpoint: str, disk_rng: Random) -> None:
        self.name = name
        self.endpoint = endpoint
        self.clock = Clock()
        self.disk = Disk(disk_rng)
        self.core: NodeCore | None = None
        self.process = 0
        """Number of the current process; the next start increments it."""
        self.paused = False
        self.inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """Actions that reached a paused process, in order."""
        self.drain_due = False
        self.wants_drained = True
        """A core that forms no batches may set `wants_drained = False` to save these steps."""
        self.wants_flushed = True
        """A core that does not count bytes in flight may set `wants_flushed = False`."""
        self.wake_at_ns = -1
        """The time of the scheduled wake-up; -1 for none."""
        self.wake_deadline_ns: int | None = None
        self.spins = 0
        self.spun_at_ns = -1
        self.disk_error = ""
        """The reason with which the disk fails the next sync."""
        self.disk_busy = False
        """True while a write or sync runs; further tickets wait in `disk_queue`."""
        self.disk_queue: list[Armed | None] = []
        """For each waiting ticket, the crash point that it triggers."""
        self.disk_slow_until_ns = 0
        self.armed: Armed | None = None

    @property
    def up(self) -> bool:
        return self.core is not None

    @property
    def instance(self) -> bytes:
        """The instance of the current process, as peers know it."""
        assert self.core is not None
        return self.core.routing_id[1:]

    def stop(self) -> None:
        """Discard everything that a process loses when it ends. The next process has the number `process + 1`."""
        self.core = None
        self.process += 1
        self.paused = False
        self.inbox.clear()
        self.drain_due = False
        self.wake_at_ns = -1
        self.wake_deadline_ns = None
        self.disk_busy = False
        self.disk_queue = []
