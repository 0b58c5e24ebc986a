"""The graph: `AsyncGraph`."""

from __future__ import annotations

from collections.abc import AsyncIterator

from chaplain.client.aio.connection import AsyncClientContext
from chaplain.client.api import graph_calls
from chaplain.client.api.graph_calls import GraphEvent, GraphReader, GraphReceipt, IdleTimeout
from chaplain.client.types import validation


class AsyncGraph:
    """A stream of the graph: writable on every node, even in a partition; all nodes converge to the same events."""

    def __init__(self, context: AsyncClientContext, stream: str) -> None:
        self.stream = validation.name("a stream's name", stream)
        self._context = context

    def __repr__(self) -> str:
        return f"AsyncGraph({self.stream!r})"

    async def append(self, value: bytes) -> GraphReceipt:
        """Append an event. When this returns, it is on the disk of the serving node and is being sent to all others."""
        return await self._context.run(graph_calls.append(self.stream, value))

    def read(
        self,
        unread: bool = False,
        follow: bool = False,
        timeout: float | None = None,
        *,
        only_read: bool | None = None,
    ) -> AsyncIterator[GraphEvent]:
        """Iterate over the events that are read now, in the agreed order: those that enough members have on disk.

        With `unread`, iterate over all events that the node has on disk. With `follow`, iterate over events in the
        order in which they were read (with `unread`: arrived), including new ones, until `timeout` seconds pass without
        one. A read right after an append waits up to a second until that event is read.
        """
        if only_read is not None:  # an earlier name for the opposite
            unread = not only_read
        reader = GraphReader(self.stream, only_read=not unread, follow=follow, timeout_s=self._context.timeout_s)
        return self._pages(reader, validation.wait_s(timeout))

    async def _pages(self, reader: GraphReader, wait_s: float | None) -> AsyncIterator[GraphEvent]:
        idle = IdleTimeout(wait_s)
        while not reader.done:
            events = reader.take(await self._context.run(reader.next_request()))
            for event in events:
                yield event
            if idle.expired_after(bool(events)):
                return
