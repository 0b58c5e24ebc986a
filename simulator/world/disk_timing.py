"""When things happen on a disk: carries a `Persist` through its moments, and tells the core how it ended.

As in the runtime, one sync serves all that was queued when it was begun: what is asked for while it runs waits, and is
written together and served by the next one. So a slow disk makes a node wait for two syncs, however much it asks for.

What is left of it after a crash is decided in `disk.py`; how long each moment takes and which tickets fail, here.
Invariant: tickets of one life are written, synced and told in the order in which they were asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaplain.core import Persist, Persisted, PersistFailed
from chaplain.units import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS

if TYPE_CHECKING:
    from simulator.world.machine import Armed, Host
    from simulator.world.world import World

_RESTART_NS = SECOND_NS
"""How long a process is down that was killed after its disk lost a write."""


class Storage:
    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("disk timing")

    def persist(self, host: Host, persist: Persist) -> None:
        host.disk.begin(persist)
        armed = host.armed
        host.disk_queue.append(armed if armed is not None and armed.left == 0 else None)
        if host.disk_busy:
            return
        host.disk_busy = True
        if self._rng.random() < 0.5:  # whether the next ticket of this moment is just in time, or just too late
            self._world.after(0, self._take_up, host, host.life)
        else:
            self._take_up(host, host.life)

    def _take_up(self, host: Host, life: int) -> None:
        """Write everything that is queued, one ticket after the other, and sync it together."""
        if host.life != life:
            return
        rng, group = self._rng, host.disk_queue
        host.disk_queue = []
        moment_ns = self._world.now_ns
        for sprung in group:
            moment_ns += rng.randrange(50 * MICROSECOND_NS)
            self._world.at(moment_ns, self._written, host, life, sprung)
        slow_ns = rng.randrange(5 * SECOND_NS) if self._world.now_ns < host.disk_slow_until_ns else 0
        self._world.counts["slow disk"] += 1 if slow_ns else 0
        self._world.counts["syncs shared"] += 1 if len(group) > 1 else 0
        synced_ns = moment_ns + rng.randrange(100 * MICROSECOND_NS, 2 * MILLISECOND_NS) + slow_ns
        self._world.at(synced_ns, self._synced, host, life, group)

    def _written(self, host: Host, life: int, sprung: Armed | None) -> None:
        if host.life != life:
            return
        host.disk.write()
        if sprung is not None and sprung.point.moment == "written":
            self._world.die_at(host, sprung)

    def _synced(self, host: Host, life: int, group: list[Armed | None]) -> None:
        if host.life != life:
            return
        failure = host.disk.failed or host.disk_error
        if failure:
            self._failed(host, life, failure)
        else:
            tickets = host.disk.sync()
            sprung = next((armed for armed in group if armed is not None and armed.point.moment == "synced"), None)
            if sprung is not None:
                self._world.die_at(host, sprung)
                return
            for ticket in tickets:
                self._world.deliver(50 * MICROSECOND_NS, host, life, Persisted(ticket))
            if host.disk.lied:
                self._world.after(50 * MICROSECOND_NS, self._world.attend, host, life, self._betrayed, host)
        host.disk_busy = bool(host.disk_queue)
        if host.disk_busy:
            self._take_up(host, life)

    def _betrayed(self, host: Host) -> None:
        """The process believed a disk that lied, said so to others, and is killed before it writes anything more."""
        self._world.counts["killed after a lost write"] += 1
        self._world.crash(host, power=False, reason="killed after a lost write")
        self._world.after(_RESTART_NS, self._world.restart, host)

    def _failed(self, host: Host, life: int, failure: str) -> None:
        for ticket in host.disk.fail(failure):
            self._world.counts[failure] += 1
            self._world.deliver(0, host, life, PersistFailed(ticket, failure))
