"""Requests that are tried out before they are ordered, on a node that is reserved for their writer.

A courtesy: whoever would fail here and now is told so without an order. A request is tried out on this node's own
database while that has done everything that was agreed, so far as this node knows; what cannot be tried out soon goes
its way as always, and its execution decides.

Invariants: every `Rehearse` is answered once, within `PATIENCE_NS` and the time that one request may take; a database
is lent only while nothing else is to be done with it; at most `WAITING_MAX` wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.executor.apply_queue import ApplyQueue
from chaplain.executor.events import Tried, TryOut
from chaplain.executor.statement import SQL_TYPE, decode_statement
from chaplain.journal.events import DryRun, DryRunDone
from chaplain.segment.pack import decode_pack

WAITING_MAX = 64
REHEARSED_BYTES_MAX = 256 * 1024
"""A larger pack is not tried out: everything else of its stream would wait for it twice."""
PATIENCE_NS = 500_000_000
"""So long a request waits for a database that is busy or behind."""


class _Wait(Frozen, frozen=True):
    ticket: int
    stream: str
    values: tuple[bytes, ...]
    due_ns: int


RehearsalEffect: TypeAlias = DryRunDone | TryOut


class Rehearsals:
    def __init__(self, node: int, feeds: Mapping[str, ApplyQueue], counts: Counter[str]) -> None:
        self._node = node
        self._feeds = feeds
        self._counts = counts
        self._waits: dict[int, _Wait] = {}
        self.effects: list[RehearsalEffect] = []

    def wanted(self, now_ns: int, event: DryRun) -> None:
        values = self._values(event)
        if values is None:
            return
        feed = self._feeds.get(event.stream)
        if not values or feed is None or not feed.is_open or len(self._waits) >= WAITING_MAX:
            self._pass_over(event.ticket)
            return
        self._waits[event.ticket] = _Wait(event.ticket, event.stream, values, now_ns + PATIENCE_NS)
        self.pump(now_ns, feed)

    def _values(self, event: DryRun) -> tuple[bytes, ...] | None:
        """Its statements; none if it is not to be tried out; None if no executor would take it."""
        if len(event.raw) > REHEARSED_BYTES_MAX:
            return ()
        try:
            pack = decode_pack(event.raw)
            values = pack.values if pack.message_type == SQL_TYPE else ()
            for value in values:
                decode_statement(value)
        except Malformed as wrong:
            self._refuse(event.ticket, "refused", str(wrong))
            return None
        return values

    def pump(self, now_ns: int, feed: ApplyQueue) -> None:
        """Try out one that waits for this database, if that has nothing else to do."""
        if not self._waits:
            return
        wait = next((wait for wait in self._waits.values() if wait.stream == feed.stream), None)
        if wait is not None and feed.lend():
            del self._waits[wait.ticket]
            self.effects.append(TryOut(wait.ticket, wait.stream, wait.values, now_ns))

    def tried(self, event: Tried) -> None:
        if not event.done:
            self._pass_over(event.ticket)
        elif event.kind:
            self._refuse(event.ticket, event.kind, event.reason)
        else:
            self._counts["rehearsals_passed"] += 1
            self.effects.append(DryRunDone(event.ticket))

    def woken(self, now_ns: int) -> None:
        """Let go of those that waited long enough, and of those whose database has stopped."""
        for wait in list(self._waits.values()):
            if now_ns >= wait.due_ns or not self._feeds[wait.stream].is_open:
                del self._waits[wait.ticket]
                self._pass_over(wait.ticket)

    def due_ns(self) -> int | None:
        return min((wait.due_ns for wait in self._waits.values()), default=None)

    def _refuse(self, ticket: int, kind: str, reason: str) -> None:
        self._counts["rehearsals_refused"] += 1
        self.effects.append(DryRunDone(ticket, kind, f"{reason} (found by node {self._node}; it was not ordered)"))

    def _pass_over(self, ticket: int) -> None:
        self._counts["rehearsals_passed_over"] += 1
        self.effects.append(DryRunDone(ticket))
