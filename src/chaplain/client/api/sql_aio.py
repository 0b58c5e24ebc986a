"""SQL for asyncio: `AsyncSql` and its `AsyncSqlWriter`. Keep it in step with `sql_sync`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from chaplain.client.api import journal_calls, sql_calls
from chaplain.client.api.journal_aio import AsyncJournalClientContext, AsyncWriter
from chaplain.client.api.sql_calls import Item, Parameters
from chaplain.client.types import validation
from chaplain.client.types.journal import Receipt, RequestId
from chaplain.client.types.sql import Result, Row, checked
from chaplain.errors import ChaplainError, Closed, NotExecutor
from chaplain.executor.statement import SQL_TYPE


class AsyncSqlWriter(AsyncWriter):
    """Executes many statements in order, each its own transaction, without waiting for each result."""

    async def execute(self, sql: str, parameters: Parameters | None = None) -> None:
        """Submit one statement. Its result, or its failure, appears in `AsyncSql.results`."""
        await self.write(sql_calls.statement(sql, parameters))


class AsyncSql:
    """The SQL database of a stream: statements in one agreed order, executed identically on every executor."""

    def __init__(self, context: AsyncJournalClientContext, stream: str) -> None:
        self.stream = validation.journal_stream(stream)
        self._context = context
        self._index = 0
        self._check: asyncio.Task[None] | None = None
        self._writers: list[AsyncSqlWriter] = []
        self._collector = _Collector(context, self.stream)

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
        log. Otherwise the result of that one is returned.
        """
        return await self.transaction([(sql, parameters or ())], id)

    async def transaction(self, items: Iterable[Item], id: Sequence[int] | None = None) -> Result:  # noqa: A002  likewise
        """Execute statements as one transaction: all of them, or none.

        Each item is a statement, or a tuple of a statement and its parameters. The `rows` of the result are those of
        the last statement. Raises the errors of `execute`.
        """
        batch = sql_calls.transaction(self.stream, items)
        if id is None:  # a retry was checked at its first attempt
            await self._checked()
        receipt = (await self._context.run(journal_calls.write(batch, id)))[0]
        self._index = max(self._index, receipt.index)
        try:
            result = await self._collector.result(receipt)
        except NotExecutor as why:
            raise sql_calls.untold(receipt, why) from None
        return checked(result)

    def writer(self) -> AsyncSqlWriter:
        """Return a writer, the fast way to execute many statements. Use it in an `async with` statement."""
        writer = AsyncSqlWriter(self._context, self.stream, False, SQL_TYPE)
        self._writers.append(writer)
        return writer

    async def query(self, sql: str, parameters: Parameters | None = None, local: bool = False) -> list[Row]:
        """Return the rows of a SELECT.

        The query sees everything that was committed when it began (a linearizable read). With `local`, it reads the
        state that the node has now. Either way it sees everything that was executed through this object.
        """
        return await self._context.run(sql_calls.query(self.stream, sql, parameters, self._known(), local))

    async def results(self, through: Sequence[int] | None = None) -> list[Result]:
        """Return and delete the stored results of this identity's requests, oldest first.

        The results that `execute` has returned are included: only this method deletes results. With `through`, the id
        of a request, it returns only the results of that lane up to this request, and those of requests that were
        executed together with it.
        """
        found: dict[RequestId, Result] = {}
        wanted = sql_calls.span(through)
        while wanted and (part := await self._context.run(sql_calls.unread(self.stream, self._known(), wanted))):
            found |= {
                one.id: one for one in part
            }  # after a change of nodes, results that were already read may come again
            await self._context.run(sql_calls.read_through(self.stream, part))
            wanted = sql_calls.span(through, part)
        return list(found.values())

    async def _checked(self) -> None:
        """Raise before the first write if no node would execute the statement. All tasks share one check."""
        if self._check is None or _failed(self._check):
            self._check = asyncio.create_task(self._context.run(sql_calls.check_executed(self.stream)))
        await asyncio.shield(self._check)

    def _known(self) -> int:
        """The index of the last cluster message that contains a request of this object."""
        lasts = [writer.last.index for writer in self._writers if writer.last is not None]
        self._index = max([self._index, *lasts])
        self._writers = [writer for writer in self._writers if not writer.closed]
        return self._index


def _failed(task: asyncio.Task[None]) -> bool:
    """True if the check failed, also if no task awaited it: a later caller must not get that old error."""
    return task.done() and (task.cancelled() or task.exception() is not None)


class _Collector:
    """Fetches the results of many requests with one question, because thousands of tasks may wait for one each."""

    def __init__(self, context: AsyncJournalClientContext, stream: str) -> None:
        self._context = context
        self._stream = stream
        self._wanted: dict[RequestId, tuple[Receipt, asyncio.Future[Result]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def result(self, receipt: Receipt) -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._wanted[receipt.id] = (receipt, future)
        if self._task is None:
            self._task = asyncio.create_task(self._collect())
        return await future

    async def _collect(self) -> None:
        """Send one question at a time; requests that arrive meanwhile are in the next one."""
        try:
            while self._wanted:
                lane = next(iter(self._wanted)).client_id
                taken = {name: wanted for name, wanted in self._wanted.items() if name.client_id == lane}
                self._wanted = {name: wanted for name, wanted in self._wanted.items() if name not in taken}
                await self._ask(taken)
        finally:
            self._task = None

    async def _ask(self, taken: dict[RequestId, tuple[Receipt, asyncio.Future[Result]]]) -> None:
        try:
            found = await self._context.run(sql_calls.results_of_lane(self._stream, [one for one, _ in taken.values()]))
        except BaseException as error:
            for _, future in taken.values():
                if not future.done():
                    future.set_exception(error if isinstance(error, ChaplainError) else Closed("the client was closed"))
            if not isinstance(error, ChaplainError):
                raise
            return
        last = max(found, default=0)
        for name, (receipt, future) in taken.items():
            if future.done():
                continue
            if name.client_message_id in found:
                future.set_result(found[name.client_message_id])
            elif 0 < last < name.client_message_id:
                self._wanted[name] = (receipt, future)  # the answer had no room for it: ask again
            else:
                future.set_exception(sql_calls.lost())
