"""Integrity checks: when the rows of a database are read and compared with its tallies, and what follows.

    opened after an unclean shutdown ──┐
    a copy of it has wrong tallies ────┼──▶ CheckDatabase ──▶ intact: nothing
    a query cannot read it ────────────┤                 └──▶ damaged: RemakeDatabase, once nothing writes to it
    its executor stopped ──────────────┘

Fingerprints alone do not find damage: tallies are updated as rows change, and bit rot is no update. This module decides
when a database is checked, and that a damaged one is rebuilt. It does not know how rows are read. A rebuilt database
gets its messages from the log or from another executor's copy, like a database that is behind.

Invariants: a damaged database answers no query; a database is rebuilt at most once in a process. If it is damaged
again, the cause is the disk or a defect in the program, and rebuilding does not help.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from chaplain.core import Report
from chaplain.executor.apply_queue import ApplyPhase, ApplyQueue
from chaplain.executor.events import CheckDatabase, DatabaseChecked, DatabaseOpened, RemakeDatabase

ROWS_MAX = 5_000_000
"""A larger database is not checked at start-up: the check of this many rows takes a minute or two."""

_SETTLED = (ApplyPhase.IDLE, ApplyPhase.BUSY, ApplyPhase.STOPPED)
"""In any other phase the database is about to be replaced, or already has been."""

CheckEffect: TypeAlias = CheckDatabase | RemakeDatabase | Report


class IntegrityChecks:
    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.effects: list[CheckEffect] = []

    def opened(self, queue: ApplyQueue, event: DatabaseOpened) -> None:
        if event.damage:
            queue.damage = event.damage
            self._report(queue, event.damage)
        elif event.doubtful_rows > ROWS_MAX:
            detail: dict[str, str | int] = {"stream": queue.stream, "rows": event.doubtful_rows}
            self.effects.append(Report("database too large to be checked at a start", detail=detail))
        elif event.doubtful_rows:
            self.request_check(queue)

    def request_check(self, queue: ApplyQueue) -> None:
        """Have the database's rows checked after a suspicious event."""
        if not queue.checking and queue.phase in _SETTLED:
            queue.checking = True
            self.effects.append(CheckDatabase(queue.stream))

    def checked(self, queue: ApplyQueue, event: DatabaseChecked) -> None:
        queue.checking = False
        if event.damage and queue.phase in _SETTLED:
            self._report(queue, event.damage)
            if queue.damage:
                queue.stop(f"damaged again after it was made anew: {event.damage}")
            else:
                queue.mark_damaged(event.damage)

    def rebuild_if_damaged(self, queue: ApplyQueue) -> None:
        """Rebuild a damaged database once nothing writes to it."""
        if queue.phase is ApplyPhase.DAMAGED and not queue.in_use:
            queue.phase = ApplyPhase.OPENING
            self.effects.append(RemakeDatabase(queue.stream))

    def _report(self, queue: ApplyQueue, damage: str) -> None:
        self._counts["damaged"] += 1
        detail: dict[str, str | int] = {"stream": queue.stream, "reason": damage, "index": queue.applied}
        self.effects.append(Report("database damaged", detail=detail))
