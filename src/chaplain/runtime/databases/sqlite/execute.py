"""Runs one request on SQLite: its statements, within bounds that are the same everywhere.

Two ways. *Quick*: statements that cannot change the schema, compiled once and kept, among others in one transaction.
*Careful*: alone in its own transaction, compiled anew. SQLite counts its steps from the compilation on, so only then
the bound falls on the same step on every executor; and some failures take the whole transaction with them. A request
that turns out to need care is stopped (`NeedsCare`) and run again carefully.

Invariant: whichever way it is run, a request has the same outcome and leaves the same rows.
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
from chaplain.runtime.databases.sqlite.functions import Surroundings, ZoneAsked
from chaplain.runtime.databases.sqlite.row_tracker import SqliteLimitExceeded, SqliteRowTracker
from chaplain.runtime.databases.sqlite.statement_guard import QUICK, SLOW, Guard, first_word

T = TypeVar("T")
Table: TypeAlias = tuple[tuple[str, ...], tuple[tuple[Value, ...], ...]]
"""The names of the columns, and the rows; neither, if there are no rows."""

STEPS_A_CALL = 1000
QUICK_CALLS_MAX = 100
"""A statement that takes more calls of the progress handler is run carefully."""
STEPS_MAX = 10_000_000
"""Of one request. Also of all requests of an identity in one message that take more than a quick one may."""
MESSAGE_CPU_S_MAX = 300.0
"""Steps differ in what they take, and a statement may be made of those that take most. Whoever gets here stops this
executor, as a full disk would: it is not the same moment on every executor, so no outcome may depend on it.
"""
ANSWER_ROWS_MAX = 1000
ANSWER_BYTES_MAX = 64 * 1024
MESSAGE_MAX = 500
ONE_ROW = (StatementResult(1),)
"""The answers of most requests: one statement that changed one row. Made once."""
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
"""Not a statement's fault: the executor stops."""
FAULTS = (
    apsw.Error,
    SqliteLimitExceeded,
    ZoneAsked,
    Malformed,
    ValueError,
    OverflowError,
    TypeError,
    KeyError,
    RecursionError,
)
"""A statement's fault: a result."""


class NeedsCare(Exception):
    """Not to be run among others."""


class SqliteRunner:
    def __init__(
        self, connection: apsw.Connection, guard: Guard, ledger: SqliteRowTracker, around: Surroundings
    ) -> None:
        self._connection = connection
        self._guard = guard
        self._ledger = ledger
        self._around = around
        self._quick = connection.cursor()
        """For statements that are run as they are: a cursor for each would cost more than most of them."""
        self._calls = 0
        self._calls_max = self._limit = QUICK_CALLS_MAX
        self._spent = 0
        self._began_s = 0.0
        connection.set_progress_handler(self._progress, STEPS_A_CALL)

    def begin_message(self) -> None:
        """What follows is charged to another message."""
        self._began_s = time.thread_time()

    def _progress(self) -> bool:
        self._calls += 1
        if self._calls_max != _UNBOUNDED and time.thread_time() - self._began_s > MESSAGE_CPU_S_MAX:
            raise EngineFailed(f"the statements of a message take more than {MESSAGE_CPU_S_MAX:g} s")
        return self._calls > self._calls_max

    # Quickly.

    def run_quickly(self, request: DatabaseRequest) -> RequestOutcome:
        """Its outcome; the transaction goes on, with what the request did or as it was."""
        self._ledger.begin_request()
        try:
            if len(request.values) == 1:
                return self._run_single(request, decode_statement(request.values[0]))
            return self._run_several(request, [decode_statement(value) for value in request.values])
        except Malformed as wrong:
            return _failed(request, wrong, 0, "")

    def _run_single(self, request: DatabaseRequest, statement: Statement) -> RequestOutcome:
        """SQLite takes back a statement that fails by itself, but for those that ask to be left half done."""
        if first_word(statement.sql) not in QUICK:
            raise NeedsCare
        before = self._connection.total_changes()
        self._begin_statement(cached=True)
        try:
            answer = self._execute(statement, before, cached=True)
        except STOPS as error:
            _stop(error)
        except FAULTS as error:
            if self._spoiled() or self._connection.total_changes() != before:
                raise NeedsCare from None
            self._ledger.undo_request()
            return _failed(request, error, 0, self._guard.denied)
        ledger = self._ledger
        if ledger.fault or (ledger.refers and self._owes()):
            raise NeedsCare
        return RequestOutcome(request.offset, ONE_ROW if answer is ONE_ROW[0] else (answer,))

    def _run_several(self, request: DatabaseRequest, statements: list[Statement]) -> RequestOutcome:
        if any(first_word(statement.sql) not in QUICK for statement in statements):
            raise NeedsCare
        self.own("savepoint request")
        outcome = self._run_all(request, statements, cached=True)
        if self._spoiled() or self._ledger.fault or self._owes():
            raise NeedsCare
        if outcome.error is not None:
            self.own("rollback to request")
            self._ledger.undo_request()
        self.own("release request")
        return outcome

    def _spoiled(self) -> bool:
        """Whether SQLite has given up the transaction, or the statement was stopped for its steps."""
        return not self._connection.in_transaction or self._calls > self._calls_max

    # Carefully.

    def run_carefully(self, request: DatabaseRequest, steps_max: int) -> tuple[RequestOutcome, int]:
        """Its outcome and how many steps it took; if it failed, the transaction must be taken back."""
        self._ledger.begin_request()
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
        if self._ledger.fault:
            return _refused(request, "limit", self._ledger.fault)
        if outcome.error is None and self._owes():
            return _refused(request, "constraint", "FOREIGN KEY constraint failed at the end of the request")
        return outcome

    def _run_all(self, request: DatabaseRequest, statements: list[Statement], *, cached: bool) -> RequestOutcome:
        answers: list[StatementResult] = []
        for number, statement in enumerate(statements):
            self._begin_statement(cached)
            try:
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
        """`before`: how many rows were changed on this connection until now."""
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
            self.free(self._ledger.look)
        return found

    def _watched(self, word: str) -> apsw.Cursor:
        """For one that is looked at before it runs: there may be another behind it, or rows that will go."""
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
                self.free(self._ledger.leave, self._guard.reshaped)
            self._calls, self._calls_max = self._spent, self._limit
            return True

        cursor.exec_trace = trace
        self._calls_max = _UNBOUNDED  # what compiling takes depends on what was compiled before
        return cursor

    def _rows(self, cursor: apsw.Cursor, statement: Statement, *, can_cache: bool) -> Table:
        try:
            cursor.execute(statement.sql, statement.parameters, can_cache=can_cache)
            first = cursor.fetchone()
            return ((), ()) if first is None else self._all_rows(cursor, first)
        except BaseException:
            # At once, not when it is collected: a statement that is under way would keep the transaction from ending.
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

    def _owes(self) -> bool:
        """Whether a foreign key that is checked later is not met."""
        return self._ledger.refers and bool(self._connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0])

    # The executor's own statements.

    def own(self, sql: str) -> None:
        """Never from the cache of statements, nor into it: a client that sends the same words must be refused."""
        self.free(lambda: self._connection.execute(sql, can_cache=False))

    def free(self, do: Callable[..., T], *arguments: object) -> T:
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
    """Kind and message, in words that depend on the statement alone."""
    match error:
        case apsw.AuthError():
            return "refused", f"not allowed: {denied}"
        case SqliteLimitExceeded() | ZoneAsked() | Malformed():
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
