"""Checks the sequence from outside: what was published, delivered and acknowledged, at which node and in which history.

It compares the deliveries of different nodes, and acknowledgements with both. It takes only two things from a node's
state, to know what may be demanded: the members of its work set, and whether a memory still exists.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chaplain.sequence.core import SequenceCore
from chaplain.sequence.events import Delivered, HistoryBegan, Publish, Published, Unpublished
from chaplain.sequence.messages.peer import SequenceState
from chaplain.sequence.window.entries import HeldEntry
from chaplain.sequence.window.log import set_after
from chaplain.sequence.work_set import WorkSet
from chaplain.units import SECOND_NS
from simulator.checkers.base import Watcher
from simulator.world.machine import Host

if TYPE_CHECKING:
    from simulator.workloads.sequence import Sequence as Workload
    from simulator.world.world import World

_PROGRESS_NS = 10 * SECOND_NS
_LATELY_NS = 4 * SECOND_NS
_ENTRY_BYTES_MAX = 128
"""Maximum size of an entry without events."""


class SequenceChecker(Watcher):
    name = "sequence"

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.world: World | None = None
        self._sent: dict[int, tuple[str, int, Publish]] = {}
        """By token: the node and process it was published at, and the events."""
        self._sent_at: dict[int, int] = {}
        self._ended: set[int] = set()
        self._order: dict[tuple[int, str, int], bytes] = {}
        self._where: dict[bytes, tuple[int, str, int]] = {}
        self._heads: dict[str, dict[str, int]] = {}
        self._begun: dict[str, dict[str, int]] = {}
        """The numbers after which each node began to deliver: its readers do not get earlier ones."""
        self._sizes: dict[int, dict[int, int]] = {}
        """By history and index: the sizes of entries with events."""
        self._history: dict[str, int] = {}
        """The history in which each node last delivered: it may leave it in the same step."""
        self._index: dict[str, int] = {}
        """The entry that each node delivered last: it contains what the node acknowledges next."""
        self._sets: dict[tuple[int, int], WorkSet] = {}
        self._acked: dict[tuple[int, str], int] = {}
        self._milestones: dict[tuple[int, str], list[tuple[int, int]]] = {}
        """When how much of a stream was acknowledged."""
        self._acked_at: dict[str, int] = {}
        """When each node last acknowledged something."""
        self._active: list[int] = []
        """Histories with events, in the order of their first events."""

    def process_started(self, time_ns: int, host: Host, /) -> None:
        self._heads[host.name] = {}
        self._begun[host.name] = {}

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        if isinstance(event, Publish):
            self._sent[event.token] = (host.name, host.process, event)
            self._sent_at[event.token] = time_ns
        for effect in effects:
            match effect:
                case HistoryBegan():
                    self._heads[host.name] = {stream: number for stream, (number, _) in effect.streams.items()}
                    self._begun[host.name] = dict(self._heads[host.name])
                case Delivered():
                    self._delivered(host, effect)
                case Published():
                    self._acknowledged(time_ns, host, effect)
                case Unpublished():
                    self._end(effect.token)
                    self._workload.counts(self.world)[f"unpublished: {effect.kind}"] += 1
                case _:
                    pass
        self._see_set(host)

    # One message per number, no gaps, the same order everywhere.

    def _delivered(self, host: Host, delivered: Delivered) -> None:
        stream = delivered.run.stream
        self._history[host.name], self._index[host.name] = delivered.history, delivered.index
        self._sizes.setdefault(delivered.history, {})[delivered.index] = len(delivered.run.data)
        heads = self._heads[host.name]
        if delivered.first != heads.get(stream, 0) + 1:
            self.complain(f"{host.name} delivers {stream} {delivered.first} after {heads.get(stream, 0)}")
        for number, value in enumerate(delivered.run.values(), delivered.first):
            place = (delivered.history, stream, number)
            if self._order.setdefault(place, value) != value:
                self.complain(f"fork: {stream} {number} is two messages; the second at {host.name}")
            if self._where.setdefault(value, place) != place:
                self.complain(f"{host.name} delivers {value!r} as {place}; it is {self._where[value]} already")
        heads[stream] = delivered.first + len(delivered.run.lengths) - 1
        if delivered.history not in self._active:
            self._second_history(host, delivered.history)

    def _second_history(self, host: Host, history: int) -> None:
        """Another history may contain events only if the first is over, or no node that remembers it could
        take part.
        """
        self._active.append(history)
        for former in self._active[:-1]:
            if self._is_alive(former) and not self._was_forgotten(former, history):
                self.complain(f"fork: {host.name} delivers in history {history:x} while {former:x} lives")

    def _latest(self, history: int) -> WorkSet:
        return max(((index, members) for (of, index), members in self._sets.items() if of == history))[1]

    def _cores(self) -> dict[int, SequenceCore]:
        assert self.world is not None
        hosts = [host for host in self.world.hosts.values() if host.core is not None]
        return {host.core.number: host.core.sequence for host in hosts}  # type: ignore[union-attr]

    def _holders(self, history: int) -> list[SequenceCore]:
        """The nodes whose memories still count in this history."""
        members = self._latest(history)
        return [
            core for core in self._cores().values() if core.context.history == history and core.context.me in members
        ]

    def _is_alive(self, history: int) -> bool:
        return 2 * len(self._holders(history)) > len(self._latest(history))

    def _was_forgotten(self, former: int, history: int) -> bool:
        """True if more than half of all nodes have no memory of the former history: they may found a new one."""
        return 2 * len(self._holders(former)) < len(self._workload.names)

    # Acknowledgements.

    def _acknowledged(self, time_ns: int, host: Host, published: Published) -> None:
        name, process, sent = self._sent[published.token]
        self._end(published.token)
        if (name, process) != (host.name, host.process):
            self.complain(f"{host.name}.{host.process} acknowledges what was published at {name}.{process}")
        core = host.core.sequence  # type: ignore[union-attr]
        history = self._history[host.name]
        for number, value in enumerate(sent.values, published.first):
            if self._order.get((history, sent.stream, number)) != value:
                self.complain(f"{host.name} acknowledges {value!r} as {sent.stream} {number}, which it is not")
        key = (history, sent.stream)
        self._acked[key] = max(self._acked.get(key, 0), published.first + len(sent.values) - 1)
        self._milestones.setdefault(key, []).append((time_ns, self._acked[key]))
        self._acked_at[host.name] = time_ns
        self._workload.counts(self.world)["acknowledged"] += len(sent.values)
        if core.context.history == history:
            self._demand_copies(host, core)

    def _demand_copies(self, host: Host, core: SequenceCore) -> None:
        """A quorum holds what is acknowledged, and what was decided after it in the same step.

        Each entry is checked against the work set that decided it: later changes may have removed a member that did not
        hold it, or added one that cannot hold it yet.
        """
        log, members = core.context.log, core.context.window_base.members
        for held in log.since(log.base.index):
            if held.index > log.decided:
                return
            if held.index >= self._index[host.name]:
                self._demand_copy(host, core, held, members)
            members = set_after(members, held.entry)

    def _demand_copy(self, host: Host, core: SequenceCore, held: HeldEntry, members: WorkSet) -> None:
        """More than half of the memories that count hold it; a memory that was lost since may have held it."""
        cores = self._cores()
        without = 0
        for member in members:
            other = cores.get(member.identifier)
            if other is not None and other.context.me == member and other.context.history == core.context.history:
                log = other.context.log
                without += log.hash_at(held.index) != held.hash and log.decided < held.index
        if 2 * without >= len(members):
            self.complain(f"{host.name} acknowledges what {without} of {len(members)} memories do not hold")

    def _end(self, token: int) -> None:
        if token in self._ended:
            self.complain(f"token {token} ended twice")
        self._ended.add(token)

    # Work sets.

    def _see_set(self, host: Host) -> None:
        if host.core is None:
            return
        context = host.core.sequence.context  # type: ignore[attr-defined]
        if context.history and context.log.decided:
            known = self._sets.setdefault((context.history, context.log.decided), context.log.members)
            if known != context.log.members:
                self.complain(f"fork: {host.name} has another work set behind {context.log.decided} than others")

    # The end of the run.

    def finish(self, healed: Sequence[Host], /) -> None:
        assert self.world is not None
        counts = self.world.counts
        counts["histories with events"] += len(self._active)
        counts["delivered"] += len(self._order)
        for (history, stream), number in self._acked.items():
            holders = self._holders(history)
            if self._is_alive(history) and all(core.context.streams.get(stream, (0,))[0] < number for core in holders):
                tails = [core.context.log.undecided for core in holders]
                if not any(tails):
                    self.complain(f"{stream} {number} was acknowledged, and nobody in {history:x} has it")
        for host in self.world.hosts.values():
            lost = self._forgotten(host)
            if lost:
                self.complain(f"{host.name} works and {lost}")
        if healed:
            self._demand_progress(healed)

    def _forgotten(self, host: Host) -> str:
        """What a member's readers cannot get although it is decided and in the window."""
        if host.core is None:
            return ""
        context = host.core.sequence.context  # type: ignore[attr-defined]
        sizes = self._sizes.get(context.history, {})
        whole = sum(sizes.values()) + _ENTRY_BYTES_MAX * context.log.head.index
        if context.state is not SequenceState.WRK or 2 * whole > context.settings.window_bytes:
            return ""  # the history is larger than the window: the checker does not know what has left it
        lost = [f"{stream} 1 to {number}" for stream, number in self._begun[host.name].items() if number]
        return f"does not remember {', '.join(lost)}" if lost else ""

    def _demand_progress(self, healed: Sequence[Host]) -> None:
        """If the healed nodes include a majority of the work set, they must work again and admit the other healed
        nodes.
        """
        assert self.world is not None
        history = self._able(healed)
        if history is None:
            self.world.counts["liveness not demanded"] += 1
            return
        self.world.counts["liveness demanded"] += 1
        for host in healed:
            wrong = self._wrong(host, history, self.world.now_ns - _PROGRESS_NS)
            if wrong:
                self.complain(f"{host.name} {wrong}, long after the heal")

    def is_satisfied(self, healed: Sequence[Host], /) -> bool:
        """True if all work, have acknowledged something since the heal, and have answered every publish except the
        latest.
        """
        assert self.world is not None
        history = self._able(healed)
        heal_ns, listeners = self._workload.plan.heal_ns, self._workload.listeners
        silent = [host for host in healed if self._acked_at.get(host.name, 0) <= heal_ns and host.name not in listeners]
        if history is None or silent:
            return False
        return not any(self._wrong(host, history, self.world.now_ns - _LATELY_NS) for host in healed)

    def _able(self, healed: Sequence[Host]) -> int | None:
        """The history in which the healed nodes must work; none, if they have a majority of none."""
        cores = [host.core.sequence for host in healed if host.core is not None]  # type: ignore[attr-defined]
        histories = {core.context.history for core in cores if core.context.history and core.context.log.members}
        return max((history for history in histories if self._can_go_on(history, cores)), default=None)

    def _wrong(self, host: Host, history: int, since_ns: int) -> str:
        """What this node failed to do since then."""
        if host.core is None:
            return "is down"
        context = host.core.sequence.context  # type: ignore[attr-defined]
        if context.state is not SequenceState.WRK or context.history != history:
            return f"is in {context.state.name}: {context.reason}"
        for token, (name, process, _) in self._sent.items():
            late = self._sent_at[token] < since_ns
            if late and (name, process) == (host.name, host.process) and token not in self._ended:
                return f"never answered what was published as {token}"
        for (where, stream), milestones in self._milestones.items():
            passed = bisect_left(milestones, (since_ns, 0))
            due = milestones[passed - 1][1] if passed and where == history else 0
            if self._heads[host.name].get(stream, 0) < due:
                return f"has {stream} to {self._heads[host.name].get(stream, 0)}, of {due} that were acknowledged"
        listens = host.name in self._workload.listeners
        return "" if listens or self._acked_at.get(host.name, 0) >= since_ns else "acknowledged nothing lately"

    def _can_go_on(self, history: int, cores: Sequence[SequenceCore]) -> bool:
        members = self._latest(history)
        here = [core for core in cores if core.context.history == history and core.context.me in members]
        sets = [members, *(one for core in here for one in core.context.log.sets())]
        present = {core.context.me for core in here}
        return all(2 * len(present.intersection(one)) > len(one) for one in sets)
