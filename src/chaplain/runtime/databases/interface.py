"""What a kind of database must do to execute streams. Whoever adds one writes a class of this form and names it below.

An engine is used by one thread at a time for `apply` and `clear`; `query` and `results` may come from others meanwhile.

It owes: messages are applied in order, each once, whatever the process dies of; position and data in one transaction;
a request that fails changes nothing and fails alike everywhere; what it cannot do for reasons of its own (memory, disk,
locks) is raised as `EngineFailed`, and then nothing more is applied.
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
    """The database cannot go on. Not a fault of any statement."""


class DatabaseDamaged(EngineFailed):
    """What is in the database is not what statements left there."""


class QueryFailed(ChaplainError):
    """A query was wrong, or asked for too much."""


class Server(msgspec.Struct, frozen=True):
    """Where a node's own database server is. The password is in a file, or where the client library finds it."""

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
        """`stopped` says whether nobody wants the answer any more."""
        ...

    def results(self, acl: bytes, client_id: int, first_id: int, last_id: int) -> list[bytes]:
        """Runs of outcomes, as they are stored, in the order of their messages."""
        ...

    def clear(self, acl: bytes, through: Sequence[tuple[int, int]]) -> None:
        """Results of these lanes, up to an id each, were read: they go, and that they were read is remembered."""
        ...

    @property
    def read(self) -> tuple[tuple[bytes, int, int], ...]:
        """Identities and lanes that were cleared, and up to which id, when it was opened; the oldest word first."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Rehearses(Protocol):
    """An engine that can also try out a request. Used as `apply` is, and by the same rules."""

    def rehearse(self, values: Sequence[bytes], timestamp_ns: int) -> StatementError | None:
        """Why these statements would fail now, as one request; None if they would not, or that is left to chance.

        Nothing is left of it: no row, no change, no result, no position.
        """
        ...


def open_engine(
    kind: str, folder: Path, stream: str, server: Server | None = None, rows_bytes: int = 0
) -> DatabaseEngine:
    """The database of a stream; it is made if it is not there. `server` is for kinds that have one.

    `rows_bytes` is what of its row changes is kept; 0: all of them.
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
