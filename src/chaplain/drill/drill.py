"""The drill: load on every kind of stream, blows for as long as was asked, then calm, and a verdict.

Decides which blow comes next and when it was survived. A blow counts as survived when what was begun after it is
acknowledged, for every kind, and everybody who was away is back; a cluster that does not get there in time is stuck,
which is a break, too.
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
from chaplain.drill import faults as blows
from chaplain.drill.cluster import Access
from chaplain.drill.entry_loads import GraphLoad, SequenceLoad
from chaplain.drill.journal_load import JournalLoad
from chaplain.drill.load import Blow, Load
from chaplain.drill.pool_load import PoolLoad
from chaplain.drill.violations import GRAPH, JOURNAL, KINDS, POOL, SEQUENCE, BrokenPromise, Judged
from chaplain.errors import ChaplainError
from chaplain.runtime.cluster.probe import get_status
from chaplain.runtime.cluster.status import describe

PROGRESS = {JOURNAL: 20, GRAPH: 5, SEQUENCE: 5, POOL: 5}
"""What begins after a blow and must be acknowledged before the next one."""
PAUSE_S = (1.0, 5.0)
DOWN_S = (0.0, 1.0)
POLL_S = 0.02
SURVIVE_S = 120.0
"""A cluster that has not recovered from a blow by then is stuck."""
SEQUENCE_NODES_MIN = 3
TOO_FEW = "the sequence: with fewer than three nodes every kill takes its majority, and it lives in memory"
LOADS: dict[str, Callable[[Access], Load]] = {
    JOURNAL: JournalLoad,
    GRAPH: GraphLoad,
    SEQUENCE: SequenceLoad,
    POOL: PoolLoad,
}
Tell = Callable[[str], None]


class DrillVerdict(Frozen, frozen=True):
    blows: dict[str, int]
    kinds: tuple[Judged, ...]
    gaps_s: tuple[float, ...]
    """From each blow to the next acknowledgement of something begun after it, for the slowest kind of stream."""
    breaks: tuple[BrokenPromise, ...]
    left_out: tuple[str, ...]

    @property
    def acknowledged(self) -> int:
        return sum(judged.acknowledged for judged in self.kinds)

    @property
    def unknown(self) -> int:
        return sum(judged.unknown for judged in self.kinds)

    @property
    def refused(self) -> int:
        return sum(judged.refused for judged in self.kinds)


class Drill:
    def __init__(
        self,
        directory: Path,
        seconds: float,
        chance: random.Random,
        tell: Tell,
        *,
        kinds: Sequence[str] = KINDS,
        only: int | None = None,
    ) -> None:
        self._directory = directory
        self._seconds = seconds
        self._until_s = 0.0
        self._chance = chance
        self._tell = tell
        # Streams of its own: nobody else's messages are touched, nor those of a drill with the same blows before.
        self._access = Access(directory, f"drill-{secrets.token_hex(4)}")
        self._nodes = self._access.nodes
        self._struck = [node.id for node in choose_nodes(self._nodes, only)]
        self._left_out = [] if blows.can_cut() else [blows.CUT_MISSING]
        if SEQUENCE in kinds and len(self._nodes) < SEQUENCE_NODES_MIN:
            self._left_out.append(TOO_FEW)
            kinds = [kind for kind in kinds if kind != SEQUENCE]
        self.loads = {kind: LOADS[kind](self._access) for kind in KINDS if kind in kinds}
        self._counts: Counter[str] = Counter()
        self._dealt: list[Blow] = []
        self._gaps_s: list[float] = []
        self._found: list[BrokenPromise] = []

    def run(self) -> DrillVerdict:
        self._check_whole()
        with self._access.granted():
            for load in self.loads.values():
                load.start()
            try:
                self._recovered("the start", time.monotonic())
                self._until_s = time.monotonic() + self._seconds
                while time.monotonic() < self._until_s and not self._found:
                    self._strike()
            finally:
                blows.restart(self._directory)
                for load in self.loads.values():
                    load.end()
            self._tell("the blows are over: reading every node")
            judged = tuple(load.judge(self._dealt) for load in self.loads.values())
        left_out = [one for kind in judged for one in kind.left_out]
        breaks = [one for kind in judged for one in kind.breaks]
        every = (tuple(self._gaps_s), (*self._found, *breaks), (*self._left_out, *left_out))
        return DrillVerdict(dict(self._counts), judged, *every)

    def _check_whole(self) -> None:
        down = [node.id for node in self._nodes if not node.http or get_status(node.http) is None]
        if down:
            names = ", ".join(map(str, down))
            raise ChaplainError(f"node {names} is not up on this machine: start all with `chaplain cluster up` first")

    # Blows.

    def _strike(self) -> None:
        deeds = {"kill the master": 30, "kill one": 25, "kill all": 10, "pause one": 20}
        if blows.can_cut():
            deeds["cut one off"] = 15
        if len(self._struck) < len(self._nodes):
            del deeds["kill the master"], deeds["kill all"]
        (deed,) = self._chance.choices(list(deeds), list(deeds.values()))
        victim = self._master() if deed == "kill the master" else self._chance.choice(self._struck)
        self._counts[deed] += 1
        self._tell(f"{deed}" + ("" if deed == "kill all" else f": node {victim}"))
        struck_s = time.monotonic()
        forgets = False
        if deed.startswith("kill"):
            victims = [node.id for node in self._nodes] if deed == "kill all" else [victim]
            forgets = self._kill(victims, deed, struck_s)
        elif deed == "pause one":
            with blows.paused(self._directory, victim):
                self._last(PAUSE_S)
        else:
            with blows.cut(next(node.endpoint for node in self._nodes if node.id == victim)):
                self._last(PAUSE_S)
        over_s = time.monotonic()
        self._recovered(deed, struck_s)
        self._dealt.append(Blow(struck_s, over_s, time.monotonic(), forgets))

    def _kill(self, victims: list[int], deed: str, struck_s: float) -> bool:
        """Whether what was in memory alone is gone."""
        blows.kill(self._directory, victims)
        majority_lives = 2 * (len(self._nodes) - len(victims)) > len(self._nodes)
        if majority_lives:
            self._progressed(deed)  # the others go on alone
        self._last(DOWN_S)
        blows.restart(self._directory)
        return not majority_lives

    def _last(self, between_s: tuple[float, float]) -> None:
        time.sleep(self._chance.uniform(*between_s))

    def _master(self) -> int:
        master = describe(self._directory)["master"]
        return master if isinstance(master, int) else self._chance.choice(self._nodes).id

    # Until it is survived.

    def _recovered(self, deed: str, since_s: float) -> None:
        """The clients get on, and whoever was away is back."""
        began_s = time.monotonic()
        self._progressed(deed)
        self._wait(deed, lambda load: load.missing(began_s, [get_status(node.http) or {} for node in self._nodes]))
        firsts = [load.first_acked(since_s) for load in self.loads.values()]
        self._gaps_s.append(max((first_s - since_s for first_s in firsts if first_s is not None), default=0.0))

    def _progressed(self, deed: str) -> None:
        began_s = time.monotonic()
        self._wait(deed, lambda load: self._behind(load, began_s))

    def _behind(self, load: Load, since_s: float) -> str:
        return "" if load.acked_since(since_s) >= PROGRESS[load.of] else "too little was acknowledged"

    def _wait(self, deed: str, lacks: Callable[[Load], str]) -> None:
        end_s = time.monotonic() + SURVIVE_S
        for load in self.loads.values():
            while (lack := lacks(load)) and not any(found.of == load.of for found in self._found):
                if time.monotonic() > end_s:
                    what = f"{SURVIVE_S:g} s after: {deed}: {lack}"
                    self._found.append(BrokenPromise("stuck", None, what, load.of))
                time.sleep(POLL_S)
