"""`AsyncClient`: the API for asyncio. It has the methods of `Client`, awaited; its iterators are used with `async for`.

The engine runs in the program's own event loop, without a second thread.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Generator, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast, overload

from chaplain.client.api import admin_calls, calls, journal_calls
from chaplain.client.api.calls import PreparedCall
from chaplain.client.api.graph import AsyncGraph
from chaplain.client.api.journal_aio import AsyncJournal
from chaplain.client.api.no_copy import NotPicklable
from chaplain.client.api.sequence import AsyncSequenceStream
from chaplain.client.api.sql_aio import AsyncSql
from chaplain.client.connect.options import ConnectOptions, Secret, prepare
from chaplain.client.io.asyncio_engine import LoopEngine
from chaplain.client.io.asyncio_registry import AsyncioCallRegistry
from chaplain.client.io.call_registry import CallRegistry, Completion, SubscriptionSink
from chaplain.client.io.item_buffer import Inbox
from chaplain.client.io.lifecycle import JOIN_TIMEOUT_S
from chaplain.client.io.write_coalescing import WriteCoalescer
from chaplain.client.types import validation
from chaplain.client.types.equivocation_proof import EquivocationProof
from chaplain.client.types.journal import AssemblyRecord, ClientRecord, Receipt, StreamRecord
from chaplain.client.types.results import (
    Acknowledgement,
    Answer,
    Event,
    ListenerItem,
    Member,
    MemberNews,
    PoolMessage,
    Question,
)
from chaplain.errors import Closed, Misused

T = TypeVar("T")
Item = TypeVar("Item", bound=ListenerItem)


class _ClientContext(NotPicklable):
    """The engine and the call registry of a client. Belongs to the loop's thread."""

    def __init__(self, options: ConnectOptions) -> None:
        self.timeout_s = options.timeout_s
        self.cluster = options.cluster
        self.loop = asyncio.get_running_loop()
        self.engine = LoopEngine(*options.build())
        self.registry: CallRegistry = AsyncioCallRegistry(self.engine.submit, self.loop)
        self.flush_now = self.engine.flush_now
        self._coalescers: dict[str, WriteCoalescer] = {}
        self.engine.start(self.registry)

    def coalescer(self, stream: str) -> WriteCoalescer:
        """The coalescer of single writes to this stream."""
        return self._coalescers.get(stream) or self._coalescers.setdefault(stream, WriteCoalescer(self, stream))

    async def run(self, prepared: PreparedCall[T]) -> T:
        """Make a call and return its result. Cancelling the coroutine cancels the call."""
        timeout_s = self.timeout_s if prepared.timeout_s is None else prepared.timeout_s
        future: asyncio.Future[Any] = self.loop.create_future()
        call = self.registry.submit_call(
            lambda number: prepared.build(number, int(timeout_s * 1e9)), Completion(future)
        )
        try:
            return prepared.read(await future)
        except asyncio.CancelledError:
            self.registry.cancel(call)
            raise

    async def close(self) -> None:
        self.engine.stop(wait=False)
        if asyncio.get_running_loop() is self.loop:  # otherwise the client's own loop has ended, and the engine with it
            await asyncio.wait([self.engine.closed], timeout=JOIN_TIMEOUT_S)


class _Subscription(Generic[Item]):
    """One subscription at the cluster and the buffer of its items."""

    def __init__(self, context: _ClientContext, prepared: PreparedCall[None]) -> None:
        self._context = context
        self._inbox = Inbox()
        self._changed = asyncio.Event()
        self._started: asyncio.Future[bytes] = context.loop.create_future()
        self._started.add_done_callback(_retrieve)
        self._sink = SubscriptionSink(self._started, self._inbox, self._changed.set)
        self._call = context.registry.submit_call(
            lambda number: prepared.build(number, int(context.timeout_s * 1e9)), self._sink
        )

    @property
    def failed(self) -> bool:
        """True if it yields no more items or failed to start."""
        return self._sink.error is not None or (self._started.done() and self._started.exception() is not None)

    async def started(self) -> None:
        """Wait until the subscription has started."""
        await asyncio.shield(self._started)

    async def take(self, timeout_s: float | None) -> Item | None:
        """Return the next item, or None after `timeout_s` seconds without a new one."""
        self._context.registry.check_usable()
        await self.started()
        try:
            async with asyncio.timeout(timeout_s):
                while (item := self._inbox.take()) is None:
                    if self._sink.error is not None:
                        raise self._sink.error
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return None
        return cast("Item", item)

    def end(self) -> None:
        self._context.registry.cancel(self._call)


class AsyncListener(NotPicklable, Generic[Item]):
    """Iterates over received items.

    Iteration ends after `timeout` seconds without a new item and can then be started again.
    """

    def __init__(self, subscription: _Subscription[Item], timeout_s: float | None, *, owner: bool) -> None:
        self._subscription = subscription
        self._timeout_s = timeout_s
        self._owner = owner

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        item = await self._subscription.take(self._timeout_s)
        if item is None:
            raise StopAsyncIteration
        return item

    async def close(self) -> None:
        """Stop listening. A pool that was joined stays joined."""
        self._grant_taken()

    async def __aenter__(self) -> AsyncListener[Item]:
        await self._subscription.started()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._grant_taken()

    def __del__(self) -> None:
        if getattr(self, "_owner", False):
            self._grant_taken()

    def _grant_taken(self) -> None:
        if self._owner:
            self._owner = False
            self._subscription.end()


class AsyncPool:
    """A pool of the mesh: best-effort messages to every client that has joined."""

    def __init__(self, context: _ClientContext, name: str) -> None:
        self.name = name
        self._context = context
        self._joined: _Subscription[PoolMessage] | None = None

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
        """Send a message to every client that has joined the pool, including this one if it has."""
        await self._context.run(calls.broadcast(self.name, value))

    def listen(self, timeout: float | None = None) -> AsyncListener[PoolMessage]:
        """Iterate over messages until `timeout` seconds pass without one. Joins the pool if necessary."""
        wait_s = validation.wait_s(timeout)
        return AsyncListener(self._subscription(), wait_s, owner=False)

    def _subscription(self) -> _Subscription[PoolMessage]:
        if self._joined is None or self._joined.failed:
            self._joined = _Subscription(self._context, calls.join(self.name))
        return self._joined


class AsyncClient(NotPicklable):
    """A connection to a cluster, for asyncio. Belongs to the event loop in which it was entered.

    The client keeps sessions with three nodes (`sessions_warm`), if the cluster has as many. One of them serves the
    requests, the others are ready to take over. When the serving node fails, reads, listeners and journal writes
    continue at another node. Requests whose repetition could take effect twice are not repeated: they raise `Unknown`.

    Any method may raise:

    - `Misused`: an argument has a wrong type or is out of range; nothing was sent;
    - `Refused`: the cluster rejected the request, for example for want of a right;
    - `Unreachable`: no node answered in time;
    - `Unknown`: the connection was lost between request and answer, so the request may or may not have taken effect;
    - `Busy`: too many calls are pending; nothing was sent;
    - `Closed`: the client was closed, or belongs to the parent process of a fork.
    """

    def __init__(self, options: ConnectOptions) -> None:
        """Use `AsyncClient.connect`."""
        if not isinstance(options, ConnectOptions):
            raise Misused(f"a client is made by connecting: AsyncClient.connect({options!r})")
        self._options: ConnectOptions | None = options
        self._open_context: _ClientContext | None = None
        self._pools: dict[str, AsyncPool] = {}
        self._sqls: dict[str, AsyncSql] = {}

    @classmethod
    def connect(
        cls,
        cluster: str | Path | None = None,
        *,
        endpoints: str | Sequence[str] | None = None,
        identity: Secret | None = None,
        node_keys: Sequence[str | bytes] | None = None,
        name: str | None = None,
        node: int | None = None,
        timeout: float = 10.0,
    ) -> AsyncClient:
        """Prepare a connection, which is made by `async with` or `await`. Takes the arguments of `Client.connect`.

        Raises `ConfigError` at once if a setting is missing or a file is unreadable. Entering or awaiting raises
        `Refused` or `Unreachable`, as `Client.connect` does.
        """
        options = prepare(
            cluster,
            endpoints=endpoints,
            identity=identity,
            node_keys=node_keys,
            name=name,
            node=node,
            timeout_s=timeout,
        )
        return cls(options)

    async def ping(self) -> float:
        """Measure the round trip to the node that serves this client, in seconds."""
        return await self._context.run(calls.ping())

    async def status(self) -> dict[str, Any]:
        """Return how the node that serves this client sees itself and the cluster."""
        return await self._context.run(calls.status())

    async def members(self) -> list[Member]:
        """Return the membership list of the node that serves this client."""
        return await self._context.run(calls.members())

    async def ask(self, question: str, timeout: float | None = None, content: bytes = b"") -> Answer:
        """Ask every member a question and return the answer that half or more of them give.

        The answer is decided as soon as half or more of the members agree. After `timeout` seconds (5 by default) it is
        returned undecided. `content` is sent along with the question.
        """
        return await self._context.run(calls.ask(question, timeout, content))

    @overload
    async def fire(self, type: str, content: bytes = b"", target: int | None = None) -> None: ...

    @overload
    async def fire(
        self,
        type: str,
        content: bytes = b"",
        target: int | None = None,
        *,
        acknowledge: Literal[True],
        timeout: float | None = None,
    ) -> Acknowledgement: ...

    @overload
    async def fire(
        self,
        type: str,
        content: bytes = b"",
        target: int | None = None,
        *,
        acknowledge: bool,
        timeout: float | None = None,
    ) -> Acknowledgement | None: ...

    async def fire(
        self,
        type: str,  # noqa: A002  part of the public API
        content: bytes = b"",
        target: int | None = None,
        *,
        acknowledge: bool = False,
        timeout: float | None = None,
    ) -> Acknowledgement | None:
        """Fire an event to all nodes, or to one node: `target` is its id or its 32-bit identifier.

        With `acknowledge`, wait at most `timeout` seconds (5 by default) until every addressed node has seen the event,
        and return which nodes have. Otherwise return at once, without a guarantee of delivery. An event is never fired
        twice: if the connection is lost after it was sent, `Unknown` is raised.
        """
        if acknowledge:
            return await self._context.run(calls.fire_and_wait(type, content, target, timeout))
        await self._context.run(calls.fire(type, content, target))
        return None

    @overload
    def events(self, timeout: float | None = None) -> AsyncListener[Event]: ...

    @overload
    def events(self, timeout: float | None = None, *, members: bool) -> AsyncListener[Event | MemberNews]: ...

    def events(self, timeout: float | None = None, *, members: bool = False) -> AsyncListener[Any]:
        """Return an iterator over events that are fired from now on. It ends after `timeout` seconds without a new one.

        With `members`, it also yields `MemberNews`: nodes that connect, disconnect, join or leave pools, and changes of
        the membership list. The `kind` of each item tells them apart.
        """
        wait_s = validation.wait_s(timeout)
        return AsyncListener(_Subscription(self._context, calls.listen(members)), wait_s, owner=True)

    def questions(self, question: str, timeout: float | None = None) -> AsyncListener[Question]:
        """Offer to answer a question on behalf of the node that serves this client.

        Returns an iterator. Each time a member asks the question, it yields a `Question` to pass to `reply`. It ends
        after `timeout` seconds without one.
        """
        wait_s = validation.wait_s(timeout)
        return AsyncListener(_Subscription(self._context, calls.answer(question)), wait_s, owner=True)

    async def reply(self, question: Question, value: bytes) -> None:
        """Answer a question that `questions` yielded."""
        await self._context.run(calls.reply(question, value))

    def pool(self, name: str) -> AsyncPool:
        """Return the pool of this name. It is joined by `join` or `listen`, not by this call."""
        validation.name("a pool's name", name)
        return self._pools.get(name) or self._pools.setdefault(name, AsyncPool(self._context, name))

    def journal(self, stream: str) -> AsyncJournal:
        """Return a stream of the journal. The stream exists from its first message on."""
        return AsyncJournal(self._context, stream)

    def sequence(self, stream: str) -> AsyncSequenceStream:
        """Return a stream of the sequence. The first published event creates the stream."""
        return AsyncSequenceStream(self._context, stream)

    def sql(self, stream: str = "main") -> AsyncSql:
        """Return the SQL database of a stream. The stream exists from its first statement on."""
        validation.journal_stream(stream)
        return self._sqls.get(stream) or self._sqls.setdefault(stream, AsyncSql(self._context, stream))

    def graph(self, stream: str) -> AsyncGraph:
        """Return a stream of the graph. The stream exists from its first event on."""
        return AsyncGraph(self._context, stream)

    async def resolve(self, id: Sequence[int] | None) -> Receipt | None:  # noqa: A002  part of the public API
        """Find out what became of a write that raised `Unknown`: pass the `id` of the error.

        Returns the receipt, or None if the write is not in the log and never will be. Raises `Unknown` if the write is
        so old that the cluster no longer knows, and `Missing` if no request has this id.
        """
        return await self._context.run(journal_calls.resolve(id))

    async def streams(self) -> list[StreamRecord]:
        """Return the journal streams that this client may read, with their lengths."""
        found: list[StreamRecord] = []
        page = await self._context.run(journal_calls.streams())
        while page.after:
            found += page.streams
            page = await self._context.run(journal_calls.streams(page.after))
        return found + page.streams

    async def clients(self) -> list[ClientRecord]:
        """Return all clients of the cluster, including removed and compromised ones. Needs the admin right."""
        return await self._context.run(journal_calls.clients())

    async def add_client(
        self,
        name: str,
        key: str | bytes,
        write: Sequence[str] = ("*",),
        read: Sequence[str] = ("*",),
        admin: bool = False,
        *,
        secret: bytes = b"",
    ) -> str:
        """Register a client by its public key. Returns its ACL id. Needs the admin right.

        `write` and `read` are patterns of the streams that it may write and read.

        With a `secret` of 32 bytes, the client signs its writes by HMAC with this secret instead of by Ed25519.
        """
        wrapped = await self._context.run(journal_calls.wrap_secret(key, secret)) if secret else b""
        return await self._context.run(journal_calls.add_client(name, key, write, read, admin, wrapped=wrapped))

    async def remove_client(self, name: str) -> None:
        """Remove a client, its lanes and its sessions permanently. Needs the admin right."""
        acl = journal_calls.find_client(name, await self.clients())
        await self._context.run(journal_calls.remove_client(acl))

    async def nodes(self) -> AssemblyRecord:
        """Return nodes, roles, serializers and reconfigurations, as recorded in the configuration stream."""
        return await self._context.run(admin_calls.assembly())

    async def add_node(self, node: int, role: str, uri: str = "", key: str | bytes = b"", disk: str = "") -> str:
        """Give a node the role `executor`, `ingest` or `config`. Needs the admin right.

        Returns the id of the reconfiguration. A node that is new to the cluster needs its address, key and disk id;
        `chaplain member add` creates them.
        """
        return await self._context.run(admin_calls.add_node(node, role, uri, key, disk))

    async def remove_node(self, node: int, role: str) -> str:
        """Take the role `executor`, or the roles `ingest` and `config`, from a node. Needs the admin right.

        Returns the id of the reconfiguration.
        """
        return await self._context.run(admin_calls.remove_node(node, role))

    async def new_serializers(self, nodes: Sequence[int]) -> str:
        """Make these nodes the serializers, the first one the master. Needs the admin right.

        Returns the id of the reconfiguration.
        """
        return await self._context.run(admin_calls.new_serializers(nodes))

    async def checkpoint(self, through: int = 0) -> int:
        """Make every node write a snapshot of its state. Needs the admin right.

        Returns the index of the last cluster message that the snapshot covers. Once a quorum has the snapshot, nodes
        delete the log up to message `through`, regardless of their retention settings.
        """
        return await self._context.run(admin_calls.checkpoint(through))

    async def proof(self, name: str) -> EquivocationProof:
        """Return the two conflicting requests that prove a client compromised. Needs the admin right.

        Anyone can verify the proof: see `EquivocationProof.holds`.
        """
        acl = journal_calls.find_compromised(name, await self.clients())
        return await self._context.run(journal_calls.proof(acl))

    async def rotate_keys(self) -> dict[str, Any]:
        """Replace the cluster key on every member and retire the old one. Needs the admin right.

        Raises `Refused` after 30 seconds with the members that have not confirmed; both keys then stay valid: call it
        again.
        """
        return await self._context.run(calls.rotate_keys())

    async def close(self) -> None:
        """Close the connection. Pending calls fail with `Closed`; a write in flight fails with `Unknown`."""
        if self._open_context is not None:
            await self._open_context.close()

    @property
    def _context(self) -> _ClientContext:
        """The context of the open connection; raises `Closed` before it is made."""
        if self._open_context is None:
            raise Closed("not connected yet: write `async with AsyncClient.connect(...) as client`")
        return self._open_context

    async def _start(self) -> AsyncClient:
        options, self._options = self._options, None
        if options is None:
            raise Closed("an AsyncClient connects once: make another")
        self._open_context = _ClientContext(options)
        try:
            await self._open_context.run(calls.connect(options.timeout_s))
        except BaseException:
            await self.close()
            raise
        return self

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._start().__await__()

    async def __aenter__(self) -> AsyncClient:
        return self if self._open_context is not None else await self._start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        context = getattr(self, "_open_context", None)
        if context is not None and context.engine.running:
            context.engine.stop(wait=False)
            warnings.warn("an AsyncClient was not closed: use it in `async with`", ResourceWarning, stacklevel=2)


def _retrieve(future: asyncio.Future[bytes]) -> None:
    """Mark the error as retrieved: the listener raises it, so asyncio must not log it as lost."""
    if not future.cancelled():
        future.exception()
