"""What SQL gives back to the caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from chaplain.client.types.journal import RequestId
from chaplain.client.types.results import Record
from chaplain.errors import StatementFailed
from chaplain.executor.statement import OutcomeRun, RequestOutcome, StatementResult


class Row(dict[str, Any]):
    """A row: by the names of its columns, or by their places. Of columns with one name the last counts."""

    def __getitem__(self, column: str | int) -> Any:
        return list(self.values())[column] if isinstance(column, int) else super().__getitem__(column)


def rows_of(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[Row]:
    names = tuple(columns)
    return [Row(zip(names, row, strict=True)) for row in rows]


class Result(Record, frozen=True):
    """What became of one request: a transaction of one statement or more."""

    stream: str
    offset: int
    """Of its first statement in the stream."""
    index: int
    """The cluster message that it is in."""
    timestamp: int
    """Of the cluster message, in nanoseconds since 1970."""
    client_id: int
    client_message_id: int
    ok: bool
    error: Mapping[str, Any] | None
    """Why nothing was changed: kind, message, and which statement it was, from 0."""
    changes: int
    """Rows that the statements inserted, updated or deleted, without triggers."""
    rows: list[Row]
    """What the last statement gave."""

    @property
    def id(self) -> RequestId:
        return RequestId(self.client_id, self.client_message_id)


def results_of(stream: str, run: OutcomeRun) -> list[Result]:
    return [_result(stream, run, run.first_id + number, outcome) for number, outcome in enumerate(run.outcomes)]


def _result(stream: str, run: OutcomeRun, request: int, outcome: RequestOutcome) -> Result:
    error = outcome.error
    told = None if error is None else {"kind": error.kind, "message": error.message, "statement": error.statement}
    last = outcome.answers[-1] if outcome.answers else StatementResult()
    changes = sum(answer.changes for answer in outcome.answers)
    where = (outcome.offset, run.index, run.timestamp_ns, run.client_id, request)
    return Result(stream, *where, error is None, told, changes, rows_of(last.columns, last.rows))


def checked(result: Result) -> Result:
    if result.error is not None:
        raise StatementFailed(result.error["message"], result.error["kind"], result)
    return result
