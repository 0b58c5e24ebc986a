"""The load on a journal: writers of both ways to write, and readings of every node in the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from chaplain.drill.cluster import PATIENCE_S, Access
from chaplain.drill.history import judge
from chaplain.drill.load import Blow
from chaplain.drill.violations import JOURNAL, Judged
from chaplain.drill.writers import DrillWriter
from chaplain.runtime.cluster.probe import get_status

WRITERS = 4
PACE_S = 0.01
POLL_S = 0.05


class JournalLoad:
    of = JOURNAL

    def __init__(self, access: Access) -> None:
        self._access = access
        self.writers = [
            DrillWriter(access.directory, access.stream, number, identity=access.identity, pace_s=PACE_S)
            for number in range(WRITERS)
        ]

    def start(self) -> None:
        for writer in self.writers:
            writer.start()

    def acked_since(self, since_s: float) -> int:
        return sum(writer.acked_since(since_s) for writer in self.writers)

    def first_acked(self, since_s: float) -> float | None:
        attempts = [one for writer in self.writers for one in writer.attempts.copy()]
        return min((one.acked_s for one in attempts if one.acked_s and one.invoked_s >= since_s), default=None)

    def missing(self, since_s: float, statuses: Sequence[Mapping[str, object]]) -> str:
        return ""

    def end(self) -> None:
        for writer in self.writers:
            writer.stop()
        for writer in self.writers:
            writer.end()

    def judge(self, blows: Sequence[Blow]) -> Judged:
        self._wait_until_same()
        stream = self._access.stream
        readings, unread = self._access.read(self.of, lambda client: list(client.journal(stream).read()))
        histories = [writer.attempts for writer in self.writers]
        attempts = [attempt for history in histories for attempt in history]
        acknowledged = sum(attempt.offset is not None for attempt in attempts)
        refused = sum(bool(attempt.refused) for attempt in attempts)
        counts = (acknowledged, len(attempts) - acknowledged - refused, refused)
        return Judged(self.of, *counts, (*unread, *judge(histories, readings)))

    def _wait_until_same(self) -> None:
        """Nodes that were away catch up; if they never do, their readings will differ, and that is said."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            seen = [get_status(node.http) or {} for node in self._access.nodes]
            if len({(one.get("agreed"), one.get("chain")) for one in seen}) == 1 and seen[0].get("chain"):
                return
            time.sleep(POLL_S)
