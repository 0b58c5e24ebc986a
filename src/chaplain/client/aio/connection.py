"""The connection of an `AsyncClient`: its engine in the event loop, its calls, and how it begins and ends.

Keep it in step with `chaplain.client.sync.connection`: both classes here have the interface that the generated modules
use.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from chaplain.client.api import calls
from chaplain.client.api.calls import PreparedCall
from chaplain.client.api.no_copy import NotPicklable
from chaplain.client.connect.options import ConnectOptions, Secret, prepare
from chaplain.client.io.asyncio_engine import LoopEngine
from chaplain.client.io.asyncio_registry import AsyncioCallRegistry
from chaplain.client.io.call_registry import CallRegistry, Completion
from chaplain.client.io.lifecycle import JOIN_TIMEOUT_S
from chaplain.client.io.write_coalescing import WriteCoalescer
from chaplain.client.protocol.events import ClientInput
from chaplain.errors import Closed, Misused

T = TypeVar("T")


class AsyncClientContext(NotPicklable):
    """The engine and the call registry of a client, shared by everything that is used through it."""

    def __init__(self, options: ConnectOptions) -> None:
        self.timeout_s = options.timeout_s
        self.cluster = options.cluster
        self.loop = asyncio.get_running_loop()
        self.engine = LoopEngine(*options.build())
        self.registry: CallRegistry = AsyncioCallRegistry(self.engine.submit, self.loop)
        self._single_writes: dict[str, WriteCoalescer] = {}
        self.engine.start(self.registry)

    def single_writes(self, stream: str) -> WriteCoalescer:
        """Writes single messages to this stream. It packs those of one turn of the loop together."""
        return self._single_writes.get(stream) or self._single_writes.setdefault(stream, WriteCoalescer(self, stream))

    def hand_over(self, act: Callable[[], None]) -> None:
        """Call a function, and process the inputs that it submits at once.

        This is necessary because a program that awaits only available results never returns to its loop.
        """
        act()
        self.engine.flush_now()

    def submit_now(self, event: ClientInput) -> None:
        """Submit an input that has no outcome, and process it now."""
        self.registry.submit(event)
        self.engine.flush_now()

    def flush_now(self) -> None:
        """Process queued inputs now."""
        self.engine.flush_now()

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


class AsyncConnection(NotPicklable):
    """The life of a client's connection: it is made when the client is entered or awaited, and ends with `close`."""

    def __init__(self, options: ConnectOptions) -> None:
        """Use `connect`."""
        if not isinstance(options, ConnectOptions):
            raise Misused(f"a client is made by connecting: {type(self).__name__}.connect({options!r})")
        self._options = options
        self._open_context: AsyncClientContext | None = None
        self._begun = False

    def __repr__(self) -> str:
        if self._open_context is None:
            state = "not connected"
        else:
            state = "open" if self._open_context.engine.running else "closed"
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
        """Prepare a connection; `async with` or `await` opens it. Takes the arguments of `Client.connect`.

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

    @property
    def _context(self) -> AsyncClientContext:
        """The context of the open connection; raises `Closed` before it is made."""
        if self._open_context is None:
            raise Closed("not connected yet: write `async with AsyncClient.connect(...) as client`")
        return self._open_context

    async def _start(self) -> Self:
        if self._begun:
            raise Closed("an AsyncClient connects once: make another")
        self._begun = True
        self._open_context = AsyncClientContext(self._options)
        try:
            await self._open_context.run(calls.connect(self._options.timeout_s))
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Close the connection. Pending calls fail with `Closed`; a write in flight fails with `Unknown`."""
        if self._open_context is not None:
            await self._open_context.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self._start().__await__()

    async def __aenter__(self) -> Self:
        return self if self._open_context is not None else await self._start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        context = getattr(self, "_open_context", None)
        if context is not None and context.engine.running:
            context.engine.stop(wait=False)
            warnings.warn("an AsyncClient was not closed: use it in `async with`", ResourceWarning, stacklevel=2)
