"""`Client`: the face for threads. Every method blocks until there is an answer, an error, or the timeout has passed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Condition, Lock, RLock
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, cast, overload

from chaplain.client.api import admin_calls, calls, journal_calls
from chaplain.client.api.calls import PreparedCall
from chaplain.client.api.graph import Graph
from chaplain.client.api.journal_sync import Journal
from chaplain.client.api.no_copy import NotPicklable
from chaplain.client.api.sequence import SequenceStream
from chaplain.client.api.sql_sync import Sql
from chaplain.client.connect.options import ConnectOptions, Secret, prepare
from chaplain.client.io.call_registry import CallRegistry, ListeningSink, Sink
from chaplain.client.io.item_buffer import Inbox
from chaplain.client.io.thread_engine import ThreadEngine
from chaplain.client.io.timeouts import nap
from chaplain.client.io.waiter import Waiter
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
from chaplain.errors import Misused, Unreachable

T = TypeVar("T")
Item = TypeVar("Item", bound=Heard)

_OVERTIME_S = 5.0
"""The core ends every call in time; this much later we stop believing in it."""


class _Line(NotPicklable):
    """The engine and the board behind a client, its pools and its listenings."""

    def __init__(self, opening: ConnectOptions) -> None:
        self.timeout_s = opening.timeout_s
        self.cluster = opening.cluster
        self.engine = ThreadEngine(*opening.build())
        self.board = CallRegistry(self.engine.submit)
        self.engine.start(self.board)

    def run(self, ask: PreparedCall[T]) -> T:
        waiter = Waiter()
        self.call(ask, Sink(waiter), waiter)
        return ask.read(waiter.result())

    def call(self, ask: PreparedCall[Any], sink: Sink, waiter: Waiter) -> int:
        """Make a call, and block until its waiter has something; gives its number."""
        timeout_s = self.timeout_s if ask.timeout_s is None else ask.timeout_s
        try:
            call = self.board.enter(sink)
            if not self.engine.call(ask.build(call, int(timeout_s * 1e9)), waiter, timeout_s + _OVERTIME_S):
                raise Unreachable("this client does not answer in time; close it and connect again")
        except BaseException:  # interrupted: nobody will take the answer
            self.board.abandon(sink)
            raise
        return call


class _Listening(Generic[Item]):
    """One listening at the cluster, and what it brought that nobody took yet."""

    def __init__(self, line: _Line, ask: PreparedCall[None]) -> None:
        self._line = line
        self._inbox = Inbox()
        self._lock = RLock()  # taken itself: on its way through a condition's `__enter__` a signal could leave it taken
        self._changed = Condition(self._lock)
        waiter = Waiter()
        self._sink = ListeningSink(waiter, self._inbox, self._knock)
        self._call = line.call(ask, self._sink, waiter)
        waiter.result()

    @property
    def failed(self) -> bool:
        """It brings nothing more."""
        return self._sink.error is not None

    def take(self, timeout_s: float | None) -> Item | None:
        """The next item, or None if nothing new came for so long."""
        self._line.board.check()
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while (item := self._inbox.take()) is None:
                if self._sink.error is not None:
                    raise self._sink.error
                left_s = None if end_s is None else end_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                with self._line.engine.attended:
                    self._changed.wait(nap(left_s))
        return cast("Item", item)

    def end(self) -> None:
        self._line.board.cancel(self._call)

    def _knock(self) -> None:
        with self._lock:
            self._changed.notify()


class Listener(NotPicklable, Generic[Item]):
    """Iterates over what is heard; ends when nothing new came for `timeout` seconds, and may then be iterated again."""

    def __init__(self, listening: _Listening[Item], timeout_s: float | None, *, owner: bool) -> None:
        self._listening = listening
        self._timeout_s = timeout_s
        self._owner = owner

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        item = self._listening.take(self._timeout_s)
        if item is None:
            raise StopIteration
        return item

    def close(self) -> None:
        """Stop listening. A pool that was joined stays joined."""
        if self._owner:
            self._owner = False
            self._listening.end()

    def __enter__(self) -> Listener[Item]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_owner", False):
            self.close()


class Pool:
    """A pool of the mesh: best-effort messages to whoever has joined it."""

    def __init__(self, line: _Line, name: str) -> None:
        self.name = name
        self._line = line
        self._lock = Lock()
        self._joined: _Listening[PoolMessage] | None = None

    def __repr__(self) -> str:
        return f"Pool({self.name!r})"

    def join(self) -> None:
        """Hear everything that is broadcast to the pool from now on; it waits here until `listen` takes it."""
        self._listening()

    def leave(self) -> None:
        """Hear no more; what was not taken yet is thrown away."""
        with self._lock:
            joined, self._joined = self._joined, None
        if joined is not None:
            joined.end()

    def broadcast(self, value: bytes) -> None:
        """Send to everyone who has joined, this client included if it has."""
        self._line.run(calls.broadcast(self.name, value))

    def listen(self, timeout: float | None = None) -> Listener[PoolMessage]:
        """Messages as they come, until `timeout` seconds pass with nothing new. Joins the pool if need be."""
        wait_s = validation.wait_s(timeout)
        return Listener(self._listening(), wait_s, owner=False)

    def _listening(self) -> _Listening[PoolMessage]:
        self._line.board.check()
        with self._lock:
            if self._joined is None or self._joined.failed:
                self._joined = _Listening(self._line, calls.join(self.name))
            return self._joined


class Client(NotPicklable):
    """A connection to a cluster, kept up through two of its nodes. Safe to use from many threads."""

    def __init__(self, opening: ConnectOptions) -> None:
        """Use `Client.connect`."""
        if not isinstance(opening, ConnectOptions):
            raise Misused(f"a client is made by connecting: Client.connect({opening!r})")
        self._line = _Line(opening)
        self._pools: dict[str, Pool] = {}
        self._sqls: dict[str, Sql] = {}
        try:
            self._line.run(calls.connect(opening.timeout_s))
        except BaseException:
            self.close()
            raise

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
    ) -> Client:
        """Connect through a cluster directory or file, or by endpoints; with neither, CHAPLAIN_CLUSTER says where."""
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

    def ping(self) -> float:
        """Seconds from a PING to its DECENACK, at the node that serves this client."""
        return self._line.run(calls.ping())

    def status(self) -> dict[str, Any]:
        """How the node that serves this client sees itself and the cluster."""
        return self._line.run(calls.status())

    def members(self) -> list[Member]:
        """The membership list of the node that serves this client."""
        return self._line.run(calls.members())

    def ask(self, question: str, timeout: float | None = None, content: bytes = b"") -> Answer:
        """Ask every member; decided as soon as half or more agree, or undecided after `timeout` seconds."""
        return self._line.run(calls.ask(question, timeout, content))

    @overload
    def fire(self, type: str, content: bytes = b"", target: int | None = None) -> None: ...

    @overload
    def fire(
        self,
        type: str,
        content: bytes = b"",
        target: int | None = None,
        *,
        acknowledge: Literal[True],
        timeout: float | None = None,
    ) -> Acknowledgement: ...

    @overload
    def fire(
        self,
        type: str,
        content: bytes = b"",
        target: int | None = None,
        *,
        acknowledge: bool,
        timeout: float | None = None,
    ) -> Acknowledgement | None: ...

    def fire(
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
            return self._line.run(calls.fire_and_wait(type, content, target, timeout))
        self._line.run(calls.fire(type, content, target))
        return None

    @overload
    def events(self, timeout: float | None = None) -> Listener[Event]: ...

    @overload
    def events(self, timeout: float | None = None, *, members: bool) -> Listener[Event | MemberNews]: ...

    def events(self, timeout: float | None = None, *, members: bool = False) -> Listener[Any]:
        """Events as they are seen from now on, until `timeout` seconds pass with nothing new.

        With `members`, between them which nodes come and go and which pools they are in; each has its `kind`.
        """
        wait_s = validation.wait_s(timeout)
        return Listener(_Listening(self._line, calls.listen(members)), wait_s, owner=True)

    def questions(self, question: str, timeout: float | None = None) -> Listener[Question]:
        """Offer to answer this question, at the node that serves this client: it comes each time somebody asks."""
        wait_s = validation.wait_s(timeout)
        return Listener(_Listening(self._line, calls.answer(question)), wait_s, owner=True)

    def reply(self, question: Question, value: bytes) -> None:
        """Answer a question that came from `questions`."""
        self._line.run(calls.reply(question, value))

    def pool(self, name: str) -> Pool:
        validation.name("a pool's name", name)
        return self._pools.get(name) or self._pools.setdefault(name, Pool(self._line, name))

    def journal(self, stream: str) -> Journal:
        """A stream of the journal, whether or not anything was written to it yet."""
        return Journal(self._line, stream)

    def sequence(self, stream: str) -> SequenceStream:
        """A stream of the sequence, whether or not anything was published to it yet."""
        return SequenceStream(self._line, stream)

    def sql(self, stream: str = "main") -> Sql:
        """The database of a stream, whether or not anything was executed on it yet."""
        validation.journal_stream(stream)
        return self._sqls.get(stream) or self._sqls.setdefault(stream, Sql(self._line, stream))

    def graph(self, stream: str) -> Graph:
        """A stream of the graph, whether or not anything was written to it yet."""
        return Graph(self._line, stream)

    def resolve(self, id: Sequence[int] | None) -> Receipt | None:  # noqa: A002 the surface's name
        """What became of a write that raised `Unknown`: its receipt, or None if it is not written and never will be."""
        return self._line.run(journal_calls.resolve(id))

    def streams(self) -> list[StreamRecord]:
        """The journal's streams that this client may read, and how long they are."""
        found: list[StreamRecord] = []
        page = self._line.run(journal_calls.streams())
        while page.after:
            found += page.streams
            page = self._line.run(journal_calls.streams(page.after))
        return found + page.streams

    def clients(self) -> list[ClientRecord]:
        """Every client that the cluster knows or knew. For admins."""
        return self._line.run(journal_calls.clients())

    def add_client(
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
        wrapped = self._line.run(journal_calls.wrap_secret(key, secret)) if secret else b""
        return self._line.run(journal_calls.add_client(name, key, write, read, admin, wrapped=wrapped))

    def remove_client(self, name: str) -> None:
        """End a client, its lanes and its sessions, for ever. For admins."""
        acl = journal_calls.find_client(name, self.clients())
        self._line.run(journal_calls.remove_client(acl))

    def nodes(self) -> AssemblyRecord:
        """The nodes with their roles, the serializers, and the changes of them, as the configuration stream has it."""
        return self._line.run(admin_calls.assembly())

    def add_node(self, node: int, role: str, uri: str = "", key: str | bytes = b"", disk: str = "") -> str:
        """Give a node the role `executor`, `ingest` or `config`; gives the change's id. For admins.

        A new node comes with its address, its key and its disk id; `chaplain member add` makes all of them.
        """
        return self._line.run(admin_calls.add_node(node, role, uri, key, disk))

    def remove_node(self, node: int, role: str) -> str:
        """Take the role `executor`, or `ingest` with `config`, from a node; gives the change's id. For admins."""
        return self._line.run(admin_calls.remove_node(node, role))

    def new_serializers(self, nodes: Sequence[int]) -> str:
        """Have these nodes serialize, the first as master; gives the change's id. For admins."""
        return self._line.run(admin_calls.new_serializers(nodes))

    def checkpoint(self, through: int = 0) -> int:
        """Have every node write its state down; gives the message behind which. For admins.

        Once a quorum has it, nodes drop the log up to message `through`, whatever their settings keep.
        """
        return self._line.run(admin_calls.checkpoint(through))

    def proof(self, name: str) -> EquivocationProof:
        """The two requests by which a client was found to be compromised; anybody can check them. For admins."""
        acl = journal_calls.find_compromised(name, self.clients())
        return self._line.run(journal_calls.proof(acl))

    def rotate_keys(self) -> dict[str, Any]:
        """Give every member a new cluster key and retire the old one; after half a minute, say who holds it up."""
        return self._line.run(calls.rotate_keys())

    def close(self) -> None:
        """End the connection; what is under way fails with `Closed`."""
        self._line.engine.stop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        line = getattr(self, "_line", None)
        if line is not None and line.engine.running:
            line.engine.stop(wait=False)
            warnings.warn("a Client was not closed: use it in a with statement", ResourceWarning, stacklevel=2)
