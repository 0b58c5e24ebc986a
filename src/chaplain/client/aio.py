"""`AsyncClient`: the face for asyncio. The same methods as `Client`, awaited; iterators are used with `async for`.

The engine runs in the program's own loop: there is no second thread.
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
from chaplain.client.io.asyncio_registry import LoopBoard
from chaplain.client.io.call_registry import CallRegistry, ListeningSink, Sink
from chaplain.client.io.item_buffer import Inbox
from chaplain.client.io.lifecycle import JOIN_S
from chaplain.client.io.write_coalescing import WriteCoalescer
from chaplain.client.types import validation
from chaplain.client.types.equivocation_proof import EquivocationProof
from chaplain.client.types.journal import AssemblyRecord, ClientRecord, Receipt, StreamRecord
from chaplain.client.types.results import (
    Acknowledgement,
    Answer,
    Event,
    Heard,
    Member,
    MemberNews,
    PoolMessage,
    Question,
)
from chaplain.errors import Closed, Misused

T = TypeVar("T")
Item = TypeVar("Item", bound=Heard)


class _Line(NotPicklable):
    """The engine and the board behind a client. Belongs to the loop's thread."""

    def __init__(self, opening: ConnectOptions) -> None:
        self.timeout_s = opening.timeout_s
        self.cluster = opening.cluster
        self.loop = asyncio.get_running_loop()
        self.engine = LoopEngine(*opening.build())
        self.board: CallRegistry = LoopBoard(self.engine.submit, self.loop)
        self.push = self.engine.push
        self._together: dict[str, WriteCoalescer] = {}
        self.engine.start(self.board)

    def together(self, stream: str) -> WriteCoalescer:
        return self._together.get(stream) or self._together.setdefault(stream, WriteCoalescer(self, stream))

    async def run(self, ask: PreparedCall[T]) -> T:
        timeout_s = self.timeout_s if ask.timeout_s is None else ask.timeout_s
        future: asyncio.Future[Any] = self.loop.create_future()
        call = self.board.open(lambda number: ask.build(number, int(timeout_s * 1e9)), Sink(future))
        try:
            return ask.read(await future)
        except asyncio.CancelledError:
            self.board.cancel(call)
            raise

    async def close(self) -> None:
        self.engine.stop(wait=False)
        if asyncio.get_running_loop() is self.loop:  # else its own has ended, and so has the engine
            await asyncio.wait([self.engine.gone], timeout=JOIN_S)


class _Listening(Generic[Item]):
    """One listening at the cluster, and what it brought that nobody took yet."""

    def __init__(self, line: _Line, ask: PreparedCall[None]) -> None:
        self._line = line
        self._inbox = Inbox()
        self._changed = asyncio.Event()
        self._begun: asyncio.Future[bytes] = line.loop.create_future()
        self._begun.add_done_callback(_retrieve)
        self._sink = ListeningSink(self._begun, self._inbox, self._changed.set)
        self._call = line.board.open(lambda number: ask.build(number, int(line.timeout_s * 1e9)), self._sink)

    @property
    def failed(self) -> bool:
        """It brings nothing more, or never began."""
        return self._sink.error is not None or (self._begun.done() and self._begun.exception() is not None)

    async def begun(self) -> None:
        await asyncio.shield(self._begun)

    async def take(self, timeout_s: float | None) -> Item | None:
        """The next item, or None if nothing new came for so long."""
        self._line.board.check()
        await self.begun()
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
        self._line.board.cancel(self._call)


class AsyncListener(NotPicklable, Generic[Item]):
    """Iterates over what is heard; ends when nothing new came for `timeout` seconds, and may then be iterated again."""

    def __init__(self, listening: _Listening[Item], timeout_s: float | None, *, owner: bool) -> None:
        self._listening = listening
        self._timeout_s = timeout_s
        self._owner = owner

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        item = await self._listening.take(self._timeout_s)
        if item is None:
            raise StopAsyncIteration
        return item

    async def close(self) -> None:
        """Stop listening. A pool that was joined stays joined."""
        self._release()

    async def __aenter__(self) -> AsyncListener[Item]:
        await self._listening.begun()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def __del__(self) -> None:
        if getattr(self, "_owner", False):
            self._release()

    def _release(self) -> None:
        if self._owner:
            self._owner = False
            self._listening.end()


class AsyncPool:
    """A pool of the mesh: best-effort messages to whoever has joined it."""

    def __init__(self, line: _Line, name: str) -> None:
        self.name = name
        self._line = line
        self._joined: _Listening[PoolMessage] | None = None

    def __repr__(self) -> str:
        return f"AsyncPool({self.name!r})"

    async def join(self) -> None:
        """Hear everything that is broadcast to the pool from now on; it waits here until `listen` takes it."""
        await self._listening().begun()

    async def leave(self) -> None:
        """Hear no more; what was not taken yet is thrown away."""
        joined, self._joined = self._joined, None
        if joined is not None:
            joined.end()

    async def broadcast(self, value: bytes) -> None:
        """Send to everyone who has joined, this client included if it has."""
        await self._line.run(calls.broadcast(self.name, value))

    def listen(self, timeout: float | None = None) -> AsyncListener[PoolMessage]:
        """Messages as they come, until `timeout` seconds pass with nothing new. Joins the pool if need be."""
        wait_s = validation.wait_s(timeout)
        return AsyncListener(self._listening(), wait_s, owner=False)

    def _listening(self) -> _Listening[PoolMessage]:
        if self._joined is None or self._joined.failed:
            self._joined = _Listening(self._line, calls.join(self.name))
        return self._joined


class AsyncClient(NotPicklable):
    """A connection to a cluster, kept up through two of its nodes. Belongs to the loop it was entered in."""

    def __init__(self, opening: ConnectOptions) -> None:
        """Use `AsyncClient.connect`."""
        if not isinstance(opening, ConnectOptions):
            raise Misused(f"a client is made by connecting: AsyncClient.connect({opening!r})")
        self._opening: ConnectOptions | None = opening
        self._opened: _Line | None = None
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
        """As `Client.connect`; connects when entered with `async with`, or awaited."""
        opening = prepare(
            cluster,
            endpoints=endpoints,
            identity=identity,
            node_keys=node_keys,
            name=name,
            node=node,
            timeout_s=timeout,
        )
        return cls(opening)

    async def ping(self) -> float:
        """Seconds from a PING to its DECENACK, at the node that serves this client."""
        return await self._line.run(calls.ping())

    async def status(self) -> dict[str, Any]:
        """How the node that serves this client sees itself and the cluster."""
        return await self._line.run(calls.status())

    async def members(self) -> list[Member]:
        """The membership list of the node that serves this client."""
        return await self._line.run(calls.members())

    async def ask(self, question: str, timeout: float | None = None, content: bytes = b"") -> Answer:
        """Ask every member; decided as soon as half or more agree, or undecided after `timeout` seconds."""
        return await self._line.run(calls.ask(question, timeout, content))

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
        type: str,  # noqa: A002  the surface's name
        content: bytes = b"",
        target: int | None = None,
        *,
        acknowledge: bool = False,
        timeout: float | None = None,
    ) -> Acknowledgement | None:
        """Fire an event, to everyone or to the node that `target` names: its id, or its identifier.

        With `acknowledge`, wait until every node it is for has seen it, at most `timeout` seconds; gives which have.
        """
        if acknowledge:
            return await self._line.run(calls.fire_and_wait(type, content, target, timeout))
        await self._line.run(calls.fire(type, content, target))
        return None

    @overload
    def events(self, timeout: float | None = None) -> AsyncListener[Event]: ...

    @overload
    def events(self, timeout: float | None = None, *, members: bool) -> AsyncListener[Event | MemberNews]: ...

    def events(self, timeout: float | None = None, *, members: bool = False) -> AsyncListener[Any]:
        """Events as they are seen from now on, until `timeout` seconds pass with nothing new.

        With `members`, between them which nodes come and go and which pools they are in; each has its `kind`.
        """
        wait_s = validation.wait_s(timeout)
        return AsyncListener(_Listening(self._line, calls.listen(members)), wait_s, owner=True)

    def questions(self, question: str, timeout: float | None = None) -> AsyncListener[Question]:
        """Offer to answer this question, at the node that serves this client: it comes each time somebody asks."""
        wait_s = validation.wait_s(timeout)
        return AsyncListener(_Listening(self._line, calls.answer(question)), wait_s, owner=True)

    async def reply(self, question: Question, value: bytes) -> None:
        """Answer a question that came from `questions`."""
        await self._line.run(calls.reply(question, value))

    def pool(self, name: str) -> AsyncPool:
        validation.name("a pool's name", name)
        return self._pools.get(name) or self._pools.setdefault(name, AsyncPool(self._line, name))

    def journal(self, stream: str) -> AsyncJournal:
        """A stream of the journal, whether or not anything was written to it yet."""
        return AsyncJournal(self._line, stream)

    def sequence(self, stream: str) -> AsyncSequenceStream:
        """A stream of the sequence, whether or not anything was published to it yet."""
        return AsyncSequenceStream(self._line, stream)

    def sql(self, stream: str = "main") -> AsyncSql:
        """The database of a stream, whether or not anything was executed on it yet."""
        validation.journal_stream(stream)
        return self._sqls.get(stream) or self._sqls.setdefault(stream, AsyncSql(self._line, stream))

    def graph(self, stream: str) -> AsyncGraph:
        """A stream of the graph, whether or not anything was written to it yet."""
        return AsyncGraph(self._line, stream)

    async def resolve(self, id: Sequence[int] | None) -> Receipt | None:  # noqa: A002 the surface's name
        """What became of a write that raised `Unknown`: its receipt, or None if it is not written and never will be."""
        return await self._line.run(journal_calls.resolve(id))

    async def streams(self) -> list[StreamRecord]:
        """The journal's streams that this client may read, and how long they are."""
        found: list[StreamRecord] = []
        page = await self._line.run(journal_calls.streams())
        while page.after:
            found += page.streams
            page = await self._line.run(journal_calls.streams(page.after))
        return found + page.streams

    async def clients(self) -> list[ClientRecord]:
        """Every client that the cluster knows or knew. For admins."""
        return await self._line.run(journal_calls.clients())

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
        """Let the holder of a key in, with rights by patterns of streams; gives its ACL id. For admins.

        With a secret of 32 bytes it signs what it writes by HMAC with that.
        """
        wrapped = await self._line.run(journal_calls.wrap_secret(key, secret)) if secret else b""
        return await self._line.run(journal_calls.add_client(name, key, write, read, admin, wrapped=wrapped))

    async def remove_client(self, name: str) -> None:
        """End a client, its lanes and its sessions, for ever. For admins."""
        acl = journal_calls.find_client(name, await self.clients())
        await self._line.run(journal_calls.remove_client(acl))

    async def nodes(self) -> AssemblyRecord:
        """The nodes with their roles, the serializers, and the changes of them, as the configuration stream has it."""
        return await self._line.run(admin_calls.assembly())

    async def add_node(self, node: int, role: str, uri: str = "", key: str | bytes = b"", disk: str = "") -> str:
        """Give a node the role `executor`, `ingest` or `config`; gives the change's id. For admins.

        A new node comes with its address, its key and its disk id; `chaplain member add` makes all of them.
        """
        return await self._line.run(admin_calls.add_node(node, role, uri, key, disk))

    async def remove_node(self, node: int, role: str) -> str:
        """Take the role `executor`, or `ingest` with `config`, from a node; gives the change's id. For admins."""
        return await self._line.run(admin_calls.remove_node(node, role))

    async def new_serializers(self, nodes: Sequence[int]) -> str:
        """Have these nodes serialize, the first as master; gives the change's id. For admins."""
        return await self._line.run(admin_calls.new_serializers(nodes))

    async def checkpoint(self, through: int = 0) -> int:
        """Have every node write its state down; gives the message behind which. For admins.

        Once a quorum has it, nodes drop the log up to message `through`, whatever their settings keep.
        """
        return await self._line.run(admin_calls.checkpoint(through))

    async def proof(self, name: str) -> EquivocationProof:
        """The two requests by which a client was found to be compromised; anybody can check them. For admins."""
        acl = journal_calls.find_compromised(name, await self.clients())
        return await self._line.run(journal_calls.proof(acl))

    async def rotate_keys(self) -> dict[str, Any]:
        """Give every member a new cluster key and retire the old one; after half a minute, say who holds it up."""
        return await self._line.run(calls.rotate_keys())

    async def close(self) -> None:
        """End the connection; what is under way fails with `Closed`."""
        if self._opened is not None:
            await self._opened.close()

    @property
    def _line(self) -> _Line:
        if self._opened is None:
            raise Closed("not connected yet: write `async with AsyncClient.connect(...) as client`")
        return self._opened

    async def _start(self) -> AsyncClient:
        opening, self._opening = self._opening, None
        if opening is None:
            raise Closed("an AsyncClient connects once: make another")
        self._opened = _Line(opening)
        try:
            await self._opened.run(calls.connect(opening.timeout_s))
        except BaseException:
            await self.close()
            raise
        return self

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._start().__await__()

    async def __aenter__(self) -> AsyncClient:
        return self if self._opened is not None else await self._start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        line = getattr(self, "_opened", None)
        if line is not None and line.engine.running:
            line.engine.stop(wait=False)
            warnings.warn("an AsyncClient was not closed: use it in `async with`", ResourceWarning, stacklevel=2)


def _retrieve(future: asyncio.Future[bytes]) -> None:
    """Whoever takes items hears of the error; one nobody takes from need not be logged as lost."""
    if not future.cancelled():
        future.exception()
