"""Virtual time and the hosts that live in it.

The world keeps one calendar, ordered by (time, sequence), and one `random.Random` per concern, all derived from one
seed: another draw in the network does not shift what the disk does. It steps cores, shows every step to the trace
and the checkers, and performs effects. It does not know what any of the nodes is for.

Invariants: time never goes back; equal seeds give equal calendars; nothing reaches a life it was not meant for.
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
"""A core that wants to be woken so often at one moment is not waiting for time to pass."""

_RESTART_NS = 2 * SECOND_NS
"""How long a supervisor waits before it starts a node that halted."""
_GOODBYE_NS = 100 * MILLISECOND_NS
"""How long a node that was removed takes to say good-bye."""

_WOKEN, _DRAINED = Woken(), Drained()


def derive(seed: str, concern: str) -> Random:
    """Chance for one concern. A string is hashed by `random` itself, the same way in every process."""
    return Random(f"{seed}/{concern}")


class World:
    def __init__(self, seed: str, make_node: MakeNode, trace: Trace, checkers: Sequence[Checker] = ()) -> None:
        self.seed = seed
        self.now_ns = 0
        self.trace = trace
        self.checkers = checkers
        self.hosts: dict[str, Host] = {}
        self.counts: Counter[str] = Counter()
        """How often each fault really happened."""
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
        """Let time pass until then, or until `done` says so."""
        calendar = self._calendar
        while calendar and calendar[0][0] <= until_ns:
            self.now_ns, _, action, args = heapq.heappop(calendar)
            action(*args)
            if done is not None and done():
                return
        self.now_ns = until_ns

    # The lives of hosts.

    def add(self, name: str, endpoint: str) -> Host:
        host = Host(name, endpoint, self.rng(f"disk of {name}"))
        self.hosts[name] = host
        self.network.bind(host)
        return host

    def start(self, host: Host) -> None:
        """Start the process, from what its disk holds."""
        assert host.core is None
        host.clock.reborn()
        rng = self.rng(f"{host.name}.{host.life}")
        try:
            host.core = self._make_node(host.name, rng, host.disk.contents(), host.clock.read(self.now_ns))
        except StorageError as error:
            self.note(f"{host.name} would not start: {error}")
            return
        host.wants_drained = getattr(host.core, "wants_drained", True)
        host.wants_flushed = getattr(host.core, "wants_flushed", True)
        self.note(f"{host.name} started as life {host.life}")
        for checker in self.checkers:
            checker.born(self.now_ns, host)
        self._schedule_wake(host)

    def crash(self, host: Host, power: bool, reason: str = "") -> None:
        """Kill the process, or cut the power of the machine: then unsynced writes tear and nobody is told."""
        if host.core is None:
            return
        self.note(f"{host.name}.{host.life} {'lost power' if power else 'was killed'}{reason and ': ' + reason}")
        self.counts["power cut" if power else "kill"] += 1
        for checker in self.checkers:
            checker.died(self.now_ns, host, reason)
        life = host.life
        host.stop()
        if power:
            host.disk.power_cut()
        else:
            host.disk.killed()
        self.network.host_died(host, life, silent=power)

    def pause(self, host: Host) -> None:
        if host.up:
            host.paused = True

    def resume(self, host: Host) -> None:
        """Everything that came meanwhile is there at once, and so is the time that passed."""
        if not host.paused:
            return
        host.paused = False
        waiting, host.inbox = host.inbox, []
        for action, args in waiting:
            self.attend(host, host.life, action, *args)

    def stop(self, host: Host) -> None:
        """Ask the node to end, as an operator does."""
        self.tell(host, Stopping())

    def note(self, text: str) -> None:
        self.trace.note(self.now_ns, text)

    # Inputs.

    def tell(self, host: Host, event: object) -> None:
        """Give this input to the process that runs now, if one does."""
        self.attend(host, host.life, self._step, host, event)

    def deliver(self, delay_ns: int, host: Host, life: int, event: object) -> None:
        self._put(self.now_ns + delay_ns, self.attend, (host, life, self._step, host, event))

    def attend(self, host: Host, life: int, action: Callable[..., None], *args: Any) -> None:
        """Do this when the process runs: now, when its pause ends, or never if its life is over."""
        if host.life != life or host.core is None:
            return
        if host.paused:
            host.inbox.append((action, args))
        else:
            action(*args)

    def _step(self, host: Host, event: object) -> None:
        if host.wants_drained and not host.drain_due and event is not _DRAINED:
            host.drain_due = True
            self._put(self.now_ns, self.attend, (host, host.life, self._drain, host))
        core, life = host.core, host.life
        assert core is not None
        effects = core.step(host.clock.read(self.now_ns), event)
        if not effects and event is _DRAINED:
            self._schedule_wake(host)  # nothing was waiting for a batch: not worth a line
            return
        self.trace.record(self.now_ns, host.name, life, event, effects)
        for checker in self.checkers:
            checker.observe(self.now_ns, host, event, effects)
        for effect in effects:
            self._perform(host, effect)
            if host.life != life:
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
            self.at(time_ns, self.attend, host, host.life, self._wake, host, time_ns)

    def _wake(self, host: Host, time_ns: int) -> None:
        """The calendar may hold wake-ups that a later deadline made needless: those go by unseen."""
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
        """A jump or drift moves the moment at which the deadline comes."""
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
        """Perform the effect, and die."""
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
        if effect.removed:  # it says good-bye, and nobody starts it again
            self.deliver(0, host, host.life, Stopping())
            self.after(_GOODBYE_NS, self.attend, host, host.life, self.crash, host, False, reason)
            return
        self.crash(host, power=False, reason=reason)
        self.after(_RESTART_NS, self.restart, host)
