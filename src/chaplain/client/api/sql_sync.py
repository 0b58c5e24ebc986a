"""SQL for threads: `Sql` and its `SqlWriter`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chaplain.client.api import journal_calls, sql_calls
from chaplain.client.api.journal_sync import JournalClientContext, Writer
from chaplain.client.api.sql_calls import Item, Parameters
from chaplain.client.types import validation
from chaplain.client.types.journal import RequestId
from chaplain.client.types.sql import Result, Row, checked
from chaplain.errors import NotExecutor
from chaplain.executor.statement import SQL_TYPE


class SqlWriter(Writer):
    """Executes many statements, each its own transaction, in order, without waiting for one result."""

    def execute(self, sql: str, parameters: Parameters | None = None) -> None:
        """Hand over one statement. What becomes of it is in `results`, whether it fails or not."""
        self.write(sql_calls.statement(sql, parameters))


class Sql:
    """The database of a stream: statements in one agreed order, executed alike on every node."""

    def __init__(self, line: JournalClientContext, stream: str) -> None:
        self.stream = validation.journal_stream(stream)
        self._line = line
        self._index = 0
        self._checked = False
        self._writers: list[SqlWriter] = []

    def __repr__(self) -> str:
        return f"Sql({self.stream!r})"

    def execute(
        self,
        sql: str,
        parameters: Parameters | None = None,
        id: Sequence[int] | None = None,  # noqa: A002 the surface's name
    ) -> Result:
        """Execute one statement, with `?` or `:name` for parameters; raises `StatementFailed` if it failed.

        With the `id` of an `Unknown`: only if neither that one nor another retry of it is executed; else gives that
        one's result.
        """
        return self.transaction([(sql, parameters or ())], id)

    def transaction(self, items: Iterable[Item], id: Sequence[int] | None = None) -> Result:  # noqa: A002 likewise
        """Execute statements as one request: all of them, or none."""
        batch = sql_calls.transaction(self.stream, items)
        if id is None:  # else it was looked at when it was first tried
            self._check()
        receipt = self._line.run(journal_calls.write(batch, id))[0]
        self._index = max(self._index, receipt.index)
        try:
            result = self._line.run(sql_calls.result(self.stream, receipt))
        except NotExecutor as why:
            raise sql_calls.untold(receipt, why) from None
        return checked(result)

    def writer(self) -> SqlWriter:
        """The fast way for many: packs and pipelines; use it in a `with` statement."""
        self._check()
        writer = SqlWriter(self._line, self.stream, False, SQL_TYPE)
        self._writers.append(writer)
        return writer

    def query(self, sql: str, parameters: Parameters | None = None, local: bool = False) -> list[Row]:
        """Rows of a SELECT, after everything that was agreed when it began; with `local`, as the node has it now.

        In either case after everything that was executed through this object.
        """
        return self._line.run(sql_calls.query(self.stream, sql, parameters, self._known(), local))

    def results(self, through: Sequence[int] | None = None) -> list[Result]:
        """What became of requests of this identity, as far as it is kept, the oldest first; then it is deleted.

        Also of those whose result `execute` gave: only this deletes. With `through`, an id: of the requests of its lane
        up to it, and of those that were executed together with it.
        """
        found: dict[RequestId, Result] = {}
        wanted = sql_calls.span(through)
        while wanted and (part := self._line.run(sql_calls.unread(self.stream, self._known(), wanted))):
            found |= {one.id: one for one in part}  # a node that we come to meanwhile may not know what we have read
            self._line.run(sql_calls.read_through(self.stream, part))
            wanted = sql_calls.span(through, part)
        return list(found.values())

    def _check(self) -> None:
        """Nothing is written that nobody executes."""
        if not self._checked:
            self._line.run(sql_calls.check_executed(self.stream))
            self._checked = True

    def _known(self) -> int:
        """The last message that has something of ours."""
        lasts = [writer.last.index for writer in self._writers if writer.last is not None]
        self._index = max([self._index, *lasts])
        self._writers = [writer for writer in self._writers if not writer.closed]
        return self._index
