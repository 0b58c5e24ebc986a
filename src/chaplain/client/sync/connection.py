"""The connection of a `Client`: its engine in a thread, its calls, and how it begins and ends.

Keep it in step with `chaplain.client.aio.connection`: `ClientContext` and `Connection` have the interface that the
generated modules use.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar

from chaplain.client.api import calls, journal_calls
from chaplain.client.api.calls import PreparedCall
from chaplain.client.api.no_copy import NotPicklable
from chaplain.client.connect.options import ConnectOptions, Secret, prepare
from chaplain.client.io.call_registry import CallRegistry, Completion
from chaplain.client.io.thread_engine import ThreadEngine
from chaplain.client.protocol.events import ClientInput
from chaplain.client.protocol.journal.events import Batch
from chaplain.client.sync.waiting import CallFuture
from chaplain.client.types.journal import Receipt
from chaplain.errors import Misused

T = TypeVar("T")


class ClientContext(NotPicklable):
    """The engine and the call registry of a client, shared by everything that is used through it."""

    def __init__(self, options: ConnectOptions) -> None:
        self.timeout_s = options.timeout_s
        self.cluster = options.cluster
        self.engine = ThreadEngine(*options.build())
        self.registry = CallRegistry(self.engine.submit)
        self.engine.start(self.registry)

    def single_writes(self, stream: str) -> SingleWrites:
        return SingleWrites(self, stream)

    def hand_over(self, act: Callable[[], None]) -> None:
        """Have the engine's thread call a function soon: no signal handler can raise there."""
        self.engine.call_soon(act)

    def submit_now(self, event: ClientInput) -> None:
        """Submit an input that has no outcome."""
        self.registry.submit(event)

    def run(self, prepared: PreparedCall[T]) -> T:
        """Make a call and return its result. An exception that interrupts the wait cancels the call."""
        self.engine.check_may_wait()
        timeout_s = self.timeout_s if prepared.timeout_s is None else prepared.timeout_s
        future = CallFuture()
        sink = Completion(future)
        try:
            call = self.registry.register(sink)
            self.engine.submit(prepared.build(call, int(timeout_s * 1e9)))
            outcome = future.result()
        except BaseException:
            if not future.done():  # no caller will take the answer
                self.registry.cancel_sink(sink)
            raise
        return prepared.read(outcome)


class SingleWrites:
    """Writes single messages to one stream. Threads gain nothing from packing: each waits for its own receipt."""

    def __init__(self, context: ClientContext, stream: str) -> None:
        self._context = context
        self._stream = stream

    def write(self, value: bytes) -> Receipt:
        """Append one message and return its receipt. The value must fit into a pack."""
        return self._context.run(journal_calls.write_one(Batch(self._stream, [value], size_bytes=len(value))))

    def submit_batch(self) -> None:
        """Do nothing: no message waits here for others."""


class Connection(NotPicklable):
    """The life of a client's connection: it is made by `connect`, and ends with `close`."""

    def __init__(self, options: ConnectOptions) -> None:
        """Use `connect`."""
        if not isinstance(options, ConnectOptions):
            raise Misused(f"a client is made by connecting: {type(self).__name__}.connect({options!r})")
        self._options = options
        self._context = ClientContext(options)
        try:
            self._context.run(calls.connect(options.timeout_s))
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = "open" if self._context.engine.running else "closed"
        return f"<{type(self).__name__} of {self._options.describe()}: {state}>"

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
    ) -> Self:
        """Connect to a cluster and return once the first session is up.

        The cluster is given by its directory, by its `cluster.toml`, by a URL, or by `endpoints` (a list, or a string
        with commas). Without any, the environment variable CHAPLAIN_CLUSTER names it, or CHAPLAIN_URL does. Explicit
        arguments take precedence over the environment, the environment over the cluster file, and that over the
        identity file.

        A URL is `chaplain://host:port,host:port?identity=/path/of/file`; `name` may follow after `&`.

        `identity` is an `Identity` or the path of its file (default: the URL, then CHAPLAIN_IDENTITY, then the cluster
        file). `node_keys` are the public keys of the nodes, `name` is the cluster's name. With `node`, the client talks
        to this node alone. `timeout` is the time limit in seconds for connecting and the default for every later call.

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

    def close(self) -> None:
        """Close the connection. Pending calls fail with `Closed`; a write in flight fails with `Unknown`."""
        self._context.engine.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        context = getattr(self, "_context", None)
        if context is not None and context.engine.running:
            context.engine.stop(wait=False)
            warnings.warn("a Client was not closed: use it in a with statement", ResourceWarning, stacklevel=2)
