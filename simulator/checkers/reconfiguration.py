"""Checks changes of the serializer set: which set must agree to each message, and that every stage is legal.

It keeps its own list of sets, computed only from the agreed bodies, in a few lines that share no code with the
`cluster_config` of the nodes. Every demand of `consensus` on a quorum applies to the sets at that index.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from chaplain.core import Send
from chaplain.journal.consensus.events import Agreed, Role, RoleChanged
from chaplain.journal.messages.cluster import Body, ConfigEntry, Entry, decode_body
from chaplain.journal.messages.consensus import Propose, Vote, decode
from chaplain.journal.messages.membership import EntryType, Stage
from simulator.checkers.consensus import OrderChecker
from simulator.world.machine import Host

if TYPE_CHECKING:
    from simulator.workloads.config import Config

Sets = tuple[tuple[int, ...], ...]
LINGER_NS = 20 * 10**9
"""How long a change may stay open while all healed nodes are well."""


class ConfigChecker(OrderChecker):
    name = "config"

    def __init__(self, workload: Config) -> None:
        super().__init__(workload)
        self._config = workload
        self._sets: list[Sets] = [(), (workload.founders,)]
        """The sets that must agree to each index."""
        self._nominated: tuple[int, ...] = ()
        self._since_ns = 0
        self._whole_ns = 0
        """When the change that ended last, successful or not, was nominated."""
        self._regimes: list[int] = []
        """Regimes with an agreed message."""
        self._granted: dict[int, list[int]] = {}
        self._stood: dict[str, int] = {}
        self._struck: list[bytes] = []
        self._ingest: dict[int, Stage] = {}
        """The stage of each ingest node; live, if none is named."""

    @property
    def serializers(self) -> tuple[int, ...]:
        return self._sets[-1][-1]

    def _enough(self, names: Collection[str], index: int) -> bool:
        numbers = [self._config.number(name) for name in names]
        return _quorum(self._sets[min(index, len(self._sets) - 1)], numbers)

    # Stages.

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._overhear(host, effect.frame)
            elif isinstance(effect, RoleChanged):
                self._watch_role(host, effect)
        super().observe(time_ns, host, event, effects)

    def _overhear(self, host: Host, frame: bytes) -> None:
        message = decode(frame[1:])
        if isinstance(message, Vote) and message.granted:
            self._granted.setdefault(message.regime, []).append(self._config.number(host.name))
        elif isinstance(message, Propose):
            body = decode_body(message.body)
            if body.regime == message.regime and message.body not in self._struck:
                self._proposed_stage(host, message.body, body)

    def _proposed_stage(self, host: Host, raw: bytes, body: Body) -> None:
        for stage, nodes in _stages(body):
            self._struck.append(raw)
            assert self.world is not None
            if stage is not Stage.NOMINATE and body.regime not in self._regimes:
                self.complain(f"{host.name} proposes {stage.name} before it agreed anything in regime {body.regime}")
            if stage is Stage.IMPLEMENT and body.final != (nodes[0] != body.master):
                self.complain(f"{host.name} proposes Implement for master {nodes[0]}, and final is {body.final}")
            self._config.staged(self.world, host, body, stage, nodes)

    def _first_agreed(self, host: Host, agreed: Agreed) -> None:
        super()._first_agreed(host, agreed)
        body = agreed.body
        if body.regime not in self._regimes:
            self._regimes.append(body.regime)
        self._sets.append(self._sets[-1])
        for entry in body.entries:
            for stage, nodes in _stage(entry):
                self._take_stage(stage, nodes)
            for stage, node in _role_stage(entry):
                self._take_role_stage(stage, node)

    def _take_role_stage(self, stage: Stage, node: int) -> None:
        """Live is legal only after Catchup, Drop only after Block; a request out of order changes nothing."""
        assert self.world is not None
        was = self._ingest.get(node, Stage.LIVE)
        self.world.counts[f"stage {stage.name.lower()}"] += 1
        if stage is Stage.LIVE and was is not Stage.CATCHUP:
            self.complain(f"node {node} is live as an ingest node without having caught up")
        if stage is Stage.DROP and was is not Stage.BLOCK:
            self.complain(f"node {node} is dropped without having been blocked")
        others = sum(self._ingest.get(one, Stage.LIVE) is Stage.LIVE for one in self._config.numbers if one != node)
        allowed = {Stage.CATCHUP: was is Stage.DROP, Stage.BLOCK: was is Stage.LIVE and others > 0}
        opens = stage in (Stage.CATCHUP, Stage.BLOCK)
        if allowed.get(stage, True) and not (opens and node in self._nominated):
            self._ingest[node] = stage

    def _take_stage(self, stage: Stage, nodes: tuple[int, ...]) -> None:
        assert self.world is not None
        before = self._sets[-2]
        if stage is Stage.NOMINATE:
            if not self._nominated:
                self._nominated, self._since_ns = nodes, self.world.now_ns
            return
        self.world.counts[f"stage {stage.name.lower()}"] += 1
        if nodes != self._nominated:
            self.complain(f"{stage.name} of {nodes}, and {self._nominated or 'nobody'} was nominated")
        if stage is Stage.IMPLEMENT:
            if len(before) > 1 or sorted(nodes) == sorted(before[0]):
                self.complain(f"Implement of {nodes} while {before} serialize")
            self._sets[-1] = (*before, nodes)
        elif stage is Stage.CONFIRM:
            if len(before) < 2 or before[1] != nodes:
                self.complain(f"Confirm of {nodes} while {before} serialize")
            self._sets[-1] = (nodes,)
            self._over()
        elif len(before) > 1:
            self.complain(f"Refuse of {nodes} after its Implement")
        else:
            self._over()

    def _over(self) -> None:
        self._nominated, self._whole_ns = (), self._since_ns

    # Elections.

    def _watch_role(self, host: Host, changed: RoleChanged) -> None:
        position = max(0, self._position[host.name])
        if changed.role is Role.CANDIDATE:
            self._stood[host.name] = position
        elif changed.role is Role.MASTER:
            self._demand_votes(host, changed.regime, position)

    def _demand_votes(self, host: Host, regime: int, position: int) -> None:
        """A master needs votes from a quorum of the sets that, as far as it knew at its election, must agree to its
        next message.
        """
        voters = [*self._granted.get(regime, []), self._config.number(host.name)]
        known = range(self._stood.get(host.name, position), position + 1)
        sets = [self._sets[min(at + 1, len(self._sets) - 1)] for at in known]
        own = self._config.number(host.name)
        if not any(own in members for each in sets for members in each):
            self.complain(f"{host.name} is master of {regime} without a vote of its own, of {sets}")
        if not any(_quorum(each, voters) for each in sets):
            self.complain(f"{host.name} is master of {regime} by votes of {sorted(set(voters))}, of {sets}")

    # The end of the run.

    def is_satisfied(self, healed: Sequence[Host], /) -> bool:
        """In addition: some change both began and ended after the heal."""
        return self._whole_ns > self._config.plan.heal_ns and super().is_satisfied(healed)

    def finish(self, healed: Sequence[Host], /) -> None:
        assert self.world is not None
        demanded = self.world.counts["liveness demanded"]
        super().finish(healed)
        overdue = self._nominated and self.world.now_ns - self._since_ns > LINGER_NS
        if overdue and self.world.counts["liveness demanded"] > demanded:
            self.complain(f"the change to {self._nominated} has been under way since {self._since_ns / 1e9:.1f} s")


def _quorum(sets: Sets, numbers: Collection[int]) -> bool:
    return all(2 * len(set(members) & set(numbers)) > len(members) for members in sets)


def _role_stage(entry: Entry) -> list[tuple[Stage, int]]:
    """The stage of an ingest node that an entry brings, if any."""
    kinds = (EntryType.ADD_INGEST_NODE, EntryType.REMOVE_INGEST_NODE)
    if isinstance(entry, ConfigEntry) and entry.entry_type in kinds:
        return [(Stage(entry.stage), entry.data[0])]
    return []


def _stage(entry: Entry) -> list[tuple[Stage, tuple[int, ...]]]:
    """The stage of a new serializer set that an entry brings, and the set."""
    if isinstance(entry, ConfigEntry) and entry.entry_type == EntryType.NEW_SERIALIZER_SET:
        return [(Stage(entry.stage), tuple(entry.data[1 : 1 + entry.data[0]]))]
    return []


def _stages(body: Body) -> list[tuple[Stage, tuple[int, ...]]]:
    return [found for entry in body.entries for found in _stage(entry)]
