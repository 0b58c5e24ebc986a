"""Serializer sets that change all the time: grown, shrunk, replaced, two requests at once, masters removed and back.

The world is that of `order`, with six nodes, of which some are serializers at first. At every stage a fault may hit on
purpose: the old master, the new one, a minority of the new set, or the connection between the two masters.

Nodes keep a roster file. A node whose disk is wiped starts with any roster that it had before, or with none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from chaplain.core import Persist
from chaplain.journal.consensus.events import ConfigOffered, IngestDrained
from chaplain.journal.messages.cluster import Body
from chaplain.journal.messages.membership import OPENING, AddNode, EntryType, NewSet, RemoveNode, Stage, encode_fields
from chaplain.journal.storage.last_known_members import LastKnownMembers, LastKnownMembersStore
from chaplain.units import MILLISECOND_NS, SECOND_NS
from simulator.adapters.consensus_node import OrderNode
from simulator.checkers.reconfiguration import ConfigChecker
from simulator.faults.disk_faults import BAD_DISKS, SYNCS_FAIL
from simulator.faults.plan import NETWORK, PROCESS
from simulator.workloads.order import Order
from simulator.world.machine import CrashPoint, Host
from simulator.world.world import World

NODES = 6
_SPITE_UNTIL_NS = 22 * SECOND_NS
"""Faults at stages stop early enough for a heal to be observed."""
_SPITES = ("", "", "old master", "new master", "minority of the new set", "one-way cut", "anybody")
_KINDS = {
    Stage.CATCHUP: EntryType.ADD_INGEST_NODE,
    Stage.LIVE: EntryType.ADD_INGEST_NODE,
    Stage.BLOCK: EntryType.REMOVE_INGEST_NODE,
    Stage.DROP: EntryType.REMOVE_INGEST_NODE,
}
_STAGES = (Stage.NOMINATE, Stage.REFUSE, Stage.IMPLEMENT, Stage.CONFIRM, *_KINDS)


def _writes(stage: Stage) -> Any:
    """Matches a `Persist` that contains this stage of a change."""
    kind = _KINDS.get(stage, EntryType.NEW_SERIALIZER_SET)
    entry = re.compile(rb"\x01%c%c\x00\x00\x00[\x01-\x30]" % (kind, stage))

    def matches(effect: object) -> bool:
        if not isinstance(effect, Persist):
            return False
        return any(entry.search(getattr(operation, "data", b"")) for operation in effect.operations)

    return matches


def _points() -> list[CrashPoint]:
    moments = {"performed": "before", "written": "after", "synced": "after the sync of"}
    return [
        CrashPoint(f"{when} the write of {stage.name.lower()}", _writes(stage), moment)
        for stage in _STAGES
        for moment, when in moments.items()
    ]


class _Enrolled(OrderNode):
    """A node with its rosters, of which the last one counts. They are stored apart from its log, and so outlive it."""

    def __init__(self, workload: Config, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> None:
        super().__init__(workload, name, rng, disk, now_ns)
        self._rosters = workload.rosters[name]
        self._keeper = LastKnownMembersStore(
            self._rosters[-1] if self._rosters else None, self.execution.cluster_config
        )
        self.serializer.context.last_known_members = self._keeper.latest

    def _feed(self, now_ns: int, event: Any, effects: list[Any]) -> None:
        super()._feed(now_ns, event, effects)
        if self._keeper.update(self.execution.cluster_config, self.execution.applied_index) is not None:
            self._rosters.append(self._keeper.latest)


class Config(Order):
    kinds: ClassVar[Sequence[str]] = (
        *NETWORK,
        *PROCESS,
        *("slow disk", "disk wiped", "disk rotten", "everybody's power", "hand-over"),
    )
    rare_kinds: ClassVar[Sequence[str]] = ("EIO", SYNCS_FAIL, *BAD_DISKS)
    points: ClassVar[Sequence[CrashPoint]] = (*Order.points, *_points())
    may_lie_with_a_vote: ClassVar[bool] = False

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._frail = rng.choice(self.names)
        """The one node whose disk may be damaged; it is a minority of every set that it is in."""
        self.founders = self._draw_set(rng.choice((3, 3, 3, 2, 5)))
        self._sets = self._checker = ConfigChecker(self)
        self._spite = rng.choice(_SPITES)
        self._pace_ns = rng.choice((SECOND_NS, 2 * SECOND_NS, 4 * SECOND_NS))
        self.rosters: defaultdict[str, list[LastKnownMembers]] = defaultdict(list)

    def make_node(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> OrderNode:
        return _Enrolled(self, name, rng, disk, now_ns)

    def draw_size(self, rng: Random) -> int:
        return NODES

    def _draw_set(self, size: int) -> tuple[int, ...]:
        """A random set in any order: the first node is to be master."""
        able = [number for number in self.numbers if size > 2 or self.names[number - 1] != self._frail]
        return tuple(self.rng.sample(able, size))

    def _may_damage(self, name: str) -> bool:
        if name == self._frail and name not in self.victims:
            self.victims.append(name)
        return name in self.victims

    def _damage(self, world: World, host: Host, kind: str) -> None:
        if kind == "disk wiped":
            rosters = self.rosters[host.name]
            del rosters[self.rng.randrange(len(rosters) + 1) :]
        super()._damage(world, host, kind)

    # Requests of operators.

    def begin(self, world: World) -> None:
        super().begin(world)
        world.after(SECOND_NS + self.rng.randrange(self._pace_ns), self._wish, world)

    def _wish(self, world: World) -> None:
        for _ in range(self.rng.choice((1, 1, 1, 2))):  # sometimes two at once
            wanted = self._next_set()
            fields = encode_fields(NewSet(wanted))
            self._offer(world, ConfigOffered(EntryType.NEW_SERIALIZER_SET, Stage.NOMINATE, fields))
        if self.rng.random() < 0.5:
            self._wish_role(world)
        world.after(self._pace_ns // 2 + self.rng.randrange(self._pace_ns), self._wish, world)

    def _wish_role(self, world: World) -> None:
        """Ask that a node take no more writes, or take some again; the cluster decides whether it may."""
        number = self.rng.choice(self.numbers)
        adds = self.rng.random() < 0.5
        kind = EntryType.ADD_INGEST_NODE if adds else EntryType.REMOVE_INGEST_NODE
        message = AddNode(kind, number) if adds else RemoveNode(kind, number)
        self._offer(world, ConfigOffered(kind, OPENING[kind], encode_fields(message)))
        if not adds:
            word = IngestDrained(number)
            for host in world.hosts.values():
                world.after(self.rng.randrange(SECOND_NS, 6 * SECOND_NS), world.tell, host, word)

    def _offer(self, world: World, offer: ConfigOffered) -> None:
        for host in world.hosts.values():
            world.after(self.rng.randrange(5 * MILLISECOND_NS), world.tell, host, offer)

    def _next_set(self) -> tuple[int, ...]:
        """The current set with a member removed, added or replaced; now and then the same set, or any other."""
        now = list(self._sets.serializers)
        rest = [number for number in self.numbers if number not in now]
        match self.rng.randrange(6):
            case 0:
                return tuple(self.rng.sample(now, len(now)))
            case 1 if len(now) > 3:
                return tuple(self.rng.sample(now, len(now) - 1))
            case 2 | 3 if rest:
                leaving, coming = self.rng.choice(now), self.rng.choice(rest)
                mixed = [coming if number == leaving else number for number in now]
                return self._sturdy(mixed)
            case 4 if rest:
                return self._sturdy([*now, self.rng.choice(rest)])
            case _:
                return self._draw_set(self.rng.choice((2, 3, 3, 4, 5)))

    def _sturdy(self, numbers: list[int]) -> tuple[int, ...]:
        frail = self.numbers[self.names.index(self._frail)]
        if len(numbers) < 3 and frail in numbers:
            return self._draw_set(3)
        return tuple(self.rng.sample(numbers, len(numbers)))

    # Faults at a stage.

    def staged(self, world: World, host: Host, body: Body, stage: Stage, nodes: tuple[int, ...]) -> None:
        """A master proposes a stage: the fault for this stage may hit now."""
        mercy = 0.9 if stage is Stage.NOMINATE else 0.3
        if not self._spite or world.now_ns > _SPITE_UNTIL_NS or self.rng.random() < mercy:
            return
        later_ns = self.rng.choice((0, MILLISECOND_NS, 20 * MILLISECOND_NS, 300 * MILLISECOND_NS))
        world.counts[f"strike: {self._spite} at {stage.name.lower()}"] += 1
        first = world.hosts[self.names[nodes[0] - 1]]
        match self._spite:
            case "old master":
                self._strike_down(world, host, later_ns)
            case "new master":
                self._strike_down(world, first, later_ns)
            case "minority of the new set":
                for number in nodes[: (len(nodes) - 1) // 2]:
                    self._strike_down(world, world.hosts[self.names[number - 1]], later_ns)
            case "one-way cut":
                world.after(later_ns, self._cut, world, (host.name, first.name))
            case _:
                self._strike_down(world, world.hosts[self.rng.choice(self.names)], later_ns)

    def _strike_down(self, world: World, host: Host, later_ns: int) -> None:
        power = self.rng.random() < 0.3
        world.after(later_ns, world.crash, host, power, "struck")
        world.after(later_ns + self.rng.randrange(MILLISECOND_NS, 4 * SECOND_NS), world.restart, host)

    def _cut(self, world: World, pair: tuple[str, str]) -> None:
        token = world.network.conditions.block([pair if self.rng.random() < 0.5 else pair[::-1]])
        world.network.conditions_changed()
        world.after(self.rng.randrange(SECOND_NS, 6 * SECOND_NS), self._mend, world, token)

    def _mend(self, world: World, token: int) -> None:
        world.network.conditions.unblock(token)
        world.network.conditions_changed()


WORKLOAD = Config
