"""`AsyncClient`: the API for asyncio. Every method is awaited, every iterator used with `async for`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, overload

from msgspec import to_builtins

from chaplain.client.aio import proving
from chaplain.client.aio.connection import AsyncConnection
from chaplain.client.aio.consumer import first_offset_since
from chaplain.client.aio.graph import AsyncGraph
from chaplain.client.aio.journal import AsyncJournal
from chaplain.client.aio.listeners import AsyncListener, AsyncMemberChannel, AsyncPool, AsyncSubscription
from chaplain.client.aio.sequence import AsyncSequenceStream
from chaplain.client.aio.sql import AsyncSql
from chaplain.client.api import admin_calls, calls, consumer_calls, journal_calls, proof_calls
from chaplain.client.connect.options import ConnectOptions
from chaplain.client.types import validation
from chaplain.client.types.codecs import Codec, CodecName, T, codec_of
from chaplain.client.types.consumers import ConsumerRecord, ConsumerStart, check_start, full_name, start_offset
from chaplain.client.types.equivocation_proof import EquivocationProof
from chaplain.client.types.journal import ClientRecord, ClusterConfigRecord, Receipt, StreamRecord
from chaplain.client.types.results import Acknowledgement, Answer, Event, Member, MemberMessage, MemberNews, Question
from chaplain.errors import Forbidden, Missing
from chaplain.journal.messages.consumer import Remove, Reset
from chaplain.proofs.checkpoint import SignedCheckpoint
from chaplain.proofs.proof import Proof


class AsyncClient(AsyncConnection):
    """A connection to a cluster, for asyncio. Belongs to the event loop in which it was entered.

    The client keeps sessions with three nodes (`sessions_warm`), if the cluster has as many. One of them serves the
    requests, the others are ready to take over. When the serving node fails, reads, listeners and journal writes
    continue at another node. The client does not repeat a request that could take effect twice: such a request raises
    `Unknown`.

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
        self._pools: dict[str, AsyncPool] = {}
        self._sqls: dict[str, AsyncSql] = {}
        super().__init__(options)

    async def ping(self) -> float:
        """Measure the round trip to the node that serves this client, in seconds."""
        return await self._context.run(calls.ping())

    async def status(self) -> dict[str, Any]:
        """Return the status of the cluster as seen by the node that serves this client."""
        return await self._context.run(calls.status())

    async def members(self) -> list[Member]:
        """Return the membership list of the node that serves this client."""
        return await self._context.run(calls.members())

    async def ask(self, question: str, timeout: float | None = None, content: bytes = b"") -> Answer:
        """Ask every member a question and return the answer that at least half of them give.

        The answer is decided as soon as at least half of the members agree. It is returned undecided after `timeout`
        seconds (5 by default). `content` is sent along with the question.
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
        return AsyncListener(AsyncSubscription(self._context, calls.listen(members)), wait_s, owner=True)

    def questions(self, question: str, timeout: float | None = None) -> AsyncListener[Question]:
        """Offer to answer a question on behalf of the node that serves this client.

        Returns an iterator. Each time a member asks the question, it yields a `Question` to pass to `reply`. It ends
        after `timeout` seconds without one.
        """
        wait_s = validation.wait_s(timeout)
        return AsyncListener(AsyncSubscription(self._context, calls.answer(question)), wait_s, owner=True)

    async def reply(self, question: Question, value: bytes) -> None:
        """Answer a question that `questions` yielded."""
        await self._context.run(calls.reply(question, value))

    def member(self, id: int) -> AsyncMemberChannel:  # noqa: A002  part of the public API
        """Return a member, by its id or its 32-bit identifier, to send messages to its clients."""
        return AsyncMemberChannel(self._context, id)

    def messages(self, timeout: float | None = None) -> AsyncListener[MemberMessage]:
        """Return an iterator over messages that are sent from now on to the member that serves this client.

        Connect with `node=` to choose that member. The iterator ends after `timeout` seconds without a new message.
        Needs the right to read `member/` and the node's id.
        """
        wait_s = validation.wait_s(timeout)
        return AsyncListener(AsyncSubscription(self._context, calls.listen_to_messages()), wait_s, owner=True)

    def pool(self, name: str) -> AsyncPool:
        """Return the pool of this name. It is joined by `join` or `listen`, not by this call."""
        validation.name("a pool's name", name)
        return self._pools.get(name) or self._pools.setdefault(name, AsyncPool(self._context, name))

    @overload
    def journal(self, stream: str, codec: None = None) -> AsyncJournal: ...

    @overload
    def journal(self, stream: str, codec: CodecName) -> AsyncJournal[Any]: ...

    @overload
    def journal(self, stream: str, codec: type[T]) -> AsyncJournal[T]: ...

    @overload
    def journal(self, stream: str, codec: Codec[T]) -> AsyncJournal[T]: ...

    def journal(self, stream: str, codec: Any = None) -> AsyncJournal[Any]:
        """Return a stream of the journal. The stream exists from its first message on.

        With a codec, values are not bytes: `"json"` for any JSON values, a type for JSON of that type (a msgspec
        `Struct`, a dataclass, `list[int]`), `"arrow"` for tables of pyarrow, or an object with `encode` and `decode`.
        """
        return AsyncJournal(self._context, stream, codec_of(codec))

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
        """Find out the outcome of a write that raised `Unknown`: pass the `id` of the error.

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

    async def consumers(self, stream: str = "") -> list[ConsumerRecord]:
        """Return the named consumers of a stream, with their lag; without a stream, those of all streams that this
        client may read.
        """
        if stream:
            validation.journal_stream(stream)
        found: list[ConsumerRecord] = []
        after = ("", "")
        while True:
            page = await self._context.run(consumer_calls.page(stream, after))
            found += map(consumer_calls.record_of, page.consumers)
            after = page.after
            if not after[0]:
                return found

    async def consumer(self, stream: str, name: str) -> dict[str, Any]:
        """Return one consumer with its workers, slots and leased messages, as plain data."""
        validation.journal_stream(stream)
        _, described = await self._context.run(consumer_calls.state(stream, full_name(name)))
        if described is None:
            raise Missing(f"there is no consumer {name!r} of stream {stream!r}")
        found: dict[str, Any] = to_builtins(described)
        return found

    async def reset_consumer(self, stream: str, name: str, start: ConsumerStart = "earliest") -> None:
        """Let a consumer continue at another offset. Its workers have to join again, which they do by themselves.

        Needs the identity that created the consumer, or the admin right.
        """
        start = check_start(start)
        if isinstance(start, datetime):
            start = await first_offset_since(self._context, self.journal(stream), start)
        await self._manage_consumer(stream, Reset(full_name(name), start_offset(start)))

    async def remove_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer and its position. Needs the identity that created it, or the admin right."""
        await self._manage_consumer(stream, Remove(full_name(name)))

    async def _manage_consumer(self, stream: str, command: Reset | Remove) -> None:
        validation.journal_stream(stream)
        _, described = await self._context.run(consumer_calls.state(stream, command.name))
        if described is None:
            raise Missing(f"there is no consumer {command.name!r} of stream {stream!r}")
        if (await self._context.run(consumer_calls.tell(stream, [command]))).base_offset:
            raise Forbidden(f"only {described.owner!r}, who created the consumer, or an admin may do this")

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

    async def nodes(self) -> ClusterConfigRecord:
        """Return nodes, roles, serializers and reconfigurations, as recorded in the configuration stream."""
        return await self._context.run(admin_calls.cluster_config())

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

    async def prove(self, stream: str, offset: int) -> Proof:
        """Return a proof of one message, which anybody can check with the cluster's policy, without the cluster.

        Waits until a checkpoint that a majority of the nodes signed covers the message, about a second. The proof shows
        the message and at most 1 KiB of its neighbours in the same pack. Needs the right to read the stream. Raises
        `Missing` if the stream has no such message.
        """
        return await proving.prove(self._context, self.journal(stream), offset)

    async def snapshot(self, through: int = 0) -> int:
        """Make every node write a snapshot of its state. Needs the admin right.

        Returns the index of the last cluster message that the snapshot covers. Once a quorum has the snapshot, nodes
        delete the log up to message `through`, regardless of their retention settings.
        """
        return await self._context.run(admin_calls.checkpoint(through))

    @overload
    async def checkpoint(self) -> SignedCheckpoint: ...

    @overload
    async def checkpoint(self, through: int) -> int: ...

    async def checkpoint(self, through: int | None = None) -> SignedCheckpoint | int:
        """Return the newest checkpoint of the log's tree that a majority of the nodes signed; its `text` is the note.

        Raises `Refused` if there is none yet. With the argument `through` it calls `snapshot`, which had this name
        before.
        """
        if through is not None:
            return await self.snapshot(through)
        return await self._context.run(proof_calls.checkpoint())

    async def tile(self, name: str) -> bytes:
        """Return a tile of the log's tree by its name in tlog-tiles, such as `tile/0/003` or `tile/entries/003.p/17`.

        Raises `Missing` if the node does not have it.
        """
        return await self._context.run(proof_calls.tile(name))

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
