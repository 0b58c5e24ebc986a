"""Disk timing: takes each `Persist` through its moments, and reports the result to the core.

As in the runtime, one sync serves everything that was queued when it began. Requests that arrive meanwhile wait and
share the next sync. So a slow disk delays a node by two syncs, however many requests it makes.

`disk.py` decides what is left after a crash; this module decides how long each moment takes, and which tickets fail.
Invariant: tickets of one process are written, synced and reported in the order in which they were requested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaplain.core import Persist, Persisted, PersistFailed
from chaplain.units import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS

if TYPE_CHECKING:
    from simulator.world.machine import Armed, Host
    from simulator.world.world import World

_RESTART_NS = SECOND_NS
"""How long a process stays down that was killed after its disk lost a write."""


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
        if self._rng.random() < 0.5:  # the next ticket of this moment may be just in time, or just too late
            self._world.after(0, self._take_up, host, host.process)
        else:
            self._take_up(host, host.process)

    def _take_up(self, host: Host, process: int) -> None:
        """Write all queued tickets in order, then sync them together."""
        if host.process != process:
            return
        rng, group = self._rng, host.disk_queue
        host.disk_queue = []
        moment_ns = self._world.now_ns
        for sprung in group:
            moment_ns += rng.randrange(50 * MICROSECOND_NS)
            self._world.at(moment_ns, self._written, host, process, sprung)
        slow_ns = rng.randrange(5 * SECOND_NS) if self._world.now_ns < host.disk_slow_until_ns else 0
        self._world.counts["slow disk"] += 1 if slow_ns else 0
        self._world.counts["syncs shared"] += 1 if len(group) > 1 else 0
        synced_ns = moment_ns + rng.randrange(100 * MICROSECOND_NS, 2 * MILLISECOND_NS) + slow_ns
        self._world.at(synced_ns, self._synced, host, process, group)

    def _written(self, host: Host, process: int, sprung: Armed | None) -> None:
        if host.process != process:
            return
        host.disk.write()
        if sprung is not None and sprung.point.moment == "written":
            self._world.die_at(host, sprung)

    def _synced(self, host: Host, process: int, group: list[Armed | None]) -> None:
        if host.process != process:
            return
        failure = host.disk.failed or host.disk_error
        if failure:
            self._failed(host, process, failure)
        else:
            tickets = host.disk.sync()
            sprung = next((armed for armed in group if armed is not None and armed.point.moment == "synced"), None)
            if sprung is not None:
                self._world.die_at(host, sprung)
                return
            for ticket in tickets:
                self._world.deliver(50 * MICROSECOND_NS, host, process, Persisted(ticket))
            if host.disk.lied:
                self._world.after(50 * MICROSECOND_NS, self._world.attend, host, process, self._betrayed, host)
        host.disk_busy = bool(host.disk_queue)
        if host.disk_busy:
            self._take_up(host, process)

    def _betrayed(self, host: Host) -> None:
        """Kill a process whose disk lied, after it has reported the write to others and before it writes
        anything more.
        """
        self._world.counts["killed after a lost write"] += 1
        self._world.crash(host, power=False, reason="killed after a lost write")
        self._world.after(_RESTART_NS, self._world.restart, host)

    def _failed(self, host: Host, process: int, failure: str) -> None:
        for ticket in host.disk.fail(failure):
            self._world.counts[failure] += 1
            self._world.deliver(0, host, process, PersistFailed(ticket, failure))
