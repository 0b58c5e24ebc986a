"""Runs one request on PostgreSQL: its statements in one transaction, under the role of the client that wrote it.

Each client has its own role and connection, so the server also checks each statement against the role's rights. Tables
are created and altered under the role that owns the stream's tables. The transaction stays open: the caller writes the
position into it and commits.

Bounds are the same on every node: the work of a statement is bounded by the row counts of the tables that it names, and
every executor knows these from its tallies. Time does not bound a statement; it stops the executor, see
`STATEMENT_SECONDS_MAX`.
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
from chaplain.runtime.databases.postgres.parameters import ParameterMismatch, arranged, translated
from chaplain.runtime.databases.postgres.row_tracker import (
    PostgresLimitExceeded,
    PostgresRowTracker,
    RequestMark,
    SchemaDefinition,
)
from chaplain.runtime.databases.postgres.schema import Layout, make_role
from chaplain.runtime.databases.postgres.statement_guard import judge
from chaplain.runtime.databases.requests import DatabaseRequest
from chaplain.runtime.databases.savepoints import SavepointError, Savepoints, command_of

CLIENT_CONNECTIONS_MAX = 8
"""Client connections that are kept open."""
WORK_MAX = 100_000_000
"""Product of the row counts of all tables that a statement names, if it names more than one."""
STEPS_MAX = 10_000_000_000
"""The same product times the number of parts of the text, for every statement."""
ANSWER_ROWS_MAX = 1000
ANSWER_BYTES_MAX = 64 * 1024
_INT4, _INT8 = 1 << 31, 1 << 63
_VALUE_TYPES = frozenset(TYPES.values())
_HEAD = re.compile(r"\s*create\s+(unique\s+)?(table|index)\s+(?:if\s+not\s+exists\s+)?(.*?)[\s;]*\Z", re.I | re.S)
_INDEXES = "select indexname from pg_catalog.pg_indexes where schemaname = $1"
_encode = msgspec.msgpack.Encoder().encode


class RelationMissing(Exception):
    """A statement names a relation that does not exist, or creates one that does."""


class ClientConnections:
    """A connection for each client, with the role of its identity."""

    def __init__(self, server: Server, layout: Layout, own: Connection, tracker: PostgresRowTracker) -> None:
        self._server = server
        self._layout = layout
        self._own = own
        self._tracker = tracker
        self._roles: set[bytes] = set()
        self._open: OrderedDict[bytes, Connection] = OrderedDict()

    def of(self, acl: bytes) -> Connection:
        connection = self._open.get(acl)
        if connection is None:
            self._make_role(acl)
            connection = connect(self._server, self._layout)
            connection.add_notice_handler(self._tracker.note)
            self._open[acl] = connection
            if len(self._open) > CLIENT_CONNECTIONS_MAX:
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
    def __init__(self, layout: Layout, tracker: PostgresRowTracker, client_connections: ClientConnections) -> None:
        self._layout = layout
        self._tracker = tracker
        self._client_connections = client_connections

    def opening(self, work: Work, request: DatabaseRequest) -> list[str]:
        """The statements at the start of a request's transaction."""
        return ["begin", f"set local role {self._layout.client(request.acl)}", *session_settings(work, request.offset)]

    def run(self, work: Work, request: DatabaseRequest, *, begun: bool) -> tuple[Connection, RequestOutcome]:
        """The connection with the open transaction, and the outcome of the request in it."""
        connection = self._client_connections.of(request.acl)
        self._tracker.begin()
        role = self._layout.client(request.acl)
        if not begun:
            connection.execute(";".join(self.opening(work, request)).encode())
        answers: list[StatementResult] = []
        error: StatementError | None = None
        savepoints = Savepoints(lambda sql: connection.execute(sql.encode()), self._tracker.mark, self._tracker.restore)
        for number, value in enumerate(request.values):
            answer = self._answer(connection, savepoints, value, role, number)
            if isinstance(answer, StatementError):
                error = answer
                break
            answers.append(answer)
        if error is None:
            error = self._judged(answers)
        if error is None:
            return connection, RequestOutcome(request.offset, tuple(answers))
        self._tracker.roll_back()
        return self._emptied(request.acl, connection), RequestOutcome(request.offset, (), error)

    def _judged(self, answers: list[StatementResult]) -> StatementError | None:
        if self._tracker.fault:
            return StatementError("limit", self._tracker.fault)
        if sum(len(answer.rows) for answer in answers) > ANSWER_ROWS_MAX:
            return StatementError("limit", f"gives more than {ANSWER_ROWS_MAX} rows: use query")
        return None

    def _emptied(self, acl: bytes, connection: Connection) -> Connection:
        """Restart the transaction, without any changes in it."""
        try:
            connection.execute(b"rollback; begin")
        except psycopg.errors.QueryCanceled:  # a cancel request for the streamed rows arrived late
            self._client_connections.close(acl)
            connection = self._client_connections.of(acl)
            connection.execute(b"begin")
        return connection

    def _answer(
        self, connection: Connection, savepoints: Savepoints[RequestMark], value: bytes, role: str, number: int
    ) -> StatementResult | StatementError:
        try:
            statement = decode_statement(value)
            if (command := command_of(statement.sql)) is not None:
                savepoints.execute(command)
                return StatementResult()
            return self._execute(connection, statement, role)
        except SavepointError as wrong:
            return StatementError(wrong.kind, str(wrong)[:500], number)
        except Denied as denied:
            return StatementError("refused", str(denied)[:500], number)
        except (Malformed, ParameterMismatch) as wrong:
            return StatementError("refused", str(wrong)[:500], number)
        except RelationMissing as missing:
            return StatementError("error", str(missing)[:500], number)
        except PostgresLimitExceeded as exceeded:
            return StatementError("limit", str(exceeded), number)
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
        """Check that the relations exist and the work is within the bounds."""
        shapes = self._tracker.shapes
        written = [verdict.target] if verdict.kind in ("insert", "update", "delete") else []
        for table in [*written, *(table for table, _ in verdict.weight.tables), *verdict.refers]:
            if table not in shapes and not (verdict.kind == "create table" and table == verdict.target):
                raise RelationMissing(f"no such table: {table}")
        if verdict.computed:
            self._admit_keys(verdict.computed & shapes[verdict.target].uniques)
        work, named = verdict.weight.factor, 0
        for table, times in verdict.weight.tables:
            work *= max(1, self._tracker.rows(table)) ** times
            named += times
        if verdict.kind in ("update", "delete"):
            children = [name for name, shape in shapes.items() if verdict.target in shape.refers]
            work *= 1 + sum(map(self._tracker.rows, children))
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
        """Refuse computed keys: unique keys are checked row by row, so the outcome would depend on the order
        of rows.
        """
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
        tracker, table = self._tracker, verdict.target
        there = {name for _, name, _, _ in tracker.definitions}
        indexes = {name for kind, name, _, _ in tracker.definitions if kind == "index"}
        if verdict.kind in ("create table", "create index"):
            name = verdict.name or table
            if name in there:
                if verdict.if_exists:
                    return StatementResult()
                raise RelationMissing(f"there is already a table or an index named {name}")
        if (
            table not in (indexes if verdict.kind == "drop index" else tracker.shapes)
            and verdict.kind != "create table"
        ):
            if verdict.if_exists and verdict.kind.startswith("drop"):
                return StatementResult()
            raise RelationMissing(f"no such {'index' if verdict.kind == 'drop index' else 'table'}: {table}")
        connection.execute(b"reset role")
        if verdict.kind in ("alter", "drop"):
            tracker.remove_rows_of(connection, table)
        connection.execute(f"set local role {self._layout.role('owner')}".encode())
        connection.execute(text.encode())
        connection.execute(b"reset role")
        tracker.reload_schema(connection)
        left = {name for (name,) in connection.execute(_INDEXES, (self._layout.schema,))}
        tracker.definitions = [
            one
            for one in updated_definitions(tracker.definitions, verdict, raw, text)
            if one[0] != "index" or one[1] in left
        ]
        connection.execute(f"set local role {role}".encode())
        return StatementResult()


def updated_definitions(
    definitions: list[SchemaDefinition], verdict: GuardResult, raw: str, text: str
) -> list[SchemaDefinition]:
    """The schema as the statements that created it, as SQLite stores it; alterations are appended to a table's
    statement.
    """
    table = verdict.target
    if verdict.kind in ("create table", "create index"):
        found = _HEAD.match(raw) or _HEAD.match(text)
        assert found is not None, "the grammar saw CREATE"
        words = f"CREATE {'UNIQUE ' if found[1] else ''}{found[2].upper()} {found[3]}"
        kind = found[2].lower()
        return [*definitions, (kind, verdict.name or table, table, words)]
    if verdict.kind == "drop":
        return [one for one in definitions if one[2] != table]
    if verdict.kind == "drop index":
        return [one for one in definitions if one[:2] != ("index", table)]
    name = verdict.name or table
    return [
        ("table", name, name, f"{sql}; {raw.strip()}")
        if kind == "table" and of == table
        else (kind, one, name if of == table else of, sql)
        for kind, one, of, sql in definitions
    ]


def uses_random(values: Sequence[bytes]) -> bool:
    """True if one of these statements uses random values."""
    with suppress(Denied, Malformed, SavepointError):
        texts = [decode_statement(value).sql for value in values]
        return any(judge(translated(text)[0]).uses_random for text in texts if command_of(text) is None)
    return False


def session_settings(work: Work, offset: int) -> list[str]:
    """Settings for time and random values, from the cluster message: the same on every executor."""
    return message_settings(work.timestamp_ns, sha256(work.hash + offset.to_bytes(8, "big")).hexdigest())


def message_settings(timestamp_ns: int, seed: str) -> list[str]:
    """The settings for this time and seed."""
    seconds = timestamp_ns // 1_000_000_000
    now = datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    settings = {"now": now, "seconds": seconds, "seed": seed, "turn": 0}
    return [f"set local chaplain.{name} = '{value}'" for name, value in settings.items()]


def typed(values: list[Value]) -> list[Any]:
    """Wrap integers in the type of their size; the server infers the types of texts."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, int):
            if not -_INT8 <= value < _INT8:
                raise ParameterMismatch("a number beyond 64 bits")
            found.append(Int4(value) if -_INT4 <= value < _INT4 else Int8(value))
        elif isinstance(value, str) and "\x00" in value:
            raise ParameterMismatch("PostgreSQL keeps no text with a zero character: use octets")
        else:
            found.append(value)
    return found


def checked_columns(cursor: psycopg.Cursor[Any]) -> tuple[str, ...]:
    description = cursor.description or []
    for column in description:
        if column.type_code not in _VALUE_TYPES:
            raise Denied(f"column {column.name} has an unsupported type: write a cast")
    return tuple(column.name for column in description)


def plain(row: tuple[Any, ...]) -> tuple[Value, ...]:
    """Values as they are sent: booleans as 0 or 1, integral decimals as int, other decimals as float."""
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
