"""Reads a SQLite file in parallel with its writer: client queries, and results.

A query sees the database after some complete message, is read-only, and is bounded in steps, rows, bytes and time.
Connections are reused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from chaplain.executor.statement import Parameters, Rows
from chaplain.runtime.databases.interface import EngineFailed, QueryFailed
from chaplain.runtime.databases.sqlite.functions import DeterministicFunctions, LocalTimeUsed
from chaplain.runtime.databases.sqlite.statement_guard import OWN, QUICK, Guard, first_word

CONNECTIONS_MAX = 4
QUERY_SECONDS_MAX = 10.0
QUERY_ROWS_MAX = 100_000
QUERY_BYTES_MAX = 4 * 1024 * 1024
RESULTS_BYTES_MAX = 1024 * 1024
"""Size of one answer; clients request the rest afterwards."""
QUERY_MEMORY_MAX = 256 * 1024 * 1024
"""How much SQLite's memory may grow during a query, including that of other queries."""
_STEPS_A_CALL = 500
"""Steps between calls of the progress handler; some steps take a good part of a second."""
_UNBOUNDED = 1 << 62
_POSITION = f"select case when whole then idx else idx - 1 end from {OWN}state"
_WRONG = (apsw.Error, LocalTimeUsed, ValueError, OverflowError, TypeError, KeyError)
_BROKEN = (apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.CantOpenError, apsw.NoMemError, MemoryError)


class _Reader:
    def __init__(self, path: Path) -> None:
        self.connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=64)
        self.connection.pragma("query_only", True)
        self.connection.set_busy_timeout(1000)
        self.functions = DeterministicFunctions(self.connection)
        self.guard = Guard(self.connection, lambda: self._names, writes=False)
        self._end_s = 0.0
        self._memory_max = _UNBOUNDED
        self._names: frozenset[str] = frozenset()
        self._version = -1
        self._stopped: Callable[[], bool] = bool
        self.connection.set_progress_handler(self._ends, _STEPS_A_CALL)

    def _ends(self) -> bool:
        if apsw.memory_used() > self._memory_max:
            raise QueryFailed(f"the query takes more than {QUERY_MEMORY_MAX >> 20} MiB of memory")
        return time.monotonic() > self._end_s or self._stopped()

    @contextmanager
    def own(self) -> Iterator[apsw.Connection]:
        self._stopped = bool
        self._end_s = time.monotonic() + QUERY_SECONDS_MAX
        self._memory_max = _UNBOUNDED
        with self.guard.opened():
            yield self.connection

    def query(self, sql: str, parameters: Parameters, stopped: Callable[[], bool]) -> Rows:
        with self.own() as connection:
            connection.execute("begin", can_cache=False)
        try:
            with self.own() as connection:
                ((index,),) = connection.execute(_POSITION)
                self._look()
            self.guard.begin()
            self.functions.set(time.time_ns(), b"query", 0)
            self._end_s, self._stopped = time.monotonic() + QUERY_SECONDS_MAX, stopped
            self._memory_max = apsw.memory_used() + QUERY_MEMORY_MAX
            return self._read(sql, parameters, index)
        finally:
            with self.own() as connection:
                connection.execute("rollback", can_cache=False)

    def _look(self) -> None:
        """Reload the table names if the schema has changed."""
        version = self.connection.pragma("schema_version")
        if version != self._version:
            names = self.connection.execute("select lower(name) from sqlite_master where type in ('table', 'view')")
            self._names, self._version = frozenset(name for (name,) in names), version

    def _read(self, sql: str, parameters: Parameters, index: int) -> Rows:
        cursor = self.connection.cursor()
        columns: list[str] = []

        def trace(*_: object) -> bool:
            if columns or cursor.is_explain or not cursor.is_readonly:
                raise QueryFailed("one SELECT at a time")
            columns.extend(column[0] for column in cursor.description)
            return True

        cursor.exec_trace = trace
        rows: list[tuple[object, ...]] = []
        size = 0
        for row in cursor.execute(sql, parameters, can_cache=False):
            rows.append(row)
            size += 8 * len(row) + sum(len(cell) for cell in row if isinstance(cell, str | bytes))
            if len(rows) > QUERY_ROWS_MAX or size > QUERY_BYTES_MAX:
                raise QueryFailed(
                    f"the query gives more than {QUERY_ROWS_MAX} rows or {QUERY_BYTES_MAX} bytes: add a LIMIT"
                )
        return Rows(index, tuple(columns), tuple(rows))


class SqliteReaders:
    """A pool of connections, as many as are in use at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._idle: list[_Reader] = []

    @contextmanager
    def _one(self) -> Iterator[_Reader]:
        with self._lock:
            reader = self._idle.pop() if self._idle else None
        try:
            reader = reader or _Reader(self._path)
            yield reader
        except _BROKEN as error:
            raise EngineFailed(f"SQLite cannot read: {type(error).__name__}: {error}") from error
        with self._lock:
            self._idle.append(reader)

    def query(self, sql: str, parameters: Parameters, stopped: Callable[[], bool]) -> Rows:
        if first_word(sql) not in QUICK:
            raise QueryFailed("a query begins with SELECT, WITH or VALUES; changes go through execute")
        failed: QueryFailed | None = None
        with self._one() as reader:
            try:
                return reader.query(sql, parameters, stopped)
            except _BROKEN:
                raise
            except QueryFailed as error:
                failed = error
            except apsw.AuthError:
                failed = QueryFailed(f"not allowed in a query: {reader.guard.denied}")
            except apsw.InterruptError:
                failed = QueryFailed(f"the query took more than {QUERY_SECONDS_MAX:g} s, or was given up")
            except _WRONG as error:
                failed = QueryFailed(str(error)[:500])
        raise failed

    def results(self, acl: bytes, client_id: int, first_id: int, last_id: int) -> list[bytes]:
        lanes = "client_id = ?3 and last_id >= ?4 and first_id <= ?5" if client_id else "?3 + ?4 + ?5 >= 0"
        sql = f"select body from {OWN}results where acl = ?2 and {lanes} and ?1 order by number"
        found: list[bytes] = []
        with self._one() as reader, reader.own() as connection:
            for (body,) in connection.execute(sql, (1, acl, client_id, first_id, last_id)):
                found.append(body)
                if sum(map(len, found)) > RESULTS_BYTES_MAX:
                    break
        return found

    def close(self) -> None:
        for reader in self._idle:
            reader.functions.close()
            reader.connection.close()
