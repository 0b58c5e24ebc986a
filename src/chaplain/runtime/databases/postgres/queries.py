"""Reads a stream's schema in PostgreSQL in parallel with its writer: client queries, and results.

A query sees the database after some complete request, in a read-only transaction, under a role that may only read this
stream's tables. It is bounded in rows, bytes and time. Connections are reused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, cast

import psycopg

from chaplain.executor.statement import Parameters, Rows
from chaplain.runtime.databases.interface import EngineFailed, QueryFailed, Server
from chaplain.runtime.databases.postgres.connection import Connection, connect
from chaplain.runtime.databases.postgres.errors import described, stop
from chaplain.runtime.databases.postgres.execute import checked_columns, message_settings, plain, size_of, typed
from chaplain.runtime.databases.postgres.guard_result import Denied
from chaplain.runtime.databases.postgres.parameters import ParameterMismatch, arranged, translated
from chaplain.runtime.databases.postgres.schema import OWN, Layout
from chaplain.runtime.databases.postgres.statement_guard import judge

QUERY_SECONDS_MAX = 10
QUERY_ROWS_MAX = 100_000
QUERY_BYTES_MAX = 4 * 1024 * 1024
RESULTS_BYTES_MAX = 1024 * 1024
"""Size of one answer; clients request the rest afterwards."""
_LOOK_S = 0.1
"""How often a running query is checked for cancellation."""
_POSITION = f"select idx, whole from {OWN}.state where stream = $1::text"
_TABLES = "select tablename from pg_catalog.pg_tables where schemaname = $1::text"


class PostgresReaders:
    """A pool of connections, as many as are in use at a time."""

    def __init__(self, server: Server, layout: Layout) -> None:
        self._server = server
        self._layout = layout
        self._lock = threading.Lock()
        self._idle: list[Connection] = []

    @contextmanager
    def _one(self) -> Iterator[Connection]:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or connect(self._server, self._layout, reads=True)
        try:
            yield connection
        except (QueryFailed, Denied, psycopg.Error) as error:
            self._return(connection, sound=not isinstance(error, psycopg.errors.QueryCanceled))
            raise
        except BaseException:
            connection.close()
            raise
        self._return(connection)

    def _return(self, connection: Connection, *, sound: bool = True) -> None:
        """Return the connection to the pool; close it if it was cancelled, because the cancellation may arrive late, or
        is lost.
        """
        try:
            if sound:
                connection.execute(b"rollback")
        except psycopg.Error:
            sound = False
        if not sound:
            connection.close()
            return
        with self._lock:
            self._idle.append(connection)

    def query(self, sql: str, parameters: Parameters, stopped: Callable[[], bool]) -> Rows:
        failed: QueryFailed
        try:
            text, names = translated(sql)
            values = typed(arranged(names, parameters))
            tables = {table for table, _ in judge(text, reads=True).weight.tables}
            with self._one() as connection, _watched(connection, stopped):
                index = self._begin(connection, tables)
                return self._read(connection, text, values, index)
        except (Denied, ParameterMismatch) as error:
            failed = QueryFailed(str(error)[:500])
        except psycopg.errors.QueryCanceled:
            failed = QueryFailed(f"the query took more than {QUERY_SECONDS_MAX} s, or was given up")
        except psycopg.Error as error:
            failed = QueryFailed(described(error, 0).message)
        raise failed

    def _begin(self, connection: Connection, tables: set[str]) -> int:
        connection.execute(b"begin isolation level repeatable read read only")
        row = connection.execute(_POSITION.encode(), (self._layout.stream,)).fetchone()
        if row is None:
            raise EngineFailed("the database has no position any more")
        there = {name for (name,) in connection.execute(_TABLES, (self._layout.schema,))}
        if tables - there:
            raise QueryFailed(f"no such table: {min(tables - there)}")
        words = [
            f"set local role {self._layout.role('reader')}",
            f"set local statement_timeout = '{QUERY_SECONDS_MAX}s'",
            *message_settings(time.time_ns(), "00"),
        ]
        connection.execute(";".join(words).encode())
        return int(row[0] if row[1] else row[0] - 1)

    def _read(self, connection: Connection, text: str, values: list[object], index: int) -> Rows:
        cursor = connection.cursor()
        columns: tuple[str, ...] = ()
        rows: list[tuple[object, ...]] = []
        size = 0
        with closing(cast("Generator[Any, None, None]", cursor.stream(text.encode(), values))) as stream:
            for row in stream:
                columns = columns or checked_columns(cursor)
                rows.append(plain(row))
                size += size_of(rows[-1])
                if len(rows) > QUERY_ROWS_MAX or size > QUERY_BYTES_MAX:
                    raise QueryFailed(
                        f"the query gives more than {QUERY_ROWS_MAX} rows or {QUERY_BYTES_MAX} bytes: add a LIMIT"
                    )
        return Rows(index, columns, tuple(rows))

    def results(self, acl: bytes, client_id: int, first_id: int, last_id: int) -> list[bytes]:
        found: list[bytes] = []
        lane = " and client_id = $3::bigint and last_id >= $4::bigint and first_id <= $5::bigint" if client_id else ""
        sql = f"select body from {OWN}.results where stream = $1::text and acl = $2::bytea{lane} order by number"
        values = (self._layout.stream, acl, *((client_id, first_id, last_id) if client_id else ()))
        try:
            with (
                self._one() as connection,
                closing(cast("Generator[Any, None, None]", connection.cursor().stream(sql.encode(), values))) as stream,
            ):
                for (body,) in stream:
                    found.append(bytes(body))
                    if sum(map(len, found)) > RESULTS_BYTES_MAX:
                        break
        except psycopg.Error as error:
            stop(error)
        return found

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


@contextmanager
def _watched(connection: Connection, stopped: Callable[[], bool]) -> Iterator[None]:
    """Cancel the query once the client no longer waits. This thread waits for the server, so another one polls
    `stopped`.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            if stopped():
                with suppress(psycopg.Error):  # if cancelling fails, the query ends by its timeout
                    connection.cancel_safe(timeout=5)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
