"""SQL: `AsyncSql` and its `AsyncSqlWriter`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chaplain.client.aio.connection import AsyncClientContext
from chaplain.client.aio.executor_calls import AsyncExecutorCalls
from chaplain.client.aio.journal import AsyncWriter
from chaplain.client.aio.waiting import begin
from chaplain.client.api import consumer_calls, journal_calls, sql_calls
from chaplain.client.api.sql_calls import Item, Parameters
from chaplain.client.protocol.journal.events import Batch
from chaplain.client.types import validation
from chaplain.client.types.journal import RequestId
from chaplain.client.types.sql import Result, Row, checked
from chaplain.errors import NotExecutor
from chaplain.executor.statement import SQL_TYPE
from chaplain.journal.messages.consumer import Acknowledge, Finish


class AsyncSqlWriter(AsyncWriter[bytes]):
    """Executes many statements in order, each its own transaction, without waiting for each result."""

    def __init__(self, context: AsyncClientContext, stream: str, executors: AsyncExecutorCalls) -> None:
        super().__init__(context, stream, False, SQL_TYPE)
        self._executors = executors

    async def execute(self, sql: str, parameters: Parameters | None = None) -> None:
        """Submit one statement. Its result, or its failure, appears in `AsyncSql.results`."""
        statement = sql_calls.statement(sql, parameters)
        if not self._executors.checked:
            await self._executors.check()
        await self.write(statement)


class AsyncSql:
    """The SQL database of a stream: statements in one agreed order, executed identically on every executor."""

    def __init__(self, context: AsyncClientContext, stream: str) -> None:
        self.stream = validation.journal_stream(stream)
        self._context = context
        self._index = 0
        self._writers: list[AsyncSqlWriter] = []
        self._executors = AsyncExecutorCalls(context, self.stream)

    def __repr__(self) -> str:
        return f"AsyncSql({self.stream!r})"

    async def execute(
        self,
        sql: str,
        parameters: Parameters | None = None,
        id: Sequence[int] | None = None,  # noqa: A002  part of the public API
    ) -> Result:
        """Execute one statement as its own transaction and return its result. Parameters are `?` or `:name`.

        Raises `StatementFailed` if the statement fails; then nothing has changed on any node. With the `id` of an
        `Unknown`, the request is retried: it is executed only if neither the original nor another retry of it is in the
        log. Otherwise the result of the executed request is returned.
        """
        return await self.transaction([(sql, parameters or ())], id)

    async def transaction(self, items: Iterable[Item], id: Sequence[int] | None = None) -> Result:  # noqa: A002  likewise
        """Execute statements as one transaction: all of them, or none.

        Each item is a statement, or a tuple of a statement and its parameters. The `rows` of the result are those of
        the last statement. Raises the errors of `execute`.
        """
        return await self._transaction(sql_calls.transaction(self.stream, items), id)

    async def transaction_with(self, items: Iterable[Item], acknowledged: tuple[str, Acknowledge | Finish]) -> Result:
        """Execute statements as one transaction, only if this acknowledgement of a consumer of this stream counts."""
        batch = consumer_calls.with_acknowledgement(sql_calls.transaction(self.stream, items), *acknowledged)
        return await self._transaction(batch, None)

    async def _transaction(self, batch: Batch, id: Sequence[int] | None) -> Result:  # noqa: A002  as above
        if id is None:  # a retry was checked at its first attempt
            await self._executors.check()
        receipt = (await self._context.run(journal_calls.write(batch, id)))[0]
        self._index = max(self._index, receipt.index)
        try:
            result = await self._executors.result(receipt)
        except NotExecutor as why:
            raise sql_calls.untold(receipt, why) from None
        return checked(result)

    def writer(self) -> AsyncSqlWriter:
        """Return a writer, the fast way to execute many statements. Use it in an `async with` statement."""
        begin(self._executors.check)
        writer = AsyncSqlWriter(self._context, self.stream, self._executors)
        self._writers.append(writer)
        return writer

    async def query(self, sql: str, parameters: Parameters | None = None, local: bool = False) -> list[Row]:
        """Return the rows of a SELECT.

        The query sees everything that was committed when it began (a linearizable read). With `local`, it reads the
        state that the node has now. Either way it sees everything that was executed through this object.
        """
        return await self._context.run(sql_calls.query(self.stream, sql, parameters, self._known(), local))

    async def results(self, through: Sequence[int] | None = None, delete: bool = True) -> list[Result]:
        """Return and delete the stored results of this identity's requests, oldest first.

        They are those of the node that serves this client: of all requests of this object, and of other requests of the
        identity as far as the node has executed them. The rest comes with a later call. The results that `execute` has
        returned are included: only this method deletes results. With `through`, the id
        of a request, it returns only the results of that lane up to this request, and the results of requests that were
        executed together with it. With `delete=False` it deletes nothing, and returns only the oldest results: as many
        as fit into one answer of a node.
        """
        found: dict[RequestId, Result] = {}
        wanted = sql_calls.span(through)
        while wanted and (part := await self._context.run(sql_calls.unread(self.stream, self._known(), wanted))):
            found |= {
                one.id: one for one in part
            }  # after a change of nodes, results that were already read may come again
            if not delete:
                break
            await self._context.run(sql_calls.read_through(self.stream, part))
            wanted = sql_calls.span(through, part)
        return list(found.values())

    def _known(self) -> int:
        """The index of the last cluster message that contains a request of this object."""
        lasts = [writer.last.index for writer in self._writers if writer.last is not None]
        self._index = max([self._index, *lasts])
        self._writers = [writer for writer in self._writers if not writer.closed]
        return self._index
