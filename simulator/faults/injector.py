"""Injects the faults of a plan into a world, and heals it.

Every fault that takes effect is counted in `world.counts` under its kind, so that tests can verify that it occurs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chaplain.units import SECOND_NS
from simulator.faults.plan import CLOCK, Fault, Plan, cut
from simulator.faults.replay_attacker import Attacker
from simulator.world.machine import Armed, CrashPoint, Host
from simulator.world.world import World

CLOCK_ERROR_NS = 2 * SECOND_NS
"""Maximum clock error of a healed node. A larger error is corrected, and the node is restarted."""

Extra = Callable[[World, Fault], None]
"""Injects the kinds of fault that a workload adds."""


class FaultInjector:
    def __init__(self, world: World, plan: Plan, points: Sequence[CrashPoint], extra: Extra | None = None) -> None:
        self._world = world
        self._plan = plan
        self._points = points
        self._extra = extra
        self._attacker = Attacker(world) if any(f.kind.startswith("attack") for f in plan.faults) else None

    def begin(self) -> None:
        self._world.network.conditions.profile = self._plan.profile
        for fault in self._plan.faults:
            if fault.at_ns < self._plan.heal_ns:
                self._world.at(fault.at_ns, self._strike, fault)
        if self._plan.healed:
            self._world.at(self._plan.heal_ns, self._heal)

    def healed(self) -> list[Host]:
        return [self._world.hosts[name] for name in self._plan.healed]

    def _strike(self, fault: Fault) -> None:
        host = self._world.hosts[fault.nodes[0]]
        self._world.note(f"fault: {fault.kind} {' '.join(fault.nodes)} {fault.lasts_ns} {fault.amount}")
        if fault.kind.endswith("partition"):
            self._partition(fault)
        elif fault.kind.startswith("attack: "):
            assert self._attacker is not None
            self._attacker.attack(fault.kind.removeprefix("attack: "))
        elif fault.kind in CLOCK:
            self._turn_clock(host, fault)
        elif fault.kind in {"kill", "power cut", "wipe"}:
            self._down(host, fault)
        else:
            self._other(host, fault)

    def _partition(self, fault: Fault) -> None:
        pairs = cut(fault)
        if pairs:
            self._world.counts[fault.kind] += 1
            token = self._world.network.conditions.block(pairs)
            self._world.network.conditions_changed()
            self._world.after(fault.lasts_ns, self._rejoin, token)

    def _rejoin(self, token: int) -> None:
        self._world.network.conditions.unblock(token)
        self._world.network.conditions_changed()

    def _turn_clock(self, host: Host, fault: Fault) -> None:
        now_ns = self._world.now_ns
        self._world.counts[fault.kind] += 1
        match fault.kind:
            case "clock jump":
                host.clock.jump(now_ns, fault.amount)
            case "clock back":
                host.clock.jump(now_ns, -fault.amount)
            case _:
                host.clock.drift(now_ns, fault.amount)
        self._world.clock_changed(host)

    def _down(self, host: Host, fault: Fault) -> None:
        """Stop the host for a while, then start it again; the world counts kills and power cuts."""
        self._world.crash(host, power=fault.kind != "kill", reason=fault.kind)
        if fault.kind == "wipe" and not host.up:
            self._world.counts["wipe"] += 1
            host.disk.wipe()
        self._world.after(fault.lasts_ns, self._world.restart, host)

    def _other(self, host: Host, fault: Fault) -> None:
        world = self._world
        match fault.kind:
            case "pause":
                if host.up and not host.paused:
                    world.counts["pause"] += 1
                    world.pause(host)
                    world.after(fault.lasts_ns, self._resume, host, host.process)
            case "clog":
                world.counts["clog"] += 1
                world.network.conditions.clog((fault.nodes[0], fault.nodes[-1]), world.now_ns + fault.lasts_ns)
            case "crash point":
                if self._points:
                    point = self._points[fault.amount % len(self._points)]
                    host.armed = Armed(point, 1 + (fault.amount // 256 % 8) // 2, power=fault.amount >= 1 << 15)
            case "flipped bit":
                world.counts["flipped bit"] += 1 if host.disk.flip_bit() else 0
            case "misdirected write":
                world.counts["misdirected write"] += 1
                host.disk.misdirect_next = True
            case "EIO" | "ENOSPC":
                host.disk_error = fault.kind
                world.after(fault.lasts_ns, self._disk_mended, host)
            case "slow disk":
                host.disk_slow_until_ns = world.now_ns + fault.lasts_ns
            case _:
                assert self._extra is not None, f"nobody knows how to make a fault of kind {fault.kind!r}"
                world.counts[fault.kind] += 1
                self._extra(world, fault)

    def _resume(self, host: Host, process: int) -> None:
        if host.process == process:
            self._world.resume(host)

    def _disk_mended(self, host: Host) -> None:
        host.disk_error = ""

    def _heal(self) -> None:
        """Heal a majority and the network between its members; leave the rest cut off, in one direction or both."""
        world, healed = self._world, self.healed()
        world.note(f"heal: {' '.join(host.name for host in healed)}")
        world.network.conditions.clear()
        rest = [host for host in world.hosts.values() if host not in healed]
        world.network.conditions.block((host.name, other.name) for host in rest for other in healed)
        world.network.conditions_changed()
        for host in world.hosts.values():
            host.armed = None
        for host in healed:
            self._mend(host)

    def _mend(self, host: Host) -> None:
        world = self._world
        host.disk_slow_until_ns = 0
        host.disk_error = ""
        bad_clock = host.clock.error_ns(world.now_ns) > CLOCK_ERROR_NS or host.clock.drifts()
        if host.up and (bad_clock or host.disk.failed):
            world.crash(host, power=False, reason="mended")
        host.clock.set_right(world.now_ns)
        if host.up:
            world.clock_changed(host)
            world.resume(host)
        else:
            world.start(host)
