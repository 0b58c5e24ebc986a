"""Virtual time, and the hosts that run in it.

The world has one calendar, ordered by (time, sequence), and one `random.Random` per concern, all derived from one seed:
an additional random draw in the network does not change what the disk does. It steps the cores, shows every step to the
trace and the checkers, and performs effects. It does not know the purpose of the nodes.

Invariants: time never goes back; equal seeds give equal calendars; an input reaches only the process that it was meant
for.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from chaplain.core import (
    Admit,
    Cast,
    Dial,
    Drained,
    Halt,
    HangUp,
    Persist,
    Refuse,
    Send,
    Stopping,
    Woken,
)
from chaplain.errors import StorageError
from chaplain.units import MILLISECOND_NS, SECOND_NS
from simulator.checkers.base import Checker, Violation
from simulator.world.disk_timing import Storage
from simulator.world.machine import Armed, Host, MakeNode
from simulator.world.network import Network

if TYPE_CHECKING:
    from simulator.trace import Trace


_SPINS_MAX = 1000
"""A core that requests this many wake-ups at one moment is in an endless loop."""

_RESTART_NS = 2 * SECOND_NS
"""How long a supervisor waits before it restarts a node that halted."""
_GOODBYE_NS = 100 * MILLISECOND_NS
"""How long a removed node takes to leave gracefully."""

_WOKEN, _DRAINED = Woken(), Drained()


def derive(seed: str, concern: str) -> Random:
    """The random generator of one concern. `random` hashes the string itself, in the same way in every process."""
    return Random(f"{seed}/{concern}")


class World:
    def __init__(self, seed: str, make_node: MakeNode, trace: Trace, checkers: Sequence[Checker] = ()) -> None:
        self.seed = seed
        self.now_ns = 0
        self.trace = trace
        self.checkers = checkers
        self.hosts: dict[str, Host] = {}
        self.counts: Counter[str] = Counter()
        """How often each fault actually happened."""
        self._make_node = make_node
        self._calendar: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self.network = Network(self)
        self._performers: dict[type, Callable[[Host, Any], None]] = {
            Send: self.network.send,
            Dial: self.network.dial,
            HangUp: self.network.hang_up,
            Admit: self.network.admit,
            Refuse: self.network.refuse,
            Cast: self.network.cast,
            Persist: Storage(self).persist,
            Halt: self._halt,
        }

    def rng(self, concern: str) -> Random:
        return derive(self.seed, concern)

    # The calendar.

    def at(self, time_ns: int, action: Callable[..., None], *args: Any) -> None:
        self._put(time_ns, action, args)

    def _put(self, time_ns: int, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._sequence += 1
        now_ns = self.now_ns
        heapq.heappush(self._calendar, (time_ns if time_ns > now_ns else now_ns, self._sequence, action, args))

    def after(self, delay_ns: int, action: Callable[..., None], *args: Any) -> None:
        self._put(self.now_ns + delay_ns, action, args)

    def run(self, until_ns: int, done: Callable[[], bool] | None = None) -> None:
        """Advance time to `until_ns`, or until `done` returns True."""
        calendar = self._calendar
        while calendar and calendar[0][0] <= until_ns:
            self.now_ns, _, action, args = heapq.heappop(calendar)
            action(*args)
            if done is not None and done():
                return
        self.now_ns = until_ns

    # Processes.

    def add(self, name: str, endpoint: str) -> Host:
        host = Host(name, endpoint, self.rng(f"disk of {name}"))
        self.hosts[name] = host
        self.network.bind(host)
        return host

    def start(self, host: Host) -> None:
        """Start the process from the contents of its disk."""
        assert host.core is None
        host.clock.process_started()
        rng = self.rng(f"{host.name}.{host.process}")
        try:
            host.core = self._make_node(host.name, rng, host.disk.contents(), host.clock.read(self.now_ns))
        except StorageError as error:
            self.note(f"{host.name} would not start: {error}")
            return
        host.wants_drained = getattr(host.core, "wants_drained", True)
        host.wants_flushed = getattr(host.core, "wants_flushed", True)
        self.note(f"{host.name} started as life {host.process}")
        for checker in self.checkers:
            checker.process_started(self.now_ns, host)
        self._schedule_wake(host)

    def crash(self, host: Host, power: bool, reason: str = "") -> None:
        """Kill the process, or cut the machine's power: then unsynced writes are torn and peers are not notified."""
        if host.core is None:
            return
        self.note(f"{host.name}.{host.process} {'lost power' if power else 'was killed'}{reason and ': ' + reason}")
        self.counts["power cut" if power else "kill"] += 1
        for checker in self.checkers:
            checker.process_ended(self.now_ns, host, reason)
        process = host.process
        host.stop()
        if power:
            host.disk.power_cut()
        else:
            host.disk.killed()
        self.network.host_died(host, process, silent=power)

    def pause(self, host: Host) -> None:
        if host.up:
            host.paused = True

    def resume(self, host: Host) -> None:
        """Deliver everything that arrived during the pause at once; the time has passed, too."""
        if not host.paused:
            return
        host.paused = False
        waiting, host.inbox = host.inbox, []
        for action, args in waiting:
            self.attend(host, host.process, action, *args)

    def stop(self, host: Host) -> None:
        """Ask the node to stop, as an operator does."""
        self.tell(host, Stopping())

    def note(self, text: str) -> None:
        self.trace.note(self.now_ns, text)

    # Inputs.

    def tell(self, host: Host, event: object) -> None:
        """Pass this input to the process that runs now, if there is one."""
        self.attend(host, host.process, self._step, host, event)

    def deliver(self, delay_ns: int, host: Host, process: int, event: object) -> None:
        self._put(self.now_ns + delay_ns, self.attend, (host, process, self._step, host, event))

    def attend(self, host: Host, process: int, action: Callable[..., None], *args: Any) -> None:
        """Do this when the process runs: now, when its pause ends, or never if the process has ended."""
        if host.process != process or host.core is None:
            return
        if host.paused:
            host.inbox.append((action, args))
        else:
            action(*args)

    def _step(self, host: Host, event: object) -> None:
        if host.wants_drained and not host.drain_due and event is not _DRAINED:
            host.drain_due = True
            self._put(self.now_ns, self.attend, (host, host.process, self._drain, host))
        core, process = host.core, host.process
        assert core is not None
        effects = core.step(host.clock.read(self.now_ns), event)
        if not effects and event is _DRAINED:
            self._schedule_wake(host)  # an empty `Drained` step is not recorded
            return
        self.trace.record(self.now_ns, host.name, process, event, effects)
        for checker in self.checkers:
            checker.observe(self.now_ns, host, event, effects)
        for effect in effects:
            self._perform(host, effect)
            if host.process != process:
                return
        if not host.drain_due:  # what is due is asked once, when the moment is over
            self._schedule_wake(host)

    def _drain(self, host: Host) -> None:
        host.drain_due = False
        self._step(host, _DRAINED)

    def _schedule_wake(self, host: Host) -> None:
        assert host.core is not None
        deadline_ns = host.core.deadline()
        if deadline_ns is None or (deadline_ns == host.wake_deadline_ns and host.wake_at_ns >= 0):
            host.wake_deadline_ns = deadline_ns
            return
        host.wake_deadline_ns = deadline_ns
        time_ns = max(self.now_ns, host.clock.world_time(deadline_ns))
        if host.wake_at_ns < 0 or time_ns < host.wake_at_ns:
            host.wake_at_ns = time_ns
            self.at(time_ns, self.attend, host, host.process, self._wake, host, time_ns)

    def _wake(self, host: Host, time_ns: int) -> None:
        """Step the core if its deadline has come. The calendar may contain wake-ups that a later deadline made
        obsolete.
        """
        if time_ns != host.wake_at_ns:
            return
        host.wake_at_ns = -1
        deadline_ns = host.wake_deadline_ns
        if deadline_ns is not None and host.clock.read(self.now_ns) >= deadline_ns:
            self._count_spin(host)
            self._step(host, _WOKEN)
        else:
            host.wake_deadline_ns = None
            self._schedule_wake(host)

    def _count_spin(self, host: Host) -> None:
        host.spins = host.spins + 1 if host.spun_at_ns == self.now_ns else 0
        host.spun_at_ns = self.now_ns
        if host.spins > _SPINS_MAX:
            raise Violation("host", f"{host.name} asks to be woken again and again at one moment")

    def clock_changed(self, host: Host) -> None:
        """Reschedule the wake-up: a jump or drift changes when the deadline comes."""
        if host.core is not None:
            host.wake_at_ns = -1
            host.wake_deadline_ns = None
            self._schedule_wake(host)

    # Effects.

    def _perform(self, host: Host, effect: object) -> None:
        armed = host.armed
        if armed is not None and armed.point.matches(effect):
            armed.left -= 1
            if armed.left == 0 and armed.point.moment == "performed":
                self._spring(host, effect)
                return
        performer = self._performers.get(type(effect))
        if performer is not None:
            performer(host, effect)

    def _spring(self, host: Host, effect: object) -> None:
        """Perform the effect, then crash."""
        armed = host.armed
        assert armed is not None
        host.armed = None
        performer = self._performers.get(type(effect))
        if performer is not None:
            performer(host, effect)
        self.die_at(host, armed)

    def die_at(self, host: Host, armed: Armed) -> None:
        self.counts[f"crash point: {armed.point.name}"] += 1
        host.armed = None
        self.crash(host, armed.power, armed.point.name)
        self.after(_RESTART_NS, self.restart, host)

    def restart(self, host: Host) -> None:
        if host.core is None:
            self.start(host)

    def _halt(self, host: Host, effect: Halt) -> None:
        reason = f"halted, {effect.reason}"
        if effect.removed:  # the node leaves gracefully and is not restarted
            self.deliver(0, host, host.process, Stopping())
            self.after(_GOODBYE_NS, self.attend, host, host.process, self.crash, host, False, reason)
            return
        self.crash(host, power=False, reason=reason)
        self.after(_RESTART_NS, self.restart, host)
