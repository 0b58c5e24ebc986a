"""The values that SQL methods return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from chaplain.client.types.journal import RequestId
from chaplain.client.types.results import ResultRecord
from chaplain.errors import StatementFailed
from chaplain.executor.statement import OutcomeRun, RequestOutcome, StatementResult


class Row(dict[str, Any]):
    """A row, indexed by column name or by position. Of columns with the same name, the last one counts."""

    def __getitem__(self, column: str | int) -> Any:
        return list(self.values())[column] if isinstance(column, int) else super().__getitem__(column)


def rows_of(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[Row]:
    names = tuple(columns)
    return [Row(zip(names, row, strict=True)) for row in rows]


class Result(ResultRecord, frozen=True):
    """The result of one request: a transaction of one statement or more."""

    stream: str
    offset: int
    """Offset of its first statement in the stream."""
    index: int
    """Index of the cluster message that contains it."""
    timestamp: int
    """Time of the cluster message, in nanoseconds since 1970."""
    client_id: int
    client_message_id: int
    ok: bool
    error: Mapping[str, Any] | None
    """Why the transaction failed: `kind`, `message` and the failed `statement`, from 0. None if it succeeded."""
    changes: int
    """Rows that the statements inserted, updated or deleted, not counting triggers."""
    rows: list[Row]
    """The rows that the last statement returned."""

    @property
    def id(self) -> RequestId:
        """The id of the request."""
        return RequestId(self.client_id, self.client_message_id)


def results_of(stream: str, run: OutcomeRun) -> list[Result]:
    return [_result(stream, run, run.first_id + number, outcome) for number, outcome in enumerate(run.outcomes)]


def _result(stream: str, run: OutcomeRun, request: int, outcome: RequestOutcome) -> Result:
    error = outcome.error
    shown = None if error is None else {"kind": error.kind, "message": error.message, "statement": error.statement}
    last = outcome.answers[-1] if outcome.answers else StatementResult()
    changes = sum(answer.changes for answer in outcome.answers)
    where = (outcome.offset, run.index, run.timestamp_ns, run.client_id, request)
    return Result(stream, *where, error is None, shown, changes, rows_of(last.columns, last.rows))


def checked(result: Result) -> Result:
    """Return the result, or raise `StatementFailed` if the transaction failed."""
    if result.error is not None:
        raise StatementFailed(result.error["message"], result.error["kind"], result)
    return result
