"""The drill: runs clients on every kind of stream, injects one fault after the other, and then checks all guarantees.

Decides which fault comes next, and when the cluster has recovered from it. The cluster has recovered when, for every
kind of stream, operations that began after the fault are acknowledged and all nodes take part again. A cluster that
does not recover within `RECOVER_S` is stuck, which is a break, too. How faults are injected is in `faults`, what the
clients do in the loads, and what counts as a break in the `*_history` modules.
"""

from __future__ import annotations

import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from chaplain.config import choose_nodes
from chaplain.core import Frozen
from chaplain.drill import faults
from chaplain.drill.cluster import DrillCluster
from chaplain.drill.entry_loads import GraphLoad, SequenceLoad
from chaplain.drill.faults import Fault
from chaplain.drill.journal_load import JournalLoad
from chaplain.drill.load import Load
from chaplain.drill.pool_load import PoolLoad
from chaplain.drill.violations import GRAPH, JOURNAL, KINDS, POOL, SEQUENCE, BrokenPromise, KindVerdict
from chaplain.errors import ChaplainError
from chaplain.runtime.cluster.probe import get_status
from chaplain.runtime.cluster.status import describe

PROGRESS = {JOURNAL: 20, GRAPH: 5, SEQUENCE: 5, POOL: 5}
"""By kind of stream: the number of operations that must begin after a fault and be acknowledged before the next one."""
PAUSE_S = (1.0, 5.0)
"""Shortest and longest duration of a pause or a cut."""
DOWN_S = (0.0, 1.0)
"""Shortest and longest time from the progress of the other nodes to the restart of a killed node."""
POLL_S = 0.02
RECOVER_S = 120.0
"""A cluster that has not recovered from a fault after this time is stuck."""
SEQUENCE_NODES_MIN = 3
TOO_FEW = "the sequence: with fewer than three nodes every kill takes its majority, and it lives in memory"
LOADS: dict[str, Callable[[DrillCluster], Load]] = {
    JOURNAL: JournalLoad,
    GRAPH: GraphLoad,
    SEQUENCE: SequenceLoad,
    POOL: PoolLoad,
}


class DrillVerdict(Frozen, frozen=True):
    """The result of a drill."""

    faults: dict[str, int]
    """How often each kind of fault was injected."""
    kinds: tuple[KindVerdict, ...]
    gaps_s: tuple[float, ...]
    """For each fault, the time to the first acknowledgement of an operation that began after it, for the slowest kind
    of stream."""
    breaks: tuple[BrokenPromise, ...]
    left_out: tuple[str, ...]
    """Checks and faults that could not be made, and why."""

    @property
    def acknowledged(self) -> int:
        return sum(kind.acknowledged for kind in self.kinds)

    @property
    def unknown(self) -> int:
        return sum(kind.unknown for kind in self.kinds)

    @property
    def refused(self) -> int:
        return sum(kind.refused for kind in self.kinds)


class Drill:
    """One drill on a cluster whose nodes run on this machine. `only` restricts faults to one node."""

    def __init__(
        self,
        directory: Path,
        seconds: float,
        chance: random.Random,
        progress: Callable[[str], None],
        *,
        kinds: Sequence[str] = KINDS,
        only: int | None = None,
    ) -> None:
        self._directory = directory
        self._seconds = seconds
        self._until_s = 0.0
        self._chance = chance
        self._progress = progress
        # The stream name is random even with a seed: it must differ from those of other users and of earlier drills.
        self._cluster = DrillCluster(directory, f"drill-{secrets.token_hex(4)}")
        self._nodes = self._cluster.nodes
        self._targets = [node.id for node in choose_nodes(self._nodes, only)]
        self._left_out = [] if faults.can_cut() else [faults.CUT_MISSING]
        if SEQUENCE in kinds and len(self._nodes) < SEQUENCE_NODES_MIN:
            self._left_out.append(TOO_FEW)
            kinds = [kind for kind in kinds if kind != SEQUENCE]
        self.loads = {kind: LOADS[kind](self._cluster) for kind in KINDS if kind in kinds}
        self._counts: Counter[str] = Counter()
        self._injected: list[Fault] = []
        self._gaps_s: list[float] = []
        self._found: list[BrokenPromise] = []

    def run(self) -> DrillVerdict:
        """Run the drill. It stops injecting faults early if the cluster is stuck."""
        self._check_all_up()
        with self._cluster.registered_client():
            for load in self.loads.values():
                load.start()
            try:
                self._wait_until_recovered("the start", time.monotonic())
                self._until_s = time.monotonic() + self._seconds
                while time.monotonic() < self._until_s and not self._found:
                    self._inject_fault()
            finally:
                faults.restart(self._directory)
                for load in self.loads.values():
                    load.end()
            self._progress("no more faults: reading every node")
            kinds = tuple(load.judge(self._injected) for load in self.loads.values())
        left_out = [one for kind in kinds for one in kind.left_out]
        breaks = [one for kind in kinds for one in kind.breaks]
        everything = (tuple(self._gaps_s), (*self._found, *breaks), (*self._left_out, *left_out))
        return DrillVerdict(dict(self._counts), kinds, *everything)

    def _check_all_up(self) -> None:
        down = [node.id for node in self._nodes if not node.http or get_status(node.http) is None]
        if down:
            names = ", ".join(map(str, down))
            raise ChaplainError(f"node {names} is not up on this machine: start all with `chaplain cluster up` first")

    # Faults.

    def _inject_fault(self) -> None:
        """Choose a fault by weight, inject it, undo it, and wait until the cluster has recovered."""
        weights = {"kill the master": 30, "kill one": 25, "kill all": 10, "pause one": 20}
        if faults.can_cut():
            weights["cut one off"] = 15
        if len(self._targets) < len(self._nodes):
            del weights["kill the master"], weights["kill all"]
        (name,) = self._chance.choices(list(weights), list(weights.values()))
        target = self._master() if name == "kill the master" else self._chance.choice(self._targets)
        self._counts[name] += 1
        self._progress(f"{name}" + ("" if name == "kill all" else f": node {target}"))
        began_s = time.monotonic()
        memory_lost = False
        if name.startswith("kill"):
            targets = [node.id for node in self._nodes] if name == "kill all" else [target]
            memory_lost = self._kill(targets, name)
        elif name == "pause one":
            with faults.paused(self._directory, target):
                self._sleep_between(PAUSE_S)
        else:
            with faults.cut(next(node.endpoint for node in self._nodes if node.id == target)):
                self._sleep_between(PAUSE_S)
        over_s = time.monotonic()
        self._wait_until_recovered(name, began_s)
        self._injected.append(Fault(began_s, over_s, time.monotonic(), memory_lost))

    def _kill(self, targets: list[int], name: str) -> bool:
        """Kill and restart the nodes. Return whether state that was only in memory is lost."""
        faults.kill(self._directory, targets)
        majority_lives = 2 * (len(self._nodes) - len(targets)) > len(self._nodes)
        if majority_lives:
            self._wait_for_progress(name)  # the other nodes must make progress without the killed one
        self._sleep_between(DOWN_S)
        faults.restart(self._directory)
        return not majority_lives

    def _sleep_between(self, bounds_s: tuple[float, float]) -> None:
        time.sleep(self._chance.uniform(*bounds_s))

    def _master(self) -> int:
        master = describe(self._directory)["master"]
        return master if isinstance(master, int) else self._chance.choice(self._nodes).id

    # Recovery.

    def _wait_until_recovered(self, fault: str, since_s: float) -> None:
        """Wait until the clients make progress and all nodes take part again; record the gap since the fault."""
        began_s = time.monotonic()
        self._wait_for_progress(fault)
        self._wait(fault, lambda load: load.missing(began_s, [get_status(node.http) or {} for node in self._nodes]))
        firsts = [load.first_acked(since_s) for load in self.loads.values()]
        self._gaps_s.append(max((first_s - since_s for first_s in firsts if first_s is not None), default=0.0))

    def _wait_for_progress(self, fault: str) -> None:
        began_s = time.monotonic()
        self._wait(fault, lambda load: self._missing_progress(load, began_s))

    def _missing_progress(self, load: Load, since_s: float) -> str:
        return "" if load.acked_since(since_s) >= PROGRESS[load.stream_kind] else "too little was acknowledged"

    def _wait(self, fault: str, missing: Callable[[Load], str]) -> None:
        """Wait until nothing is missing for any load. After `RECOVER_S`, record the cluster as stuck."""
        end_s = time.monotonic() + RECOVER_S
        for load in self.loads.values():
            kind = load.stream_kind
            while (lack := missing(load)) and not any(found.stream_kind == kind for found in self._found):
                if time.monotonic() > end_s:
                    what = f"{RECOVER_S:g} s after: {fault}: {lack}"
                    self._found.append(BrokenPromise("stuck", None, what, kind))
                time.sleep(POLL_S)
