"""Databases whose rows may not be what their statements left: when they are read again, and what follows.

    opened, and nobody had closed it ──┐
    a copy of it does not add up ──────┼──▶ CheckDatabase ──▶ whole: nothing
    a reader cannot read it ───────────┤                 └──▶ damaged: RemakeDatabase, once nothing is applied to it
    its executor stopped ──────────────┘

Fingerprints alone find no damage: tallies are carried forward as rows change, and a row that rots does not change.
Decides when a database is read again, and that a damaged one is made anew. Refuses to know how it is read. What is made
anew gets its messages from the log, or another executor's copy, like one that is behind.

Invariants: what is damaged answers no question; a database is made anew once in a node's life: one that is damaged
again has a disk, or a fault of ours, that making it anew does not mend.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from chaplain.core import Report
from chaplain.executor.apply_queue import ApplyPhase, ApplyQueue
from chaplain.executor.events import CheckDatabase, DatabaseChecked, DatabaseOpened, RemakeDatabase

ROWS_MAX = 5_000_000
"""A larger database is not read again because of a start: a minute or two beside everything else is enough."""

_SETTLED = (ApplyPhase.IDLE, ApplyPhase.BUSY, ApplyPhase.STOPPED)
"""In all others something else is about to take the database's place, or already has."""

CheckEffect: TypeAlias = CheckDatabase | RemakeDatabase | Report


class IntegrityChecks:
    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.effects: list[CheckEffect] = []

    def opened(self, feed: ApplyQueue, event: DatabaseOpened) -> None:
        if event.damage:
            feed.damage = event.damage
            self._tell(feed, event.damage)
        elif event.doubtful_rows > ROWS_MAX:
            detail: dict[str, str | int] = {"stream": feed.stream, "rows": event.doubtful_rows}
            self.effects.append(Report("database too large to be checked at a start", detail=detail))
        elif event.doubtful_rows:
            self.doubt(feed)

    def doubt(self, feed: ApplyQueue) -> None:
        """Something is strange: is it the rows?"""
        if not feed.checking and feed.phase in _SETTLED:
            feed.checking = True
            self.effects.append(CheckDatabase(feed.stream))

    def checked(self, feed: ApplyQueue, event: DatabaseChecked) -> None:
        feed.checking = False
        if event.damage and feed.phase in _SETTLED:
            self._tell(feed, event.damage)
            if feed.damage:
                feed.stop(f"damaged again after it was made anew: {event.damage}")
            else:
                feed.spoil(event.damage)

    def pump(self, feed: ApplyQueue) -> None:
        """Make it anew, if it is damaged and nobody writes to it any more."""
        if feed.phase is ApplyPhase.DAMAGED and not feed.lent:
            feed.phase = ApplyPhase.OPENING
            self.effects.append(RemakeDatabase(feed.stream))

    def _tell(self, feed: ApplyQueue, damage: str) -> None:
        self._counts["damaged"] += 1
        detail: dict[str, str | int] = {"stream": feed.stream, "reason": damage, "index": feed.applied}
        self.effects.append(Report("database damaged", detail=detail))
