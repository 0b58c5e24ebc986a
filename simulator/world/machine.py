"""One machine of the made-up world: a core while it runs, a clock and a disk that outlive it.

A *life* is one run of the process. Whatever was meant for an earlier life is never given to a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Protocol

from chaplain.core import Persist
from simulator.world.clock import Clock
from simulator.world.disk import Disk


class NodeCore(Protocol):
    """What a host can run: a core over host inputs and effects.

    Inputs and effects beyond those of `chaplain.core` are welcome: the world hands inputs through as they are, and
    gives effects that it does not know to the checkers alone.
    """

    @property
    def routing_id(self) -> bytes:
        """The name under which this process dials: the octet 0x01 and its instance."""
        ...

    def step(self, now_ns: int, event: Any, /) -> list[Any]: ...

    def deadline(self) -> int | None: ...


class MakeNode(Protocol):
    def __call__(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int, /) -> NodeCore:
        """Start a process: a new core with a new instance, from what the disk holds."""
        ...


class CrashPoint:
    """A named moment worth dying at: right after an effect, or at a later moment of a `Persist`."""

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
    """A crash point waiting for its nth match."""

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
        "life",
        "name",
        "paused",
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
        self.life = 0
        self.paused = False
        self.inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """What reached a paused process, in order."""
        self.drain_due = False
        self.wants_drained = True
        """A core that forms no batches may say `wants_drained = False` and spare everybody the steps."""
        self.wants_flushed = True
        """Likewise `wants_flushed = False`, for one that counts nothing that is under way."""
        self.wake_at_ns = -1
        """The moment for which a wake-up is on the calendar; -1 for none."""
        self.wake_deadline_ns: int | None = None
        self.spins = 0
        self.spun_at_ns = -1
        self.disk_error = ""
        """The reason with which the disk will fail the next sync."""
        self.disk_busy = False
        """Whether something is being written or synced; what comes meanwhile waits in `disk_queue`."""
        self.disk_queue: list[Armed | None] = []
        """For each ticket that waits, the crash point that it sets off."""
        self.disk_slow_until_ns = 0
        self.armed: Armed | None = None

    @property
    def up(self) -> bool:
        return self.core is not None

    @property
    def instance(self) -> bytes:
        """Which process this is, as others know it."""
        assert self.core is not None
        return self.core.routing_id[1:]

    def stop(self) -> None:
        """All that a process loses when it ends. Its life is over; the next begins at `life + 1`."""
        self.core = None
        self.life += 1
        self.paused = False
        self.inbox.clear()
        self.drain_due = False
        self.wake_at_ns = -1
        self.wake_deadline_ns = None
        self.disk_busy = False
        self.disk_queue = []
