"""Requests of `AsyncSql` to executors, apart from queries: whether there is an executor, and results of statements.

Keep it in step with `chaplain.client.sync.executor_calls`.
"""

from __future__ import annotations

import asyncio

from chaplain.client.aio.connection import AsyncClientContext
from chaplain.client.api import sql_calls
from chaplain.client.types.journal import Receipt, RequestId
from chaplain.client.types.sql import Result
from chaplain.errors import ChaplainError, Closed


class AsyncExecutorCalls:
    """Shares the questions of many tasks: thousands of them may wait for one result each."""

    def __init__(self, context: AsyncClientContext, stream: str) -> None:
        self._context = context
        self._stream = stream
        self._wanted: dict[RequestId, tuple[Receipt, asyncio.Future[Result]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._check: asyncio.Task[None] | None = None

    @property
    def checked(self) -> bool:
        """True if a node is known that executes statements."""
        return self._check is not None and self._check.done() and not _failed(self._check)

    async def check(self) -> None:
        """Raise before the first write if no node would execute the statement. All tasks share one check."""
        if self._check is None or _failed(self._check):
            self._check = asyncio.create_task(self._context.run(sql_calls.check_executed(self._stream)))
        await asyncio.shield(self._check)

    async def result(self, receipt: Receipt) -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._wanted[receipt.id] = (receipt, future)
        if self._task is None:
            self._task = asyncio.create_task(self._collect())
        return await future

    async def _collect(self) -> None:
        """Send one question at a time. The next question contains all requests that arrived meanwhile."""
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


def _failed(task: asyncio.Task[None]) -> bool:
    """True if the check failed, also if no task awaited it: a later caller must not get that old error."""
    return task.done() and (task.cancelled() or task.exception() is not None)
