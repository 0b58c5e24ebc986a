"""`Client`: the API for threads. Every method blocks until it has an answer, fails, or its timeout has passed."""

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
from chaplain.client.io.call_registry import CallRegistry, Completion, SubscriptionSink
from chaplain.client.io.item_buffer import Inbox
from chaplain.client.io.thread_engine import ThreadEngine
from chaplain.client.io.timeouts import wait_slice
from chaplain.client.io.waiter import Waiter
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
from chaplain.errors import Misused, Unreachable

T = TypeVar("T")
Item = TypeVar("Item", bound=ListenerItem)

_GRACE_S = 5.0
"""The core ends every call in time. This much later the client itself is considered defective."""


class _ClientContext(NotPicklable):
    """The engine and the call registry of a client, shared by its pools, streams and listeners."""

    def __init__(self, options: ConnectOptions) -> None:
        self.timeout_s = options.timeout_s
        self.cluster = options.cluster
        self.engine = ThreadEngine(*options.build())
        self.registry = CallRegistry(self.engine.submit)
        self.engine.start(self.registry)

    def run(self, prepared: PreparedCall[T]) -> T:
        """Make a call and return its result."""
        waiter = Waiter()
        self.call(prepared, Completion(waiter), waiter)
        return prepared.read(waiter.result())

    def call(self, prepared: PreparedCall[Any], sink: Completion, waiter: Waiter) -> int:
        """Make a call, block until its waiter is finished, and return the call's number."""
        timeout_s = self.timeout_s if prepared.timeout_s is None else prepared.timeout_s
        try:
            call = self.registry.register(sink)
            if not self.engine.call(prepared.build(call, int(timeout_s * 1e9)), waiter, timeout_s + _GRACE_S):
                raise Unreachable("this client does not answer in time; close it and connect again")
        except BaseException:  # interrupted: no caller will take the answer
            self.registry.cancel_sink(sink)
            raise
        return call


class _Subscription(Generic[Item]):
    """One subscription at the cluster and the buffer of its items."""

    def __init__(self, context: _ClientContext, prepared: PreparedCall[None]) -> None:
        self._context = context
        self._inbox = Inbox()
        self._lock = RLock()  # acquired directly: a signal inside `Condition.__enter__` could leave it locked
        self._changed = Condition(self._lock)
        waiter = Waiter()
        self._sink = SubscriptionSink(waiter, self._inbox, self._notify)
        self._call = context.call(prepared, self._sink, waiter)
        waiter.result()

    @property
    def failed(self) -> bool:
        """True if it yields no more items."""
        return self._sink.error is not None

    def take(self, timeout_s: float | None) -> Item | None:
        """Return the next item, or None after `timeout_s` seconds without a new one."""
        self._context.registry.check_usable()
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while (item := self._inbox.take()) is None:
                if self._sink.error is not None:
                    raise self._sink.error
                left_s = None if end_s is None else end_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                with self._context.engine.passive_wait:
                    self._changed.wait(wait_slice(left_s))
        return cast("Item", item)

    def end(self) -> None:
        self._context.registry.cancel(self._call)

    def _notify(self) -> None:
        with self._lock:
            self._changed.notify()


class Listener(NotPicklable, Generic[Item]):
    """Iterates over received items.

    Iteration ends after `timeout` seconds without a new item and can then be started again.
    """

    def __init__(self, subscription: _Subscription[Item], timeout_s: float | None, *, owner: bool) -> None:
        self._subscription = subscription
        self._timeout_s = timeout_s
        self._owner = owner

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        item = self._subscription.take(self._timeout_s)
        if item is None:
            raise StopIteration
        return item

    def close(self) -> None:
        """Stop listening. A pool that was joined stays joined."""
        if self._owner:
            self._owner = False
            self._subscription.end()

    def __enter__(self) -> Listener[Item]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_owner", False):
            self.close()


class Pool:
    """A pool of the mesh: best-effort messages to every client that has joined."""

    def __init__(self, context: _ClientContext, name: str) -> None:
        self.name = name
        self._context = context
        self._lock = Lock()
        self._joined: _Subscription[PoolMessage] | None = None

    def __repr__(self) -> str:
        return f"Pool({self.name!r})"

    def join(self) -> None:
        """Join the pool: from now on its messages are buffered here until `listen` takes them."""
        self._subscription()

    def leave(self) -> None:
        """Leave the pool and discard the messages that were not taken."""
        with self._lock:
            joined, self._joined = self._joined, None
        if joined is not None:
            joined.end()

    def broadcast(self, value: bytes) -> None:
        """Send a message to every client that has joined the pool, including this one if it has."""
        self._context.run(calls.broadcast(self.name, value))

    def listen(self, timeout: float | None = None) -> Listener[PoolMessage]:
        """Iterate over messages until `timeout` seconds pass without one. Joins the pool if necessary."""
        wait_s = validation.wait_s(timeout)
        return Listener(self._subscription(), wait_s, owner=False)

    def _subscription(self) -> _Subscription[PoolMessage]:
        self._context.registry.check_usable()
        with self._lock:
            if self._joined is None or self._joined.failed:
                self._joined = _Subscription(self._context, calls.join(self.name))
            return self._joined


class Client(NotPicklable):
    """A connection to a cluster. Safe to use from many threads; use it in a `with` statement.

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
        """Use `Client.connect`."""
        if not isinstance(options, ConnectOptions):
            raise Misused(f"a client is made by connecting: Client.connect({options!r})")
        self._context = _ClientContext(options)
        self._pools: dict[str, Pool] = {}
        self._sqls: dict[str, Sql] = {}
        try:
            self._context.run(calls.connect(options.timeout_s))
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
        """Connect to a cluster and return once the first session is up.

        The cluster is given by its directory, by its `cluster.toml`, or by `endpoints` (a list, or a string with
        commas). Without either, the environment variable CHAPLAIN_CLUSTER names it. Explicit arguments take precedence
        over the environment, the environment over the cluster file, and that over the identity file.

        `identity` is an `Identity` or the path of its file (default: CHAPLAIN_IDENTITY, then the cluster file).
        `node_keys` are the public keys of the nodes, `name` is the cluster's name. With `node`, the client talks to
        this node alone. `timeout` is the time limit in seconds for connecting and the default for every later call.

        Raises `ConfigError` if a setting is missing or a file is unreadable, `Refused` if every node rejects this
        client, and `Unreachable` if no node answers within `timeout` seconds.
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

    def ping(self) -> float:
        """Measure the round trip to the node that serves this client, in seconds."""
        return self._context.run(calls.ping())

    def status(self) -> dict[str, Any]:
        """Return how the node that serves this client sees itself and the cluster."""
        return self._context.run(calls.status())

    def members(self) -> list[Member]:
        """Return the membership list of the node that serves this client."""
        return self._context.run(calls.members())

    def ask(self, question: str, timeout: float | None = None, content: bytes = b"") -> Answer:
        """Ask every member a question and return the answer that half or more of them give.

        The answer is decided as soon as half or more of the members agree. After `timeout` seconds (5 by default) it is
        returned undecided. `content` is sent along with the question.
        """
        return self._context.run(calls.ask(question, timeout, content))

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
            return self._context.run(calls.fire_and_wait(type, content, target, timeout))
        self._context.run(calls.fire(type, content, target))
        return None

    @overload
    def events(self, timeout: float | None = None) -> Listener[Event]: ...

    @overload
    def events(self, timeout: float | None = None, *, members: bool) -> Listener[Event | MemberNews]: ...

    def events(self, timeout: float | None = None, *, members: bool = False) -> Listener[Any]:
        """Return an iterator over events that are fired from now on. It ends after `timeout` seconds without a new one.

        With `members`, it also yields `MemberNews`: nodes that connect, disconnect, join or leave pools, and changes of
        the membership list. The `kind` of each item tells them apart.
        """
        wait_s = validation.wait_s(timeout)
        return Listener(_Subscription(self._context, calls.listen(members)), wait_s, owner=True)

    def questions(self, question: str, timeout: float | None = None) -> Listener[Question]:
        """Offer to answer a question on behalf of the node that serves this client.

        Returns an iterator. Each time a member asks the question, it yields a `Question` to pass to `reply`. It ends
        after `timeout` seconds without one.
        """
        wait_s = validation.wait_s(timeout)
        return Listener(_Subscription(self._context, calls.answer(question)), wait_s, owner=True)

    def reply(self, question: Question, value: bytes) -> None:
        """Answer a question that `questions` yielded."""
        self._context.run(calls.reply(question, value))

    def pool(self, name: str) -> Pool:
        """Return the pool of this name. It is joined by `join` or `listen`, not by this call."""
        validation.name("a pool's name", name)
        return self._pools.get(name) or self._pools.setdefault(name, Pool(self._context, name))

    def journal(self, stream: str) -> Journal:
        """Return a stream of the journal. The stream exists from its first message on."""
        return Journal(self._context, stream)

    def sequence(self, stream: str) -> SequenceStream:
        """Return a stream of the sequence. The first published event creates the stream."""
        return SequenceStream(self._context, stream)

    def sql(self, stream: str = "main") -> Sql:
        """Return the SQL database of a stream. The stream exists from its first statement on."""
        validation.journal_stream(stream)
        return self._sqls.get(stream) or self._sqls.setdefault(stream, Sql(self._context, stream))

    def graph(self, stream: str) -> Graph:
        """Return a stream of the graph. The stream exists from its first event on."""
        return Graph(self._context, stream)

    def resolve(self, id: Sequence[int] | None) -> Receipt | None:  # noqa: A002  part of the public API
        """Find out what became of a write that raised `Unknown`: pass the `id` of the error.

        Returns the receipt, or None if the write is not in the log and never will be. Raises `Unknown` if the write is
        so old that the cluster no longer knows, and `Missing` if no request has this id.
        """
        return self._context.run(journal_calls.resolve(id))

    def streams(self) -> list[StreamRecord]:
        """Return the journal streams that this client may read, with their lengths."""
        found: list[StreamRecord] = []
        page = self._context.run(journal_calls.streams())
        while page.after:
            found += page.streams
            page = self._context.run(journal_calls.streams(page.after))
        return found + page.streams

    def clients(self) -> list[ClientRecord]:
        """Return all clients of the cluster, including removed and compromised ones. Needs the admin right."""
        return self._context.run(journal_calls.clients())

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
        """Register a client by its public key. Returns its ACL id. Needs the admin right.

        `write` and `read` are patterns of the streams that it may write and read.

        With a `secret` of 32 bytes, the client signs its writes by HMAC with this secret instead of by Ed25519.
        """
        wrapped = self._context.run(journal_calls.wrap_secret(key, secret)) if secret else b""
        return self._context.run(journal_calls.add_client(name, key, write, read, admin, wrapped=wrapped))

    def remove_client(self, name: str) -> None:
        """Remove a client, its lanes and its sessions permanently. Needs the admin right."""
        acl = journal_calls.find_client(name, self.clients())
        self._context.run(journal_calls.remove_client(acl))

    def nodes(self) -> AssemblyRecord:
        """Return nodes, roles, serializers and reconfigurations, as recorded in the configuration stream."""
        return self._context.run(admin_calls.assembly())

    def add_node(self, node: int, role: str, uri: str = "", key: str | bytes = b"", disk: str = "") -> str:
        """Give a node the role `executor`, `ingest` or `config`. Needs the admin right.

        Returns the id of the reconfiguration. A node that is new to the cluster needs its address, key and disk id;
        `chaplain member add` creates them.
        """
        return self._context.run(admin_calls.add_node(node, role, uri, key, disk))

    def remove_node(self, node: int, role: str) -> str:
        """Take the role `executor`, or the roles `ingest` and `config`, from a node. Needs the admin right.

        Returns the id of the reconfiguration.
        """
        return self._context.run(admin_calls.remove_node(node, role))

    def new_serializers(self, nodes: Sequence[int]) -> str:
        """Make these nodes the serializers, the first one the master. Needs the admin right.

        Returns the id of the reconfiguration.
        """
        return self._context.run(admin_calls.new_serializers(nodes))

    def checkpoint(self, through: int = 0) -> int:
        """Make every node write a snapshot of its state. Needs the admin right.

        Returns the index of the last cluster message that the snapshot covers. Once a quorum has the snapshot, nodes
        delete the log up to message `through`, regardless of their retention settings.
        """
        return self._context.run(admin_calls.checkpoint(through))

    def proof(self, name: str) -> EquivocationProof:
        """Return the two conflicting requests that prove a client compromised. Needs the admin right.

        Anyone can verify the proof: see `EquivocationProof.holds`.
        """
        acl = journal_calls.find_compromised(name, self.clients())
        return self._context.run(journal_calls.proof(acl))

    def rotate_keys(self) -> dict[str, Any]:
        """Replace the cluster key on every member and retire the old one. Needs the admin right.

        Raises `Refused` after 30 seconds with the members that have not confirmed; both keys then stay valid: call it
        again.
        """
        return self._context.run(calls.rotate_keys())

    def close(self) -> None:
        """Close the connection. Pending calls fail with `Closed`; a write in flight fails with `Unknown`."""
        self._context.engine.stop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        context = getattr(self, "_context", None)
        if context is not None and context.engine.running:
            context.engine.stop(wait=False)
            warnings.warn("a Client was not closed: use it in a with statement", ResourceWarning, stacklevel=2)
