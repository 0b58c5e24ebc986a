"""The sequence, as in `sequence`, while its work set grows again and again, and half of it does not learn of that.

One node after the other is restarted: its old seat leaves, and its new seat joins. When it is about to join, half of
the others are cut off. When the first node knows that the change is decided, all nodes that took part lose their
memory, except the one that joined, which is not heard at first. So the nodes that remember know different work sets,
and half of the old one may be all that is left of it (docs/decisions/sequence-order.md).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from random import Random
from typing import Any, ClassVar

from chaplain.core import Report, Send
from chaplain.sequence.context import SequenceContext
from chaplain.sequence.messages.entry import EntryKind, SeatedMember, decode_change, decode_entries
from chaplain.sequence.messages.peer import EntryBatch, SequenceMessageType, SequenceState, decode
from chaplain.units import MILLISECOND_NS, SECOND_NS
from chaplain.wire import parcel
from simulator.adapters.sequence_node import LEAD
from simulator.checkers.base import Watcher
from simulator.workloads.sequence import Sequence, says
from simulator.world.machine import Host
from simulator.world.network_conditions import Pair
from simulator.world.world import World

_UNHEARD = "growth unheard"
_FORGOTTEN = "growth forgotten"
_has_entries = says(SequenceMessageType.EVENTS)


class _Lookout(Watcher):
    """Reports which node is about to join, and at which proposer, before the entry is sent; and when the first node
    knows that it is decided.
    """

    name = "lookout"

    def __init__(self, joining: Callable[[Host, SeatedMember], None], decided: Callable[[], None]) -> None:
        self._joining = joining
        self._decided = decided
        self._seen: set[SeatedMember] = set()
        self._known: set[str | int] = set()

    def observe(self, time_ns: int, host: Host, event: object, effects: SequenceOf[object], /) -> None:
        for effect in effects:
            if isinstance(effect, Report) and effect.event == "work set":
                if effect.detail["number"] not in self._known:
                    self._known.add(effect.detail["number"])
                    self._decided()
            elif isinstance(effect, Send) and _has_entries(effect):
                for member in _joiners(effect):
                    if member not in self._seen:
                        self._seen.add(member)
                        self._joining(host, member)

    def is_satisfied(self, healed: SequenceOf[Host], /) -> bool:
        return True


def _joiners(effect: Send) -> list[SeatedMember]:
    said = parcel.decode(effect.frame[LEAD:])
    message = decode(said.body, said.payload)
    assert isinstance(message, EntryBatch)
    changes = [decode_change(e.body) for e in decode_entries(message.entries) if e.kind is EntryKind.CHANGE]
    return [change.member for change in changes if change.joins]


class WorkSets(Sequence):
    kinds: ClassVar[SequenceOf[str]] = ("clog", "pause", "kill")

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._world: World | None = None
        self._lookout = _Lookout(self._joins, self._grown)
        self._blocks: list[int] = []
        self._deaf: list[str] = []
        self._took_part: list[str] = []
        self._joiner = ""

    def checkers(self) -> list[Any]:
        return [self._lookout, *super().checkers()]

    def begin(self, world: World) -> None:
        super().begin(world)
        self._world = world
        world.after(SECOND_NS, self._disturb, world)

    def _disturb(self, world: World) -> None:
        """Restart one node when all work: so the work set shrinks, and is about to grow."""
        if world.now_ns >= self.plan.heal_ns:
            return
        if all(_context(host).state is SequenceState.WRK for host in world.hosts.values() if host.core is not None):
            self._start_again(world, self.rng.choice(self.names))
        world.after(self.rng.randrange(500 * MILLISECOND_NS), self._disturb, world)

    def _start_again(self, world: World, name: str) -> None:
        host = world.hosts[name]
        world.crash(host, power=False, reason=_FORGOTTEN)
        world.after(self.rng.randrange(100 * MILLISECOND_NS), world.restart, host)

    # Half of the nodes do not learn that the work set grows.

    def _joins(self, host: Host, joiner: SeatedMember) -> None:
        world = self._world
        if world is None or world.now_ns >= self.plan.heal_ns or self._blocks:
            return
        world.counts[_UNHEARD] += 1
        members = [self.names[member.identifier - 1] for member in _context(host).log.members]
        others = [name for name in members if name != host.name]
        self._deaf = self.rng.sample(others, len(members) // 2)
        self._took_part = [name for name in members if name not in self._deaf]
        self._joiner = self.names[joiner.identifier - 1]
        first, *rest = self._deaf or [""]
        self._block(world, [(name, first) for name in self.names] + [(first, name) for name in self.names])
        world.after(self.rng.randrange(MILLISECOND_NS), self._block, world, [(n, o) for n in self.names for o in rest])
        world.after(2 * SECOND_NS, self._unblock, world, self._blocks)

    def _block(self, world: World, pairs: SequenceOf[Pair]) -> None:
        self._blocks.append(world.network.conditions.block(pairs))
        world.network.conditions_changed()

    def _unblock(self, world: World, blocks: list[int]) -> None:
        for token in blocks:
            world.network.conditions.unblock(token)
        blocks.clear()
        world.network.conditions_changed()

    # The other half loses its memory of it.

    def _grown(self) -> None:
        world = self._world
        if world is not None and self._took_part:
            world.after(self.rng.randrange(400 * MILLISECOND_NS), self._forget, world)

    def _forget(self, world: World) -> None:
        if world.now_ns >= self.plan.heal_ns or not self._took_part:
            return
        world.counts[_FORGOTTEN] += 1
        for name in self._took_part:
            self._start_again(world, name)
        self._took_part = []
        former, self._blocks = self._blocks, []
        self._block(world, [(self._joiner, name) for name in self._deaf])
        self._unblock(world, former)
        world.after(self.rng.randrange(4 * SECOND_NS), self._unblock, world, self._blocks)


def _context(host: Host) -> SequenceContext:
    context: SequenceContext = host.core.sequence.context  # type: ignore[union-attr]
    return context


WORKLOAD = WorkSets
