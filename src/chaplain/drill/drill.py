"""The drill: load, blows for as long as was asked, then calm, and a verdict.

Decides which blow comes next and when it was survived. A blow counts as survived when writes that began after it are
acknowledged; a cluster that does not get there in time is stuck, which is a break, too.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from chaplain.client.journal_results import Message
from chaplain.config import load_cluster
from chaplain.core import Frozen
from chaplain.drill import blows
from chaplain.drill.history import Break, judge
from chaplain.drill.writers import PATIENCE_S, Writer, read_all
from chaplain.errors import ChaplainError
from chaplain.runtime.inquire import get_status
from chaplain.runtime.local import describe

WRITERS = 4
PROGRESS = 20
"""Writes begun after a blow that must be acknowledged before the next one."""
PAUSE_S = (1.0, 5.0)
DOWN_S = (0.0, 1.0)
READABLE_S = 30.0
POLL_S = 0.02
Tell = Callable[[str], None]


class Verdict(Frozen, frozen=True):
    blows: dict[str, int]
    acknowledged: int
    unknown: int
    refused: int
    gaps_s: tuple[float, ...]
    """From each blow to the next acknowledgement of a write begun after it."""
    breaks: tuple[Break, ...]
    left_out: tuple[str, ...]


class Drill:
    def __init__(self, directory: Path, seconds: float, chance: random.Random, tell: Tell) -> None:
        self._directory = directory
        self._until_s = time.monotonic() + seconds
        self._chance = chance
        self._tell = tell
        self._nodes = load_cluster(directory).nodes
        self._stream = f"drill-{chance.randrange(16**8):08x}"
        """A stream of its own: nobody else's messages are touched."""
        self._blows: Counter[str] = Counter()
        self._gaps_s: list[float] = []
        self._found: list[Break] = []
        self._writers: list[Writer] = []

    def run(self) -> Verdict:
        self._check_whole()
        self._writers = [Writer(self._directory, self._stream, number) for number in range(WRITERS)]
        for writer in self._writers:
            writer.start()
        try:
            self._survived("the start", time.monotonic())
            while time.monotonic() < self._until_s and not self._found:
                self._strike()
        finally:
            blows.restart(self._directory)
            histories = [writer.end() for writer in self._writers]
        self._tell("the blows are over: reading every node")
        self._wait_until_same()
        readings = {node.id: reading for node in self._nodes if (reading := self._read(node.id)) is not None}
        attempts = [attempt for history in histories for attempt in history]
        acknowledged = sum(attempt.offset is not None for attempt in attempts)
        refused = sum(bool(attempt.refused) for attempt in attempts)
        return Verdict(
            dict(self._blows),
            acknowledged,
            len(attempts) - acknowledged - refused,
            refused,
            tuple(self._gaps_s),
            (*self._found, *judge(histories, readings)),
            () if blows.can_cut() else (blows.CUT_MISSING,),
        )

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
        (deed,) = self._chance.choices(list(deeds), list(deeds.values()))
        victim = self._master() if deed == "kill the master" else self._chance.choice(self._nodes).id
        self._blows[deed] += 1
        self._tell(f"{deed}" + ("" if deed == "kill all" else f": node {victim}"))
        struck_s = time.monotonic()
        if deed.startswith("kill"):
            self._kill([node.id for node in self._nodes] if deed == "kill all" else [victim], deed, struck_s)
        elif deed == "pause one":
            with blows.paused(self._directory, victim):
                self._last(PAUSE_S)
        else:
            with blows.cut(next(node.endpoint for node in self._nodes if node.id == victim)):
                self._last(PAUSE_S)
        self._survived(deed, struck_s)

    def _kill(self, victims: list[int], deed: str, struck_s: float) -> None:
        blows.kill(self._directory, victims)
        majority_lives = 2 * (len(self._nodes) - len(victims)) > len(self._nodes)
        if majority_lives:
            self._survived(deed, struck_s)  # the others go on alone
        self._last(DOWN_S)
        blows.restart(self._directory)

    def _last(self, between_s: tuple[float, float]) -> None:
        time.sleep(self._chance.uniform(*between_s))

    def _master(self) -> int:
        master = describe(self._directory)["master"]
        return master if isinstance(master, int) else self._chance.choice(self._nodes).id

    def _survived(self, deed: str, since_s: float) -> None:
        """Wait until the writers get on."""
        began_s = time.monotonic()
        while self._acked_since(began_s) < PROGRESS:
            if time.monotonic() - began_s > PATIENCE_S:
                self._found.append(
                    Break("stuck", None, f"no write was acknowledged for {PATIENCE_S:g} s after: {deed}")
                )
                return
            time.sleep(POLL_S)
        done = [one.acked_s for writer in self._writers for one in writer.attempts.copy() if one.invoked_s >= since_s]
        self._gaps_s.append(min(acked_s for acked_s in done if acked_s) - since_s)

    def _acked_since(self, since_s: float) -> int:
        return sum(writer.acked_since(since_s) for writer in self._writers)

    def _read(self, node: int) -> list[Message] | None:
        """A node may still be repairing its log; one that cannot be read in the end has broken its promise."""
        end_s = time.monotonic() + READABLE_S
        while True:
            try:
                return read_all(self._directory, node, self._stream)
            except ChaplainError as error:
                if time.monotonic() > end_s:
                    self._found.append(Break("unreadable", None, f"node {node}: {error}"))
                    return None
                time.sleep(POLL_S)

    def _wait_until_same(self) -> None:
        """Nodes that were away catch up; if they never do, their readings will differ, and that is said."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            seen = [get_status(node.http) or {} for node in self._nodes]
            if len({(one.get("agreed"), one.get("chain")) for one in seen}) == 1 and seen[0].get("chain"):
                return
            time.sleep(POLL_S)
