"""What a kind of database must do to execute streams. Whoever adds one writes a class of this form and names it below.

An engine is used by one thread at a time for `apply` and `clear`; `query` and `results` may come from others meanwhile.

It owes: messages are applied in order, each once, whatever the process dies of; position and data in one transaction;
a request that fails changes nothing and fails alike everywhere; what it cannot do for reasons of its own (memory, disk,
locks) is raised as `EngineFailed`, and then nothing more is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from chaplain.errors import ChaplainError
from chaplain.executor.events import Step, Work
from chaplain.executor.statement import Parameters, Rows


class EngineFailed(ChaplainError):
    """The database cannot go on. Not a fault of any statement."""


class QueryFailed(ChaplainError):
    """A query was wrong, or asked for too much."""


class Engine(Protocol):
    @property
    def index(self) -> int:
        """The last message that was applied."""
        ...

    @property
    def fingerprint(self) -> bytes: ...

    def apply(self, work: Work) -> Step: ...

    def query(self, sql: str, parameters: Parameters, stopped: Callable[[], bool] = ...) -> Rows:
        """`stopped` says whether nobody wants the answer any more."""
        ...

    def results(self, acl: bytes, client_id: int, first_id: int, last_id: int) -> list[bytes]:
        """Runs of outcomes, as they are stored, in the order of their messages."""
        ...

    def clear(self, acl: bytes, through: Sequence[tuple[int, int]]) -> None: ...

    def close(self) -> None: ...


def open_engine(kind: str, folder: Path, stream: str) -> Engine:
    """The database of a stream; it is made if it is not there."""
    # Imported here: a node loads only what it uses.
    if kind == "sqlite":
        from chaplain.runtime.databases.sqlite import SqliteDatabase  # noqa: PLC0415

        return SqliteDatabase(folder, stream)
    raise EngineFailed(f"there is no database of the kind {kind!r}")
