"""Checks checkpoints, and what is dropped because of them, from outside.

- A node drops nothing that its own checkpoint on disk does not cover.
- A node drops nothing before a majority has a checkpoint of it on disk.
- The checkpoints of all nodes after one message are the same bytes.
- A node that counts for a quorum has everything agreed up to what it acknowledges; `requests` checks this.
- Every healed node catches up with the others, even if no log has the missing part any more.
- Every healed node, wiped or not, has everything that was not released and that no retention rule drops.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chaplain.core import Halt, Persist, Persisted, Remove, Replace, Report
from chaplain.errors import Malformed
from chaplain.journal.consensus.backfill import BACKFILLED
from chaplain.journal.execution.state import load
from chaplain.journal.snapshots import checkpoint
from chaplain.journal.snapshots.checkpoint import checkpoint_name
from chaplain.segment.layout import parse_name
from chaplain.segment.record import Kind
from chaplain.segment.survey import Surveyor
from chaplain.units import SECOND_NS
from simulator.checkers.base import Watcher
from simulator.checkers.requests import Settling, has_a_vote, is_due
from simulator.world.machine import Host

if TYPE_CHECKING:
    from simulator.workloads.retention import Retention
    from simulator.world.world import World


_PROGRESS_NS = 15 * SECOND_NS
_LATELY_NS = 4 * SECOND_NS
_DIGEST = slice(24, 56)
"""The digest's place in a checkpoint."""


class RetentionChecker(Watcher):
    name = "retention"

    def __init__(self, workload: Retention) -> None:
        self._workload = workload
        self.world: World | None = None
        self.reached = 0
        """The furthest message that any node settled."""
        self._reached_ns: list[int] = []
        """When each message was first settled."""
        self._settled: dict[str, int] = {}
        self._digests: dict[int, bytes] = {}
        self._indexes: dict[bytes, int] = {}
        """By digest: the message of each checkpoint that was ever written."""
        self._held: dict[str, int] = {}
        """The furthest checkpoint that each node ever had on a disk."""
        self._begun_ns: dict[tuple[str, int], int] = {}
        """When each process took its first step."""

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        self._begun_ns.setdefault((host.name, host.process), time_ns)
        if isinstance(event, Persisted):
            self._held[host.name] = max(self._durable(host), self._held.get(host.name, 0))
        for effect in effects:
            match effect:
                case Settling():
                    self._came_to(time_ns, host, effect.message.body.index)
                case Persist():
                    self._persisted(host, effect)
                case Report() if effect.event == BACKFILLED:
                    assert self.world is not None
                    self.world.counts["logs restocked"] += 1
                case Halt(again=True):
                    assert self.world is not None
                    self.world.counts["checkpoints adopted"] += 1
                    self._adopted(host)
                case _:
                    pass

    def _came_to(self, time_ns: int, host: Host, index: int) -> None:
        self._settled[host.name] = max(index, self._settled.get(host.name, 0))
        if index > self.reached:
            self._reached_ns += [time_ns] * (index - self.reached)
            self.reached = index

    def _adopted(self, host: Host) -> None:
        if not self._durable(host):
            self.complain(f"{host.name} starts again from a checkpoint that is not on its disk")

    def _persisted(self, host: Host, effect: Persist) -> None:
        assert self.world is not None
        for operation in effect.operations:
            match operation:
                case Remove() if operation.file.endswith(".segment"):
                    self.world.counts["segments dropped"] += 1
                    self._dropped(host, operation.file)
                case Replace() if operation.file == checkpoint_name(self._workload.settings(host.name).order):
                    self.world.counts["checkpoints written"] += 1
                    self._written(host, operation.data)
                case _:
                    pass

    def _written(self, host: Host, data: bytes) -> None:
        try:
            _, state = checkpoint.decode(data)
        except Malformed as wrong:
            self.complain(f"{host.name} writes what is no checkpoint: {wrong}")
        index = load(self._workload.founding, state).position.index
        made = checkpoint.make(index, state)
        if index not in self._digests:
            assert self.world is not None
            self._workload.writes_checkpoint(self.world, host)
        self._indexes[made.digest] = index
        if self._digests.setdefault(index, made.digest) != made.digest:
            self.complain(f"{host.name} has another checkpoint than others behind message {index}")

    def _dropped(self, host: Host, file: str) -> None:
        if parse_name(file)[1] > host.core.journal.serializer.context.log.sequence:  # type: ignore[union-attr]
            return  # the file was after a cut and is not part of the log any more
        own, rules = self._durable(host), self._workload.rules
        keeps = not rules.keep_bytes and not rules.keep_ns
        last = _last_of(host, file, min(own, self._workload.released) if keeps else own)
        if last > own and host.name not in self._workload.damaged:
            self.complain(f"{host.name} drops message {last}, and its checkpoint on disk covers {own}")
        # A damaged node that installs a checkpoint drops its own log, and fetches it again from the others.
        if keeps and last > self._workload.released and host.name not in self._workload.damaged:
            self.complain(f"{host.name} drops message {last}, which nobody released and no rule lets go")
        held = [name for name, covers in self._held.items() if covers >= last]
        if not self._workload.enough(held):
            self.complain(f"{host.name} drops message {last}, which {len(held)} nodes have a checkpoint of")

    def _durable(self, host: Host) -> int:
        """The message up to which the checkpoint on a disk covers the log, if the power failed now."""
        data = host.disk.file(checkpoint_name(self._workload.settings(host.name).order))
        return 0 if data is None else self._indexes.get(data[_DIGEST], 0)

    # After the heal.

    def is_satisfied(self, healed: Sequence[Host], /) -> bool:
        return not self._behind(healed, _LATELY_NS) and not self._short(healed)

    def finish(self, healed: Sequence[Host], /) -> None:
        if healed and is_due(self._workload, healed):
            late = self._behind(healed, _PROGRESS_NS)
            if late:
                self.complain(f"{late[0]} is at message {self._settled.get(late[0], 0)}, others at {self.reached}")
            short = self._short(healed, _PROGRESS_NS)
            if short:
                self.complain(f"{short[0]} lacks messages behind {self._workload.released} that nobody released")

    def _behind(self, healed: Sequence[Host], ago_ns: int) -> list[str]:
        """The nodes that have not reached what some node had at that time."""
        assert self.world is not None
        then = bisect_right(self._reached_ns, self.world.now_ns - ago_ns)
        return [host.name for host in healed if self._settled.get(host.name, 0) < then]

    def _short(self, healed: Sequence[Host], ago_ns: int = 0) -> list[str]:
        """The nodes that hold data, started before that time, have a vote, and lack something that is retained."""
        assert self.world is not None
        rules, then_ns = self._workload.rules, self.world.now_ns - ago_ns
        if rules.keep_bytes or rules.keep_ns:
            return []
        firsts = {host.name: first_of(host) for host in healed if has_a_vote(host) and _holds_data(host)}
        kept = self._workload.released + 1
        if len(healed) < len(self.world.hosts):  # only nodes that stay down may have had it
            kept = max(kept, min(firsts.values(), default=kept))
        begun_ns = {host.name: self._begun_ns.get((host.name, host.process), then_ns + 1) for host in healed}
        return [name for name, first in firsts.items() if first > kept and begun_ns[name] <= then_ns]


def _holds_data(host: Host) -> bool:
    return not host.core.journal.serializer.context.log.index_only  # type: ignore[union-attr]


def first_of(host: Host) -> int:
    """The first message that a node has."""
    return int(host.core.journal.serializer.context.log.segment_index.first)  # type: ignore[union-attr]


def _last_of(host: Host, file: str, least: int) -> int:
    """The furthest message that is in this file and in no later one: a repair writes a message again.

    Later files are searched only if it is after `least`.
    """
    found = _indexes_of(host, file)
    if max(found, default=0) > least:
        later = [name for name in host.disk.durable() if name.endswith(".segment") and name > file]
        found -= {index for name in later for index in _indexes_of(host, name)}
    return max(found, default=0)


def _indexes_of(host: Host, file: str) -> set[int]:
    data = host.disk.file(file)
    found = Surveyor("journal").add(parse_name(file)[1], data) if data else None
    kinds = (Kind.BATCH, Kind.META)
    return {record.index for _, record in found.records if record.kind in kinds} if found else set()
