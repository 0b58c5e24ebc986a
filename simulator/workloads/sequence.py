"""The sequence alone: five nodes over plain connections, publishers at all of them, and no disks to lose.

The node is that of `sequence_node`: the whole core, without handshake and encryption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from random import Random
from typing import Any, ClassVar

from chaplain.core import Send
from chaplain.errors import Malformed
from chaplain.sequence.events import Publish
from chaplain.sequence.messages.peer import SequenceMessageType, SequenceState
from chaplain.sequence.settings import SequenceSettings
from chaplain.units import MILLISECOND_NS
from chaplain.wire import parcel
from simulator.adapters.sequence_node import LEAD, SequenceNode
from simulator.checkers.sequence import SequenceChecker
from simulator.faults.plan import CLOCK, NETWORK, PROCESS, Fault
from simulator.workloads import Workload
from simulator.world.machine import CrashPoint
from simulator.world.world import World

NODES = 5
_PUBLISH_NS = 400 * MILLISECOND_NS
_ROLLING = "rolling restart"
_DOWN_NS = 500 * MILLISECOND_NS
_LOOK_NS = 100 * MILLISECOND_NS


def says(*kinds: SequenceMessageType) -> Any:
    def matches(effect: object) -> bool:
        if not isinstance(effect, Send) or len(effect.frame) <= LEAD:
            return False
        try:
            return parcel.decode(effect.frame[LEAD:]).body[0] in kinds
        except Malformed:
            return False

    return matches


class Sequence(Workload):
    kinds: ClassVar[SequenceOf[str]] = (*NETWORK, *PROCESS, *CLOCK, _ROLLING)
    points: ClassVar[SequenceOf[CrashPoint]] = (
        CrashPoint("after entries", says(SequenceMessageType.EVENTS)),
        CrashPoint("after asking for the lock", says(SequenceMessageType.LOCK)),
        CrashPoint("after granting the lock", says(SequenceMessageType.GRANT)),
        CrashPoint("after an acknowledgement", says(SequenceMessageType.BEAT)),
        CrashPoint("after telling the number", says(SequenceMessageType.SEQ)),
    )

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.numbers = tuple(range(1, NODES + 1))
        self.names = tuple(f"q{number}" for number in self.numbers)
        self._publishers = rng.choice((1, 3, 5))
        self.listeners = frozenset(self.names[-1:] if self._publishers == 1 else ())
        """Nodes that never publish: only the events of others can bring them what they missed."""
        self._streams = rng.choice((("a",), ("a", "b")))
        self._window = rng.choice((1 << 20, 1 << 20, 2000))
        self._lock_wait_ns = rng.choice((400, 400, 20)) * MILLISECOND_NS
        """In some runs the lock is taken far too early, so that ballots conflict."""
        self._token = 0
        self._checker = SequenceChecker(self)

    def number(self, name: str) -> int:
        return self.numbers[self.names.index(name)]

    def endpoint_of(self, number: int) -> str:
        return self.endpoint(self.names[number - 1])

    def make_node(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> SequenceNode:
        number = self.number(name)
        others = tuple(other for other in self.numbers if other != number)
        settings = SequenceSettings(number, listed=others, window_bytes=self._window, lock_wait_ns=self._lock_wait_ns)
        return SequenceNode(settings, self.endpoint_of, rng, now_ns)

    def checkers(self) -> list[Any]:
        return [self._checker]

    def counts(self, world: World | None) -> Counter[str]:
        assert world is not None
        return world.counts

    def begin(self, world: World) -> None:
        self._checker.world = world
        for name in self.names:
            if name not in self.listeners:
                world.after(self.rng.randrange(_PUBLISH_NS), self._publish, world, name)

    def _publish(self, world: World, name: str) -> None:
        """Some nodes have many publishers, some few; all except listeners have one, so every node must be able to
        publish.
        """
        busy = self.number(name) <= self._publishers
        for _ in range(self.rng.choice((0, 1, 1, 3)) if busy else self.rng.choice((0, 0, 0, 1))):
            self._token += 1
            values = tuple(b"%d.%d" % (self._token, place) for place in range(self.rng.choice((1, 1, 2, 5))))
            publish = Publish(self._token, self.rng.choice(self._streams), name, values)
            world.tell(world.hosts[name], publish)
        world.after(self.rng.randrange(1, _PUBLISH_NS), self._publish, world, name)

    # Rolling restart.

    def inject_fault(self, world: World, fault: Fault) -> None:
        assert fault.kind == _ROLLING
        self._roll(world, fault.nodes)

    def _roll(self, world: World, names: SequenceOf[str]) -> None:
        if not names or world.now_ns >= self.plan.heal_ns:
            return
        host = world.hosts[names[0]]
        world.crash(host, power=False, reason=_ROLLING)
        world.after(_DOWN_NS, world.restart, host)
        world.after(_DOWN_NS + _LOOK_NS, self._roll_on, world, names)

    def _roll_on(self, world: World, names: SequenceOf[str]) -> None:
        """Restart the next node when this one works again, as an operator who watches the states does."""
        host = world.hosts[names[0]]
        if host.core is not None and host.core.sequence.context.state is SequenceState.WRK:  # type: ignore[attr-defined]
            self._roll(world, names[1:])
        elif world.now_ns < self.plan.heal_ns:
            world.after(_LOOK_NS, self._roll_on, world, names)


WORKLOAD = Sequence
