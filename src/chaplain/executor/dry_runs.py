"""Dry runs: requests that are tried before they are ordered, on a node reserved for their writer.

A request that would fail on this node now is refused without being ordered. A dry run uses this node's own database,
after it has applied all messages that this node knows to be agreed. A request that cannot be tried soon is ordered as
usual, and its execution decides.

Invariants: every `DryRun` is answered once, within `PATIENCE_NS` plus the time of one request; a database is reserved
only while it has no other work; at most `WAITING_MAX` requests wait.
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
DRY_RUN_BYTES_MAX = 256 * 1024
"""A larger pack is not tried: all other requests of its stream would wait for it twice."""
PATIENCE_NS = 500_000_000
"""How long a request waits for a database that is busy or behind."""


class _Wait(Frozen, frozen=True):
    ticket: int
    stream: str
    values: tuple[bytes, ...]
    due_ns: int


DryRunEffect: TypeAlias = DryRunDone | TryOut


class DryRuns:
    def __init__(self, node: int, queues: Mapping[str, ApplyQueue], counts: Counter[str]) -> None:
        self._node = node
        self._queues = queues
        self._counts = counts
        self._waiting: dict[int, _Wait] = {}
        self.effects: list[DryRunEffect] = []

    def on_request(self, now_ns: int, event: DryRun) -> None:
        values = self._values(event)
        if values is None:
            return
        queue = self._queues.get(event.stream)
        if not values or queue is None or not queue.is_open or len(self._waiting) >= WAITING_MAX:
            self._skip(event.ticket)
            return
        self._waiting[event.ticket] = _Wait(event.ticket, event.stream, values, now_ns + PATIENCE_NS)
        self.run_next(now_ns, queue)

    def _values(self, event: DryRun) -> tuple[bytes, ...] | None:
        """The request's statements. Empty if it is not to be tried; None if it was refused as malformed."""
        if len(event.raw) > DRY_RUN_BYTES_MAX:
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

    def run_next(self, now_ns: int, queue: ApplyQueue) -> None:
        """Try one waiting request on this database, if the database has no other work."""
        if not self._waiting:
            return
        wait = next((wait for wait in self._waiting.values() if wait.stream == queue.stream), None)
        if wait is not None and queue.reserve():
            del self._waiting[wait.ticket]
            self.effects.append(TryOut(wait.ticket, wait.stream, wait.values, now_ns))

    def tried(self, event: Tried) -> None:
        if not event.done:
            self._skip(event.ticket)
        elif event.kind:
            self._refuse(event.ticket, event.kind, event.reason)
        else:
            self._counts["dry_runs_passed"] += 1
            self.effects.append(DryRunDone(event.ticket))

    def woken(self, now_ns: int) -> None:
        """Skip requests that waited too long or whose database has stopped."""
        for wait in list(self._waiting.values()):
            if now_ns >= wait.due_ns or not self._queues[wait.stream].is_open:
                del self._waiting[wait.ticket]
                self._skip(wait.ticket)

    def due_ns(self) -> int | None:
        return min((wait.due_ns for wait in self._waiting.values()), default=None)

    def _refuse(self, ticket: int, kind: str, reason: str) -> None:
        self._counts["dry_runs_refused"] += 1
        self.effects.append(DryRunDone(ticket, kind, f"{reason} (found by node {self._node}; it was not ordered)"))

    def _skip(self, ticket: int) -> None:
        """Let the request be ordered without a dry run."""
        self._counts["dry_runs_skipped"] += 1
        self.effects.append(DryRunDone(ticket))
