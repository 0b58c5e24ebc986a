"""Runs one request on PostgreSQL: its statements in one transaction, in the name of the client that wrote it.

Each client has a role and a connection of its own; what it does is also judged by the server, by that role's rights.
Tables are made and altered as the role that owns the stream's tables. The transaction is left open: whoever asked
writes the position into it, and commits.

Bounds fall alike everywhere: the work of a statement is bounded by how many rows the tables have that it names, which
every executor knows from its tallies. Time is no bound, but an end: see `STATEMENT_SECONDS_MAX`.
"""

from __future__ import annotations

import datetime
import re
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from decimal import Decimal
from hashlib import sha256
from typing import Any, cast

import msgspec
import psycopg
from psycopg.types.numeric import Int4, Int8

from chaplain.errors import Malformed
from chaplain.executor.events import Work
from chaplain.executor.statement import (
    RequestOutcome,
    Statement,
    StatementError,
    StatementResult,
    Value,
    decode_statement,
)
from chaplain.runtime.databases.interface import Server
from chaplain.runtime.databases.postgres.connection import Connection, connect
from chaplain.runtime.databases.postgres.errors import described
from chaplain.runtime.databases.postgres.grammar import TYPES
from chaplain.runtime.databases.postgres.guard_result import Denied, GuardResult
from chaplain.runtime.databases.postgres.parameters import Unfit, arranged, translated
from chaplain.runtime.databases.postgres.row_tracker import Made, PostgresLimitExceeded, PostgresRowTracker
from chaplain.runtime.databases.postgres.schema import Layout, make_role
from chaplain.runtime.databases.postgres.statement_guard import judge
from chaplain.runtime.databases.requests import DatabaseRequest

SHADOWS_MAX = 8
"""Connections of clients that are kept."""
WORK_MAX = 100_000_000
"""The rows of all tables that a statement names, multiplied, if it names more than one."""
STEPS_MAX = 10_000_000_000
"""The same for every statement, times the parts of its text."""
ANSWER_ROWS_MAX = 1000
ANSWER_BYTES_MAX = 64 * 1024
_INT4, _INT8 = 1 << 31, 1 << 63
_VALUE_TYPES = frozenset(TYPES.values())
_HEAD = re.compile(r"\s*create\s+(unique\s+)?(table|index)\s+(?:if\s+not\s+exists\s+)?(.*?)[\s;]*\Z", re.I | re.S)
_INDEXES = "select indexname from pg_catalog.pg_indexes where schemaname = $1"
_encode = msgspec.msgpack.Encoder().encode


class RelationMissing(Exception):
    """A statement names what is not there, or makes what is."""


class ClientConnections:
    """A connection for each client, with the role that its identity has."""

    def __init__(self, server: Server, layout: Layout, own: Connection, ledger: PostgresRowTracker) -> None:
        self._server = server
        self._layout = layout
        self._own = own
        self._ledger = ledger
        self._roles: set[bytes] = set()
        self._open: OrderedDict[bytes, Connection] = OrderedDict()

    def of(self, acl: bytes) -> Connection:
        connection = self._open.get(acl)
        if connection is None:
            self._make_role(acl)
            connection = connect(self._server, self._layout)
            connection.add_notice_handler(self._ledger.note)
            self._open[acl] = connection
            if len(self._open) > SHADOWS_MAX:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(acl)
        return connection

    def _make_role(self, acl: bytes) -> None:
        if acl not in self._roles:
            for words in make_role(self._layout.client(acl)):
                self._own.execute(words.encode())
            self._own.execute(f"grant {self._layout.role('writer')} to {self._layout.client(acl)}".encode())
            self._roles.add(acl)

    def close(self, acl: bytes | None = None) -> None:
        for one in [acl] if acl is not None else list(self._open):
            if one in self._open:
                self._open.pop(one).close()


class PostgresRunner:
    def __init__(self, layout: Layout, ledger: PostgresRowTracker, shadows: ClientConnections) -> None:
        self._layout = layout
        self._ledger = ledger
        self._shadows = shadows

    def opening(self, work: Work, request: DatabaseRequest) -> list[str]:
        """What a request's transaction begins with."""
        return ["begin", f"set local role {self._layout.client(request.acl)}", *surroundings(work, request.offset)]

    def run(self, work: Work, request: DatabaseRequest, *, begun: bool) -> tuple[Connection, RequestOutcome]:
        """What became of it, and the transaction in which that is so."""
        connection = self._shadows.of(request.acl)
        self._ledger.begin()
        role = self._layout.client(request.acl)
        if not begun:
            connection.execute(";".join(self.opening(work, request)).encode())
        answers: list[StatementResult] = []
        error: StatementError | None = None
        for number, value in enumerate(request.values):
            answer = self._answer(connection, value, role, number)
            if isinstance(answer, StatementError):
                error = answer
                break
            answers.append(answer)
        if error is None:
            error = self._judged(answers)
        if error is None:
            return connection, RequestOutcome(request.offset, tuple(answers))
        self._ledger.take_back()
        return self._emptied(request.acl, connection), RequestOutcome(request.offset, (), error)

    def _judged(self, answers: list[StatementResult]) -> StatementError | None:
        if self._ledger.fault:
            return StatementError("limit", self._ledger.fault)
        if sum(len(answer.rows) for answer in answers) > ANSWER_ROWS_MAX:
            return StatementError("limit", f"gives more than {ANSWER_ROWS_MAX} rows: use query")
        return None

    def _emptied(self, acl: bytes, connection: Connection) -> Connection:
        """The transaction anew, with nothing in it."""
        try:
            connection.execute(b"rollback; begin")
        except psycopg.errors.QueryCanceled:  # it was to stop giving rows, and heard it late
            self._shadows.close(acl)
            connection = self._shadows.of(acl)
            connection.execute(b"begin")
        return connection

    def _answer(self, connection: Connection, value: bytes, role: str, number: int) -> StatementResult | StatementError:
        try:
            return self._execute(connection, decode_statement(value), role)
        except Denied as denied:
            return StatementError("refused", str(denied)[:500], number)
        except (Malformed, Unfit) as wrong:
            return StatementError("refused", str(wrong)[:500], number)
        except RelationMissing as missing:
            return StatementError("error", str(missing)[:500], number)
        except PostgresLimitExceeded as beyond:
            return StatementError("limit", str(beyond), number)
        except psycopg.Error as error:
            return described(error, number)

    # One statement.

    def _execute(self, connection: Connection, statement: Statement, role: str) -> StatementResult:
        text, names = translated(statement.sql)
        verdict = judge(text)
        self._admit(verdict)
        values = typed(arranged(names, statement.parameters))
        if verdict.reshapes:
            return self._reshape(connection, verdict, statement.sql, text, role)
        if not verdict.gives_rows:
            changed = connection.execute(text.encode(), values).rowcount
            return StatementResult(max(0, changed))
        columns, rows, count = self._rows(connection, text, values)
        if not verdict.ordered:
            rows.sort(key=_encode)
        return StatementResult(0 if verdict.kind == "select" else count, columns, tuple(rows))

    def _admit(self, verdict: GuardResult) -> None:
        """Whether what it names is there, and is not too much."""
        shapes = self._ledger.shapes
        written = [verdict.target] if verdict.kind in ("insert", "update", "delete") else []
        for table in [*written, *(table for table, _ in verdict.weight.tables), *verdict.refers]:
            if table not in shapes and not (verdict.kind == "create table" and table == verdict.target):
                raise RelationMissing(f"no such table: {table}")
        if verdict.computed:
            self._admit_keys(verdict.computed & shapes[verdict.target].uniques)
        work, named = verdict.weight.factor, 0
        for table, times in verdict.weight.tables:
            work *= max(1, self._ledger.rows(table)) ** times
            named += times
        if verdict.kind in ("update", "delete"):
            children = [name for name, shape in shapes.items() if verdict.target in shape.refers]
            work *= 1 + sum(map(self._ledger.rows, children))
            named += len(children)
        if (named > 1 or verdict.weight.factor > 1) and work > WORK_MAX:
            raise PostgresLimitExceeded(
                f"the tables it names have {work} rows, multiplied: at most {WORK_MAX}; do it in parts"
            )
        if work * verdict.parts > STEPS_MAX:
            raise PostgresLimitExceeded(
                f"takes {work * verdict.parts} steps: at most {STEPS_MAX}; write it shorter, or do it in parts"
            )

    def _admit_keys(self, computed: frozenset[str]) -> None:
        """Keys are compared row by row, so one that is worked out may meet another that is about to go, or may not."""
        if computed:
            raise Denied(
                f"{min(computed)} is part of a unique key and would be worked out for each row: servers meet rows in"
                " different orders, so set it to a value, or delete and insert"
            )

    def _rows(
        self, connection: Connection, text: str, values: list[Any]
    ) -> tuple[tuple[str, ...], list[tuple[Value, ...]], int]:
        rows: list[tuple[Value, ...]] = []
        columns: tuple[str, ...] = ()
        size = 0
        cursor = connection.cursor()
        with closing(cast("Generator[Any, None, None]", cursor.stream(text.encode(), values))) as stream:
            for row in stream:
                columns = columns or checked_columns(cursor)
                rows.append(plain(row))
                size += size_of(rows[-1])
                if len(rows) > ANSWER_ROWS_MAX or size > ANSWER_BYTES_MAX:
                    raise PostgresLimitExceeded(
                        f"gives more than {ANSWER_ROWS_MAX} rows or {ANSWER_BYTES_MAX} bytes: use query"
                    )
        return columns, rows, len(rows)

    # The schema.

    def _reshape(self, connection: Connection, verdict: GuardResult, raw: str, text: str, role: str) -> StatementResult:
        ledger, table = self._ledger, verdict.target
        there = {name for _, name, _, _ in ledger.made}
        indexes = {name for kind, name, _, _ in ledger.made if kind == "index"}
        if verdict.kind in ("create table", "create index"):
            name = verdict.name or table
            if name in there:
                if verdict.if_exists:
                    return StatementResult()
                raise RelationMissing(f"there is already a table or an index named {name}")
        if table not in (indexes if verdict.kind == "drop index" else ledger.shapes) and verdict.kind != "create table":
            if verdict.if_exists and verdict.kind.startswith("drop"):
                return StatementResult()
            raise RelationMissing(f"no such {'index' if verdict.kind == 'drop index' else 'table'}: {table}")
        connection.execute(b"reset role")
        if verdict.kind in ("alter", "drop"):
            ledger.leave(connection, table)
        connection.execute(f"set local role {self._layout.role('owner')}".encode())
        connection.execute(text.encode())
        connection.execute(b"reset role")
        ledger.look(connection)
        left = {name for (name,) in connection.execute(_INDEXES, (self._layout.schema,))}
        ledger.made = [one for one in remade(ledger.made, verdict, raw, text) if one[0] != "index" or one[1] in left]
        connection.execute(f"set local role {role}".encode())
        return StatementResult()


def remade(made: list[Made], verdict: GuardResult, raw: str, text: str) -> list[Made]:
    """The schema, in the words that made it, as SQLite keeps it; alterations are added to a table's words."""
    table = verdict.target
    if verdict.kind in ("create table", "create index"):
        found = _HEAD.match(raw) or _HEAD.match(text)
        assert found is not None, "the grammar saw CREATE"
        words = f"CREATE {'UNIQUE ' if found[1] else ''}{found[2].upper()} {found[3]}"
        kind = found[2].lower()
        return [*made, (kind, verdict.name or table, table, words)]
    if verdict.kind == "drop":
        return [one for one in made if one[2] != table]
    if verdict.kind == "drop index":
        return [one for one in made if one[:2] != ("index", table)]
    name = verdict.name or table
    return [
        ("table", name, name, f"{sql}; {raw.strip()}")
        if kind == "table" and of == table
        else (kind, one, name if of == table else of, sql)
        for kind, one, of, sql in made
    ]


def draws(values: Sequence[bytes]) -> bool:
    """Whether chance has a part in one of these statements."""
    with suppress(Denied, Malformed):
        return any(judge(translated(decode_statement(value).sql)[0]).draws for value in values)
    return False


def surroundings(work: Work, offset: int) -> list[str]:
    """Time and chance, from the cluster message: the same on every executor."""
    return around(work.timestamp_ns, sha256(work.hash + offset.to_bytes(8, "big")).hexdigest())


def around(timestamp_ns: int, seed: str) -> list[str]:
    seconds = timestamp_ns // 1_000_000_000
    now = datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    settings = {"now": now, "seconds": seconds, "seed": seed, "turn": 0}
    return [f"set local chaplain.{name} = '{value}'" for name, value in settings.items()]


def typed(values: list[Value]) -> list[Any]:
    """Numbers say how large they are; what text is meant to be, the server finds out."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, int):
            if not -_INT8 <= value < _INT8:
                raise Unfit("a number beyond 64 bits")
            found.append(Int4(value) if -_INT4 <= value < _INT4 else Int8(value))
        elif isinstance(value, str) and "\x00" in value:
            raise Unfit("PostgreSQL keeps no text with a zero character: use octets")
        else:
            found.append(value)
    return found


def checked_columns(cursor: psycopg.Cursor[Any]) -> tuple[str, ...]:
    description = cursor.description or []
    for column in description:
        if column.type_code not in _VALUE_TYPES:
            raise Denied(f"column {column.name} has a type that is not given: write a cast")
    return tuple(column.name for column in description)


def plain(row: tuple[Any, ...]) -> tuple[Value, ...]:
    """As values travel: a boolean as 0 or 1, a whole number as such, another as a floating-point one."""
    return tuple(cell if cell is None or type(cell) in (int, str, bytes, float) else _plain(cell) for cell in row)


def _plain(cell: Any) -> Value:
    if isinstance(cell, bool):
        return int(cell)
    if isinstance(cell, Decimal):
        whole = cell.is_finite() and cell.as_tuple().exponent == 0 and -_INT8 <= cell < _INT8
        return int(cell) if whole else float(cell)
    return bytes(cell) if isinstance(cell, memoryview) else str(cell)


def size_of(row: tuple[Value, ...]) -> int:
    return 8 * len(row) + sum(len(cell) for cell in row if isinstance(cell, str | bytes))
