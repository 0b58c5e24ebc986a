"""When things happen on a disk: carries a `Persist` through its moments, and tells the core how it ended.

What is left of it after a crash is decided in `disk.py`; how long each moment takes and which tickets fail, here.
Invariant: tickets of one life are written and synced in the order in which they were asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaplain.core import Persist, Persisted, PersistFailed
from chaplain.sim.weather import MILLISECOND, SECOND

if TYPE_CHECKING:
    from chaplain.sim.host import Armed, Host
    from chaplain.sim.world import World

MICROSECOND = 10**3


class Storage:
    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("disk timing")

    def persist(self, host: Host, persist: Persist) -> None:
        host.disk.begin(persist)
        rng, armed = self._rng, host.armed
        sprung = armed if armed is not None and armed.left == 0 else None
        slow_ns = rng.randrange(5 * SECOND) if self._world.now_ns < host.disk_slow_until_ns else 0
        self._world.counts["slow disk"] += 1 if slow_ns else 0
        written_ns = max(self._world.now_ns, host.disk_free_ns) + rng.randrange(50 * MICROSECOND)
        synced_ns = written_ns + rng.randrange(100 * MICROSECOND, 2 * MILLISECOND) + slow_ns
        host.disk_free_ns = synced_ns
        if synced_ns - self._world.now_ns > SECOND:
            host.disk_late_ns = synced_ns
        self._world.at(written_ns, self._written, host, host.life, sprung)
        self._world.at(synced_ns, self._synced, host, host.life, sprung)

    def _written(self, host: Host, life: int, sprung: Armed | None) -> None:
        if host.life != life:
            return
        host.disk.write()
        if sprung is not None and sprung.point.moment == "written":
            self._world.die_at(host, sprung)

    def _synced(self, host: Host, life: int, sprung: Armed | None) -> None:
        if host.life != life:
            return
        failure = host.disk.failed or host.disk_error
        if failure:
            self._world.counts[failure] += 1
            ticket = host.disk.fail(failure)
            self._world.deliver(0, host, life, PersistFailed(ticket, failure))
            return
        ticket = host.disk.sync()
        if sprung is not None and sprung.point.moment == "synced":
            self._world.die_at(host, sprung)
        else:
            self._world.deliver(50 * MICROSECOND, host, life, Persisted(ticket))
