"""Runs one request on SQLite: its statements, within bounds that are the same on every node.

There are two ways. *Quick*: statements that cannot change the schema run from the statement cache, together with other
requests in one transaction. *Careful*: the request runs alone in its own transaction, compiled anew. SQLite counts
steps from the compilation on, so only then does the step bound fall on the same step on every executor. Some failures
also roll back the whole transaction. A quick request that turns out to need care is stopped (`NeedsCare`) and run again
carefully.

Invariant: both ways give a request the same outcome and leave the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn, TypeAlias, TypeVar

import apsw

from chaplain.errors import Malformed
from chaplain.executor.statement import (
    RequestOutcome,
    Statement,
    StatementError,
    StatementResult,
    Value,
    decode_statement,
)
from chaplain.runtime.databases.interface import EngineFailed
from chaplain.runtime.databases.requests import DatabaseRequest
from chaplain.runtime.databases.savepoints import SavepointError, Savepoints, command_of
from chaplain.runtime.databases.sqlite.functions import DeterministicFunctions, LocalTimeUsed
from chaplain.runtime.databases.sqlite.row_tracker import SqliteLimitExceeded, SqliteRowTracker
from chaplain.runtime.databases.sqlite.statement_guard import QUICK, SLOW, Guard, first_word

T = TypeVar("T")
Table: TypeAlias = tuple[tuple[str, ...], tuple[tuple[Value, ...], ...]]
"""Column names and rows; both empty if there are no rows."""

STEPS_A_CALL = 1000
QUICK_CALLS_MAX = 100
"""A statement that takes more calls of the progress handler is run carefully."""
STEPS_MAX = 10_000_000
"""Steps of one request. Also of all careful requests of one identity in one message."""
MESSAGE_CPU_S_MAX = 300.0
"""CPU time of one message. Steps differ in cost, and a statement may consist of the most expensive ones. At this bound
the executor stops, as it would on a full disk: the moment differs between executors, so no outcome may depend on it.
"""
ANSWER_ROWS_MAX = 1000
ANSWER_BYTES_MAX = 64 * 1024
MESSAGE_MAX = 500
ONE_ROW = (StatementResult(1),)
"""The result of most requests: one statement that changed one row. Shared to save allocations."""
_UNBOUNDED = 1 << 62

STOPS = (
    apsw.NoMemError,
    apsw.FullError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.IOError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.InternalError,
    apsw.MisuseError,
    apsw.ProtocolError,
    apsw.NoLFSError,
    MemoryError,
)
"""Errors that are not the statement's fault: the executor stops."""
FAULTS = (
    apsw.Error,
    SqliteLimitExceeded,
    LocalTimeUsed,
    SavepointError,
    Malformed,
    ValueError,
    OverflowError,
    TypeError,
    KeyError,
    RecursionError,
)
"""Errors of the statement: they become its result."""


class NeedsCare(Exception):
    """The request must not share a transaction with other requests."""


class SqliteRunner:
    def __init__(
        self,
        connection: apsw.Connection,
        guard: Guard,
        tracker: SqliteRowTracker,
        message_settings: DeterministicFunctions,
    ) -> None:
        self._connection = connection
        self._guard = guard
        self._tracker = tracker
        self._functions = message_settings
        self._quick = connection.cursor()
        """A shared cursor for cached statements: a cursor for each would cost more than most of them."""
        self._calls = 0
        self._calls_max = self._limit = QUICK_CALLS_MAX
        self._spent = 0
        self._began_s = 0.0
        connection.set_progress_handler(self._progress, STEPS_A_CALL)

    def begin_message(self) -> None:
        """Start the CPU budget of another message."""
        self._began_s = time.thread_time()

    def _progress(self) -> bool:
        self._calls += 1
        if self._calls_max != _UNBOUNDED and time.thread_time() - self._began_s > MESSAGE_CPU_S_MAX:
            raise EngineFailed(f"the statements of a message take more than {MESSAGE_CPU_S_MAX:g} s")
        return self._calls > self._calls_max

    # The quick way.

    def run_quickly(self, request: DatabaseRequest) -> RequestOutcome:
        """Run the request in the open transaction and return its outcome; a failed request leaves the transaction as it
        was.
        """
        self._tracker.begin_request()
        try:
            if len(request.values) == 1:
                return self._run_single(request, decode_statement(request.values[0]))
            return self._run_several(request, [decode_statement(value) for value in request.values])
        except Malformed as wrong:
            return _failed(request, wrong, 0, "")

    def _run_single(self, request: DatabaseRequest, statement: Statement) -> RequestOutcome:
        """Run a request of one statement without a savepoint: SQLite rolls back a failed statement by itself, except
        for those with a conflict clause that keeps partial changes.
        """
        if first_word(statement.sql) not in QUICK:
            raise NeedsCare
        before = self._connection.total_changes()
        self._begin_statement(cached=True)
        try:
            answer = self._execute(statement, before, cached=True)
        except STOPS as error:
            _stop(error)
        except FAULTS as error:
            if self._transaction_lost() or self._connection.total_changes() != before:
                raise NeedsCare from None
            self._tracker.undo_request()
            return _failed(request, error, 0, self._guard.denied)
        tracker = self._tracker
        if tracker.fault or (tracker.refers and self._has_deferred_violation()):
            raise NeedsCare
        return RequestOutcome(request.offset, ONE_ROW if answer is ONE_ROW[0] else (answer,))

    def _run_several(self, request: DatabaseRequest, statements: list[Statement]) -> RequestOutcome:
        if any(first_word(statement.sql) not in QUICK for statement in statements):
            raise NeedsCare
        self.run_own("savepoint request")
        outcome = self._run_all(request, statements, cached=True)
        if self._transaction_lost() or self._tracker.fault or self._has_deferred_violation():
            raise NeedsCare
        if outcome.error is not None:
            self.run_own("rollback to request")
            self._tracker.undo_request()
        self.run_own("release request")
        return outcome

    def _transaction_lost(self) -> bool:
        """True if SQLite rolled back the transaction, or the statement exceeded its steps."""
        return not self._connection.in_transaction or self._calls > self._calls_max

    # The careful way.

    def run_carefully(self, request: DatabaseRequest, steps_max: int) -> tuple[RequestOutcome, int]:
        """Return the request's outcome and the steps it took. If it failed, the caller must roll back the
        transaction.
        """
        self._tracker.begin_request()
        self._calls = self._spent = 0
        self._calls_max = self._limit = steps_max // STEPS_A_CALL
        try:
            statements = [decode_statement(value) for value in request.values]
        except Malformed as wrong:
            return _failed(request, wrong, 0, ""), 0
        outcome = self._run_all(request, statements, cached=False)
        return self._judged(request, outcome), self._calls * STEPS_A_CALL

    def _judged(self, request: DatabaseRequest, outcome: RequestOutcome) -> RequestOutcome:
        if self._calls > self._calls_max:
            reason = f"takes more than the {STEPS_MAX} steps that a request, and a client in one message, may take"
            return _refused(request, "limit", reason)
        if self._tracker.fault:
            return _refused(request, "limit", self._tracker.fault)
        if outcome.error is None and self._has_deferred_violation():
            return _refused(request, "constraint", "FOREIGN KEY constraint failed at the end of the request")
        return outcome

    def _run_all(self, request: DatabaseRequest, statements: list[Statement], *, cached: bool) -> RequestOutcome:
        answers: list[StatementResult] = []
        savepoints = Savepoints(self.run_own, self._tracker.mark, self._tracker.restore)
        for number, statement in enumerate(statements):
            self._begin_statement(cached)
            try:
                if (command := command_of(statement.sql)) is not None:
                    savepoints.execute(command)
                    answers.append(StatementResult())
                else:
                    answers.append(self._execute(statement, self._connection.total_changes(), cached=cached))
            except STOPS as error:
                _stop(error)
            except FAULTS as error:
                return _failed(request, error, number, self._guard.denied)
        if sum(len(answer.rows) for answer in answers) > ANSWER_ROWS_MAX:
            return _refused(request, "limit", f"gives more than {ANSWER_ROWS_MAX} rows: use query")
        return RequestOutcome(request.offset, tuple(answers))

    # One statement.

    def _begin_statement(self, cached: bool) -> None:
        if cached:
            self._calls = self._spent = 0
            self._calls_max = self._limit = QUICK_CALLS_MAX
        self._spent = self._calls

    def _execute(self, statement: Statement, before: int, *, cached: bool) -> StatementResult:
        """Run one statement. `before` is the connection's count of changed rows."""
        if self._guard.asked:
            self._guard.begin()
        if cached and ";" not in statement.sql:
            columns, rows = self._rows(self._quick, statement, can_cache=True)
        else:
            columns, rows = self._look_and_run(statement, cached=cached)
        connection = self._connection
        changed = connection.changes() if connection.total_changes() != before else 0
        return ONE_ROW[0] if changed == 1 and not columns else StatementResult(changed, columns, rows)

    def _look_and_run(self, statement: Statement, *, cached: bool) -> Table:
        word = first_word(statement.sql)
        if word not in QUICK and word not in SLOW:
            raise SqliteLimitExceeded(
                f"a statement begins with one of {', '.join(sorted(QUICK | SLOW))}, not {word[:20]!r}"
            )
        found = self._rows(self._watched(word), statement, can_cache=cached)
        if word in SLOW:
            self.free(self._tracker.reload_schema)
        return found

    def _watched(self, word: str) -> apsw.Cursor:
        """A cursor that inspects a statement before it runs: another may follow it, or it may remove rows with their
        table.
        """
        cursor = self._connection.cursor()
        begun = 0

        def trace(_: object, sql: str, bindings: object) -> bool:
            nonlocal begun
            begun += 1
            if begun > 1:
                raise SqliteLimitExceeded("one statement at a time")
            if cursor.is_explain:
                raise SqliteLimitExceeded("EXPLAIN tells about the file, which differs between executors")
            if word in SLOW:
                self.free(self._tracker.remove_rows_of, self._guard.reshaped)
            self._calls, self._calls_max = self._spent, self._limit
            return True

        cursor.exec_trace = trace
        self._calls_max = _UNBOUNDED  # the steps of compilation depend on what was compiled before
        return cursor

    def _rows(self, cursor: apsw.Cursor, statement: Statement, *, can_cache: bool) -> Table:
        try:
            cursor.execute(statement.sql, statement.parameters, can_cache=can_cache)
            first = cursor.fetchone()
            return ((), ()) if first is None else self._all_rows(cursor, first)
        except BaseException:
            # Close it now, not when it is collected: an open statement would keep the transaction from ending.
            cursor.close(True)
            self._quick = self._connection.cursor()
            raise

    def _all_rows(self, cursor: apsw.Cursor, first: tuple[Value, ...]) -> Table:
        columns = tuple(column[0] for column in cursor.description)
        rows = [first]
        size = _size(first)
        for row in cursor:
            rows.append(row)
            size += _size(row)
            if len(rows) > ANSWER_ROWS_MAX or size > ANSWER_BYTES_MAX:
                reason = f"gives more than {ANSWER_ROWS_MAX} rows or {ANSWER_BYTES_MAX} bytes: use query"
                raise SqliteLimitExceeded(reason)
        return columns, tuple(rows)

    def _has_deferred_violation(self) -> bool:
        """True if a deferred foreign key is violated."""
        return self._tracker.refers and bool(self._connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0])

    # The executor's own statements.

    def run_own(self, sql: str) -> None:
        """Run a statement of the executor, bypassing the statement cache: the same text from a client must be
        refused.
        """
        self.free(lambda: self._connection.execute(sql, can_cache=False))

    def free(self, do: Callable[..., T], *arguments: object) -> T:
        """Call a function without the guard and without counting steps."""
        calls, calls_max = self._calls, self._calls_max
        self._calls_max = _UNBOUNDED
        try:
            with self._guard.opened():
                return do(*arguments)
        finally:
            self._calls, self._calls_max = calls, calls_max


def _size(row: tuple[Value, ...]) -> int:
    return 8 * len(row) + sum(len(cell) for cell in row if isinstance(cell, str | bytes))


def _stop(error: BaseException) -> NoReturn:
    raise EngineFailed(f"SQLite cannot go on: {type(error).__name__}: {error}") from error


def _failed(request: DatabaseRequest, error: BaseException, number: int, denied: str) -> RequestOutcome:
    return RequestOutcome(request.offset, (), StatementError(*_described(error, denied), number))


def _described(error: BaseException, denied: str) -> tuple[str, str]:
    """Kind and message, which depend on the statement alone."""
    match error:
        case SavepointError():
            return error.kind, str(error)[:MESSAGE_MAX]
        case apsw.AuthError():
            return "refused", f"not allowed: {denied}"
        case SqliteLimitExceeded() | LocalTimeUsed() | Malformed():
            return "refused", str(error)[:MESSAGE_MAX]
        case apsw.ConstraintError():
            return "constraint", str(error)[:MESSAGE_MAX]
        case apsw.TooBigError():
            return "limit", str(error)[:MESSAGE_MAX]
        case apsw.Error():
            return "error", str(error)[:MESSAGE_MAX]
        case UnicodeDecodeError():
            return "refused", "text that is not UTF-8"
        case _:
            return "refused", "parameters that do not fit the statement, or a number beyond 64 bits"


def _refused(request: DatabaseRequest, kind: str, reason: str) -> RequestOutcome:
    return RequestOutcome(request.offset, (), StatementError(kind, reason))
