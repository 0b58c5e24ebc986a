"""SQL for asyncio: `AsyncSql` and its `AsyncSqlWriter`. In step with `sql_sync`."""

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
    """Executes many statements, each its own transaction, in order, without waiting for one result."""

    async def execute(self, sql: str, parameters: Parameters | None = None) -> None:
        """Hand over one statement. What becomes of it is in `results`, whether it fails or not."""
        await self.write(sql_calls.statement(sql, parameters))


class AsyncSql:
    """The database of a stream: statements in one agreed order, executed alike on every node."""

    def __init__(self, line: AsyncJournalClientContext, stream: str) -> None:
        self.stream = validation.journal_stream(stream)
        self._line = line
        self._index = 0
        self._check: asyncio.Task[None] | None = None
        self._writers: list[AsyncSqlWriter] = []
        self._collector = _Collector(line, self.stream)

    def __repr__(self) -> str:
        return f"AsyncSql({self.stream!r})"

    async def execute(
        self,
        sql: str,
        parameters: Parameters | None = None,
        id: Sequence[int] | None = None,  # noqa: A002 the surface's name
    ) -> Result:
        """Execute one statement, with `?` or `:name` for parameters; raises `StatementFailed` if it failed.

        With the `id` of an `Unknown`: only if neither that one nor another retry of it is executed; else gives that
        one's result.
        """
        return await self.transaction([(sql, parameters or ())], id)

    async def transaction(self, items: Iterable[Item], id: Sequence[int] | None = None) -> Result:  # noqa: A002 likewise
        """Execute statements as one request: all of them, or none."""
        batch = sql_calls.transaction(self.stream, items)
        if id is None:  # else it was looked at when it was first tried
            await self._checked()
        receipt = (await self._line.run(journal_calls.write(batch, id)))[0]
        self._index = max(self._index, receipt.index)
        try:
            result = await self._collector.result(receipt)
        except NotExecutor as why:
            raise sql_calls.untold(receipt, why) from None
        return checked(result)

    def writer(self) -> AsyncSqlWriter:
        """The fast way for many: packs and pipelines; use it in an `async with` statement."""
        writer = AsyncSqlWriter(self._line, self.stream, False, SQL_TYPE)
        self._writers.append(writer)
        return writer

    async def query(self, sql: str, parameters: Parameters | None = None, local: bool = False) -> list[Row]:
        """Rows of a SELECT, after everything that was agreed when it began; with `local`, as the node has it now.

        In either case after everything that was executed through this object.
        """
        return await self._line.run(sql_calls.query(self.stream, sql, parameters, self._known(), local))

    async def results(self, through: Sequence[int] | None = None) -> list[Result]:
        """What became of requests of this identity, as far as it is kept, the oldest first; then it is deleted.

        Also of those whose result `execute` gave: only this deletes. With `through`, an id: of the requests of its lane
        up to it, and of those that were executed together with it.
        """
        found: dict[RequestId, Result] = {}
        wanted = sql_calls.span(through)
        while wanted and (part := await self._line.run(sql_calls.unread(self.stream, self._known(), wanted))):
            found |= {one.id: one for one in part}  # a node that we come to meanwhile may not know what we have read
            await self._line.run(sql_calls.read_through(self.stream, part))
            wanted = sql_calls.span(through, part)
        return list(found.values())

    async def _checked(self) -> None:
        """Nothing is written that nobody executes. Thousands may wait for the one answer."""
        if self._check is None or _failed(self._check):
            self._check = asyncio.create_task(self._line.run(sql_calls.check_executed(self.stream)))
        await asyncio.shield(self._check)

    def _known(self) -> int:
        """The last message that has something of ours."""
        lasts = [writer.last.index for writer in self._writers if writer.last is not None]
        self._index = max([self._index, *lasts])
        self._writers = [writer for writer in self._writers if not writer.closed]
        return self._index


def _failed(task: asyncio.Task[None]) -> bool:
    """Also one whose error nobody waited for: it must not be told to somebody who asks later."""
    return task.done() and (task.cancelled() or task.exception() is not None)


class _Collector:
    """Asks for results of many requests at once: thousands of tasks may wait for one each."""

    def __init__(self, line: AsyncJournalClientContext, stream: str) -> None:
        self._line = line
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
        """One question at a time; what comes meanwhile is in the next one."""
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
            found = await self._line.run(sql_calls.results_of_lane(self._stream, [one for one, _ in taken.values()]))
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
                self._wanted[name] = (receipt, future)  # the answer was full
            else:
                future.set_exception(sql_calls.lost())
