"""The interface of a database engine. To add an engine, write a class of this form and name it in `open_engine`.

One thread at a time uses an engine for `apply` and `clear`; other threads may call `query` and `results` meanwhile.

An engine guarantees: messages are applied in order, each once, even if the process is killed; position and data commit
in one transaction; a request that fails changes nothing and fails with the same result on every node. If the engine
cannot continue because of memory, disk or locks, it raises `EngineFailed` and applies no more messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from chaplain.errors import ChaplainError
from chaplain.executor.events import MessageApplied, Work
from chaplain.executor.statement import Parameters, Rows, StatementError


class EngineFailed(ChaplainError):
    """The database cannot continue. No statement is at fault."""


class DatabaseDamaged(EngineFailed):
    """The contents of the database differ from what its statements wrote."""


class QueryFailed(ChaplainError):
    """A query was invalid or exceeded a limit."""


class Server(msgspec.Struct, frozen=True):
    """The node's own database server. The password is in a file, or where the client library finds it."""

    host: str = ""
    port: int = 5432
    database: str = "chaplain_1"
    user: str = "chaplain"
    password_file: str = ""

    @property
    def place(self) -> str:
        return f"{self.host or 'the local socket'}, port {self.port}"


class DatabaseEngine(Protocol):
    @property
    def index(self) -> int:
        """The last message that was applied."""
        ...

    @property
    def fingerprint(self) -> bytes: ...

    def apply(self, work: Work) -> MessageApplied: ...

    def query(self, sql: str, parameters: Parameters, stopped: Callable[[], bool] = ...) -> Rows:
        """Run a read-only query. `stopped` returns True once the client no longer waits for the answer."""
        ...

    def results(self, acl: bytes, client_id: int, first_id: int, last_id: int) -> list[bytes]:
        """Runs of outcomes as stored, in message order."""
        ...

    def clear(self, acl: bytes, through: Sequence[tuple[int, int]]) -> None:
        """Delete the results of these lanes, up to an id each, and remember that they were read."""
        ...

    @property
    def read(self) -> tuple[tuple[bytes, int, int], ...]:
        """Read positions when the database was opened: identity, lane and last id; the oldest first."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Rehearses(Protocol):
    """An engine that can also dry-run a request. The rules for calling `apply` apply to it, too."""

    def rehearse(self, values: Sequence[bytes], timestamp_ns: int) -> StatementError | None:
        """Why these statements would fail now as one request; None if they would succeed, or if the outcome is random.

        It leaves no trace: no row, no change, no result, no position.
        """
        ...


def open_engine(
    kind: str, folder: Path, stream: str, server: Server | None = None, rows_bytes: int = 0
) -> DatabaseEngine:
    """Open the database of a stream, or create it. `server` is for engines that have one.

    `rows_bytes` is how much of the row changes is kept; 0: all of them.
    """
    # Imported here: a node loads only what it uses.
    if kind == "sqlite":
        from chaplain.runtime.databases.sqlite.database import SqliteDatabase  # noqa: PLC0415

        return SqliteDatabase(folder, stream, rows_bytes)
    if kind == "postgres":
        try:
            from chaplain.runtime.databases.postgres.database import PostgresDatabase  # noqa: PLC0415
        except ImportError as error:
            raise EngineFailed(f"{error.name} is missing: pip install 'chaplain[postgres]'") from None
        assert server is not None
        return PostgresDatabase(folder, stream, server, rows_bytes)
    raise EngineFailed(f"there is no database of the kind {kind!r}")
