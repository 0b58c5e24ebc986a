"""A stream's database in PostgreSQL: a schema in the node's own server. Each request is one transaction.

The position (a message, and the number of its requests that are applied) is committed together with the data. So after
a crash of the node or the server the database itself shows what comes next. Commits are not synced, as with SQLite:
after a machine failure, or if the server is killed, the database is a little behind, and the journal has the rest.

Invariants: no request is applied twice or skipped; the contents do not depend on when or how often it was opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg

from chaplain.executor.events import MessageApplied, Work
from chaplain.executor.fingerprint import Tallies
from chaplain.executor.statement import Parameters, Rows, StatementError
from chaplain.runtime.databases.change_log import CHANGES, ChangeLog, quoted
from chaplain.runtime.databases.interface import EngineFailed, Server
from chaplain.runtime.databases.postgres.connection import check, first_connection
from chaplain.runtime.databases.postgres.errors import stop
from chaplain.runtime.databases.postgres.execute import ClientConnections, PostgresRunner, uses_random
from chaplain.runtime.databases.postgres.metadata import PostgresState, PostgresStore
from chaplain.runtime.databases.postgres.queries import PostgresReaders
from chaplain.runtime.databases.postgres.row_tracker import PostgresRowTracker
from chaplain.runtime.databases.postgres.schema import Layout
from chaplain.runtime.databases.requests import DatabaseRequest, requests_of, runs_of

DRY_RUN_IDENTITY = b"rehearsal"
"""The identity under which dry runs execute."""


class PostgresDatabase:
    def __init__(self, folder: Path, stream: str, server: Server, rows_bytes: int = 0) -> None:
        self._layout = Layout(server.database, stream)
        self._own = first_connection(server, self._layout)
        try:
            check(self._own, server)
            self._store = PostgresStore(self._own, self._layout)
            self._changes = ChangeLog(folder / CHANGES / quoted(stream), stream, rows_bytes)
            if self._changes.is_behind(self._store.state.changes):
                self._store.rebuild()
            state = self._store.state
            self._tracker = PostgresRowTracker(self._layout, Tallies(state.tallies), state.definitions)
            self._tracker.open(self._own)
        except BaseException as error:
            self._own.close()
            if isinstance(error, psycopg.Error):
                stop(error)
            raise
        self._client_connections = ClientConnections(server, self._layout, self._own, self._tracker)
        self._runner = PostgresRunner(self._layout, self._tracker, self._client_connections)
        self._readers = PostgresReaders(server, self._layout)
        self._failed = ""

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
        if self._failed:
            raise EngineFailed(self._failed)
        try:
            return self._apply(work, self._store.state.done(work.index))
        except psycopg.Error as error:
            self._failed = "the database failed before"
            stop(error)
        except BaseException:
            # The state in memory may be ahead of the database. The next open reads the stored position.
            self._failed = "the database failed before"
            raise

    def _apply(self, work: Work, done: int) -> MessageApplied:
        requests = list(requests_of(work))
        begun = False
        for number, request in enumerate(requests[done:], done + 1):
            connection, outcome = self._runner.run(work, request, begun=begun)
            following = requests[number] if number < len(requests) else None
            begun = following is not None and following.acl == request.acl
            then = self._runner.opening(work, following) if following is not None and begun else []
            pairs = self._tracker.settle()
            if pairs:
                self._changes.write(self._store.state.changes, pairs, work.timestamp_ns)
            state = self._state((work.index, number, number == len(requests)), len(pairs))
            self._store.commit(connection, state, list(runs_of(work, [request], [outcome])), then)
        if self._store.state.index < work.index:  # the message contains no statement
            self._own.execute(b"begin")
            self._store.commit(self._own, self._state((work.index, 0, True), 0), [])
        return MessageApplied(work.index, self.fingerprint, len(requests), self._store.take_failures())

    def rehearse(self, values: Sequence[bytes], timestamp_ns: int) -> StatementError | None:
        """Run in a rolled-back transaction under a reserved role."""
        try:
            nowhere = Work(0, timestamp_ns, b"", ())
            connection, outcome = self._runner.run(
                nowhere, DatabaseRequest(0, 0, 0, values, DRY_RUN_IDENTITY), begun=False
            )
            connection.execute(b"rollback")
        except BaseException:
            self._client_connections.close(DRY_RUN_IDENTITY)
            raise
        finally:
            self._tracker.roll_back()
        return None if uses_random(values) else outcome.error

    def _state(self, position: tuple[int, int, bool], changed: int) -> PostgresState:
        tracker, changes = self._tracker, self._store.state.changes + changed
        return PostgresState(*position, tracker.tallies().values(), tracker.fingerprint(), changes, tracker.definitions)

    # Queries and results.

    def query(self, sql: str, parameters: Parameters, stopped: Callable[[], bool] = bool) -> Rows:
        return self._readers.query(sql, parameters, stopped)

    def results(self, acl: bytes, client_id: int, first_id: int, last_id: int) -> list[bytes]:
        return self._readers.results(acl, client_id, first_id, last_id)

    def clear(self, acl: bytes, through: Sequence[tuple[int, int]]) -> None:
        try:
            self._store.clear(acl, through)
        except psycopg.Error as error:
            stop(error)

    @property
    def read(self) -> tuple[tuple[bytes, int, int], ...]:
        return self._store.read

    def close(self) -> None:
        self._readers.close()
        self._client_connections.close()
        self._own.close()
        self._changes.close()
