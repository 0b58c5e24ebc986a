"""Listeners to events, news, questions and pools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Generic, TypeVar, cast

from chaplain.client.aio.connection import AsyncClientContext
from chaplain.client.aio.waiting import AsyncNotifier, begin
from chaplain.client.api import calls
from chaplain.client.api.calls import PreparedCall
from chaplain.client.api.no_copy import NotPicklable
from chaplain.client.io.call_registry import SubscriptionSink
from chaplain.client.types import validation
from chaplain.client.types.results import Delivery, ListenerItem, PoolMessage

Item = TypeVar("Item", bound=ListenerItem)


class AsyncSubscription(Generic[Item]):
    """One subscription at the cluster and the buffer of its items. It ends when it is garbage-collected."""

    def __init__(self, context: AsyncClientContext, prepared: PreparedCall[None]) -> None:
        self._context = context
        self._changed = AsyncNotifier()
        self._sink = SubscriptionSink(self._changed.notify)
        self._call = context.registry.submit_call(
            lambda number: prepared.build(number, int(context.timeout_s * 1e9)), self._sink
        )

    @property
    def failed(self) -> bool:
        """True if it yields no more items or failed to start."""
        return self._sink.error is not None

    async def started(self) -> None:
        """Wait until the subscription has started. Raises the error if it could not."""
        await self._changed.wait_for(self._has_started, None)

    async def take(self, timeout_s: float | None) -> Item | None:
        """Return the next item, or None after `timeout_s` seconds without a new one."""
        self._context.registry.check_usable()
        if not self._sink.started:
            await self.started()
        return await self._changed.wait_for(self._next_item, timeout_s)

    def end(self) -> None:
        self._context.registry.cancel(self._call)

    def _has_started(self) -> bool | None:
        if self._sink.started:
            return True
        if self._sink.error is not None:
            raise self._sink.error
        return None

    def _next_item(self) -> Item | None:
        item = self._sink.inbox.take()
        if item is None and self._sink.error is not None:
            raise self._sink.error
        return cast("Item | None", item)

    def __del__(self) -> None:
        if hasattr(self, "_call"):
            self.end()


class AsyncListener(NotPicklable, Generic[Item]):
    """Iterates over received items.

    Iteration ends after `timeout` seconds without a new item and can then be started again.
    """

    def __init__(self, subscription: AsyncSubscription[Item], timeout_s: float | None, *, owner: bool) -> None:
        self._subscription = subscription
        self._timeout_s = timeout_s
        self._owner = owner
        begin(subscription.started)

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        item = await self._subscription.take(self._timeout_s)
        if item is None:
            raise StopAsyncIteration
        return item

    async def close(self) -> None:
        """Stop listening. A pool that was joined stays joined."""
        if self._owner:
            self._subscription.end()

    async def __aenter__(self) -> AsyncListener[Item]:
        await self._subscription.started()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncMemberChannel:
    """One member of the cluster, as the receiver of messages (ALIVE of the mesh)."""

    def __init__(self, context: AsyncClientContext, member: int) -> None:
        self.id = calls.check_member("a member", member)
        self._context = context

    def __repr__(self) -> str:
        return f"AsyncMemberChannel({self.id!r})"

    async def send(self, value: bytes, timeout: float | None = None) -> Delivery:
        """Send a message to all clients that listen to messages at this member (`messages`).

        Waits at most `timeout` seconds (5 by default) for the member's acknowledgement. Returns whether the message was
        delivered, dropped or has expired. A message is never sent twice: if the connection is lost after it was sent,
        `Unknown` is raised. Needs the right to write `member/` and the node's id.
        """
        return await self._context.run(calls.send_to_member(self.id, value, timeout))


class AsyncPool:
    """A pool of the mesh: best-effort messages to every client that has joined."""

    def __init__(self, context: AsyncClientContext, name: str) -> None:
        self.name = name
        self._context = context
        self._changed = AsyncNotifier()
        self._joined: AsyncSubscription[PoolMessage] | None = None

    def __repr__(self) -> str:
        return f"AsyncPool({self.name!r})"

    async def join(self) -> None:
        """Join the pool: from now on its messages are buffered here until `listen` takes them."""
        await self._subscription().started()

    async def leave(self) -> None:
        """Leave the pool and discard the messages that were not taken."""
        joined, self._joined = self._joined, None
        if joined is not None:
            joined.end()

    async def broadcast(self, value: bytes) -> None:
        """Send a message to every client that has joined the pool. If this client has joined, it receives the message,
        too.
        """
        await self._context.run(calls.broadcast(self.name, value))

    def listen(self, timeout: float | None = None) -> AsyncListener[PoolMessage]:
        """Iterate over messages until `timeout` seconds pass without one. Joins the pool if necessary."""
        wait_s = validation.wait_s(timeout)
        return AsyncListener(self._subscription(), wait_s, owner=False)

    def _subscription(self) -> AsyncSubscription[PoolMessage]:
        self._context.registry.check_usable()
        with self._changed.lock:  # two threads must not join twice
            if self._joined is None or self._joined.failed:
                self._joined = AsyncSubscription(self._context, calls.join(self.name))
            return self._joined
