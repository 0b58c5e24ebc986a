"""A stream's database in SQLite: one file. Each cluster message is one transaction.

    chaplain_state    one row: the position, with the tallies and the fingerprint at it
    chaplain_results  runs of outcomes, until they are read or exceed the bound
    chaplain_read     read positions, per lane

The position commits with the data, so a restarted process continues exactly after the last commit. A request that needs
care (`execute`) gets its own transaction; then the position is inside a message and counts the requests applied. The
file uses a write-ahead log that is not synced at each commit. After a machine failure it is a little behind, and the
journal, which is synced, has the rest.

Invariants: no message is applied twice or skipped; the contents do not depend on when or how often the file was opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import apsw

from chaplain.executor.events import MessageApplied, Work
from chaplain.executor.fingerprint import Tallies
from chaplain.executor.statement import OutcomeRun, Parameters, RequestOutcome, Rows, StatementError
from chaplain.runtime.databases.change_log import CHANGES, ChangeLog, quoted
from chaplain.runtime.databases.interface import DatabaseDamaged, EngineFailed
from chaplain.runtime.databases.requests import DatabaseRequest, requests_of, runs_of
from chaplain.runtime.databases.sqlite import backup
from chaplain.runtime.databases.sqlite.execute import (
    QUICK_CALLS_MAX,
    STEPS_A_CALL,
    STEPS_MAX,
    STOPS,
    NeedsCare,
    SqliteRunner,
)
from chaplain.runtime.databases.sqlite.functions import DeterministicFunctions
from chaplain.runtime.databases.sqlite.integrity import MALFORMED
from chaplain.runtime.databases.sqlite.metadata import SqliteStore
from chaplain.runtime.databases.sqlite.queries import SqliteReaders
from chaplain.runtime.databases.sqlite.row_tracker import SqliteLimitExceeded, SqliteRowTracker
from chaplain.runtime.databases.sqlite.statement_guard import Guard

SUFFIX = ".sqlite"
_SPARED = STEPS_A_CALL * (QUICK_CALLS_MAX + 2)
"""Executors may differ in whether they run a request of fewer steps carefully, so such a request is not charged."""


def file_name(stream: str) -> str:
    return quoted(stream) + SUFFIX


class SqliteDatabase:
    def __init__(self, folder: Path, stream: str, rows_bytes: int = 0) -> None:
        self.stream = stream
        self._rows_bytes = rows_bytes
        self.path = folder / file_name(stream)
        self.damage = ""
        """Why the database was rebuilt when it was opened."""
        self._closed_well = not backup.beside(self.path, "-wal").exists()
        try:
            self._open(folder)
        except DatabaseDamaged as error:
            self.damage = str(error)
            backup.rebuild(folder, self.path, stream)
            self._open(folder)
        if self._changes.is_behind(self._store.state.changes) or self.index < self.kept:
            # Rebuild from the kept copy, whose row changes were synced with it, or from the start of the log. The copy
            # was synced, too, and the log may be dropped up to it: a database that is behind it cannot continue.
            self._connection.close()
            self._changes.close()
            backup.remove(self.path)
            backup.restore(self.path, stream)
            self._open(folder)
        self._readers = SqliteReaders(self.path)

    def _open(self, folder: Path) -> None:
        self._changes = ChangeLog(folder / CHANGES / quoted(self.stream), self.stream, self._rows_bytes)
        self._connection = apsw.Connection(str(self.path), statementcachesize=512)
        try:
            self._store = SqliteStore(self._connection, self.stream)
            self._functions = DeterministicFunctions(self._connection)
            state = self._store.state
            self._tracker = SqliteRowTracker(self._connection, Tallies(state.tallies))
            self._guard = Guard(self._connection, lambda: self._tracker.names, writes=True)
            self._runner = SqliteRunner(self._connection, self._guard, self._tracker, self._functions)
            self._runner.free(self._tracker.open)
            if self._tracker.fingerprint() != state.fingerprint:
                raise DatabaseDamaged("its schema and tallies do not add up to its fingerprint")
        except (apsw.Error, EngineFailed, SqliteLimitExceeded, UnicodeDecodeError) as error:
            self._connection.close()
            self._changes.close()
            if isinstance(error, EngineFailed):
                raise
            kind = (
                DatabaseDamaged
                if isinstance(error, (*MALFORMED, SqliteLimitExceeded, UnicodeDecodeError))
                else EngineFailed
            )
            raise kind(f"{self.path}: {type(error).__name__}: {error}") from error
        self._budget: dict[bytes, int] = {}
        self._mark = self._tracker.mark()

    @property
    def index(self) -> int:
        """The last message that is completely applied."""
        return self._store.state.applied

    @property
    def fingerprint(self) -> bytes:
        return self._store.state.fingerprint

    # Applying.

    def apply(self, work: Work) -> MessageApplied:
        if work.index <= self.index:
            return MessageApplied(work.index, self.fingerprint)
        try:
            return self._apply(work, self._store.state.done(work.index))
        except STOPS as error:
            raise EngineFailed(f"SQLite cannot go on: {type(error).__name__}: {error}") from error

    def _apply(self, work: Work, done: int) -> MessageApplied:
        requests = list(requests_of(work))
        self._budget = dict(self._store.state.budget) if done else {}
        self._runner.begin_message()
        self._begin()
        outcomes: list[RequestOutcome] = []
        run_quickly = self._runner.run_quickly
        for request in requests[done:]:
            try:
                self._functions.set(work.timestamp_ns, work.hash, request.offset)
                outcomes.append(run_quickly(request))
            except NeedsCare:
                done = self._isolate(work, requests, done, request, outcomes)
                outcomes = []
        self._end(work, requests, done, outcomes, whole=True)
        return MessageApplied(work.index, self.fingerprint, len(requests), self._store.take_failures())

    def _quickly(self, work: Work, request: DatabaseRequest) -> RequestOutcome:
        self._functions.set(work.timestamp_ns, work.hash, request.offset)
        return self._runner.run_quickly(request)

    def _isolate(
        self,
        work: Work,
        requests: list[DatabaseRequest],
        done: int,
        request: DatabaseRequest,
        before: list[RequestOutcome],
    ) -> int:
        """Commit the requests before this one, then run it alone and commit it. Return how many requests are
        applied.
        """
        self._roll_back()
        self._begin()
        again = [self._quickly(work, one) for one in requests[done : done + len(before)]]
        assert again == before, "a request has two outcomes"
        self._end(work, requests, done, again, whole=False)
        done += len(again)
        self._begin()
        outcome = self._carefully(work, request)
        if outcome.error is not None:
            self._roll_back()
            self._begin()
        self._end(work, requests, done, [outcome], whole=False)
        self._begin()
        return done + 1

    def _carefully(self, work: Work, request: DatabaseRequest) -> RequestOutcome:
        self._functions.set(work.timestamp_ns, work.hash, request.offset)
        left = self._budget.get(request.acl, STEPS_MAX)
        outcome, steps = self._runner.run_carefully(request, left)
        if steps >= _SPARED:
            self._budget[request.acl] = max(0, left - steps)
        return outcome

    def rehearse(self, values: Sequence[bytes], timestamp_ns: int) -> StatementError | None:
        """Run the request carefully, alone, because it may fail in a way that rolls back the whole transaction."""
        request = DatabaseRequest(0, 0, 0, values)
        self._runner.begin_message()
        self._begin()
        try:
            self._functions.set(timestamp_ns, b"", 0)
            outcome, _ = self._runner.run_carefully(request, STEPS_MAX)
        finally:
            self._roll_back()
        return None if self._functions.used_random else outcome.error

    # Transactions.

    def _begin(self) -> None:
        self._runner.run_own("begin immediate")
        self._mark = self._tracker.mark()

    def _roll_back(self) -> None:
        """Roll back, unless SQLite has already done so."""
        if self._connection.in_transaction:
            self._runner.run_own("rollback")
        self._tracker.restore(self._mark)

    def _end(
        self, work: Work, requests: list[DatabaseRequest], done: int, outcomes: list[RequestOutcome], *, whole: bool
    ) -> None:
        changes = self._tracker.take_pairs()
        position = (work.index, done + len(outcomes), whole)
        runs = list(runs_of(work, requests[done : done + len(outcomes)], outcomes))
        first = self._store.state.changes
        if changes:
            self._changes.write(first, changes, work.timestamp_ns)
        self._runner.free(self._write, position, runs, first + len(changes))
        self._runner.run_own("commit")
        self._store.committed()

    def _write(self, position: tuple[int, int, bool], runs: list[tuple[bytes, OutcomeRun]], changes: int) -> None:
        self._store.put_results(runs)
        budget = {} if position[2] else self._budget
        tracker = self._tracker
        self._store.put_state(position, tracker.tallies().values(), tracker.fingerprint(), budget, changes)

    # Queries and results.

    def query(self, sql: str, parameters: Parameters, stopped: Callable[[], bool] = bool) -> Rows:
        return self._readers.query(sql, parameters, stopped)

    def results(self, acl: bytes, client_id: int, first_id: int, last_id: int) -> list[bytes]:
        return self._readers.results(acl, client_id, first_id, last_id)

    def clear(self, acl: bytes, through: Sequence[tuple[int, int]]) -> None:
        try:
            self._runner.free(self._store.clear, acl, through)
        except STOPS as error:
            raise EngineFailed(f"SQLite cannot go on: {type(error).__name__}: {error}") from error

    @property
    def read(self) -> tuple[tuple[bytes, int, int], ...]:
        return self._store.read

    @property
    def kept(self) -> int:
        """The last message in the kept copy."""
        return backup.index_of(backup.beside(self.path, backup.KEPT), self.stream)

    @property
    def doubtful_rows(self) -> int:
        """The number of rows if the database was not closed properly; else 0."""
        return 0 if self._closed_well else sum(tally.count for tally in self._store.state.tallies.values())

    def sync_changes(self) -> None:
        """Sync the log of row changes. Takes turns with `apply`."""
        self._changes.sync()

    def close(self) -> None:
        self._readers.close()
        self._functions.close()
        self._connection.close()
        self._changes.close()
