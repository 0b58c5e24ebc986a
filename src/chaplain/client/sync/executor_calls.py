"""Requests of `Sql` to executors, apart from queries: whether there is an executor, and results of statements.

Keep it in step with `chaplain.client.aio.executor_calls`.
"""

from __future__ import annotations

from chaplain.client.api import sql_calls
from chaplain.client.sync.connection import ClientContext
from chaplain.client.types.journal import Receipt
from chaplain.client.types.sql import Result


class ExecutorCalls:
    """Asks for each thread by itself."""

    def __init__(self, context: ClientContext, stream: str) -> None:
        self._context = context
        self._stream = stream
        self.checked = False
        """True if a node is known that executes statements."""

    def check(self) -> None:
        """Raise before the first write if no node would execute the statement."""
        if not self.checked:
            self._context.run(sql_calls.check_executed(self._stream))
            self.checked = True

    def result(self, receipt: Receipt) -> Result:
        return self._context.run(sql_calls.result(self._stream, receipt))
