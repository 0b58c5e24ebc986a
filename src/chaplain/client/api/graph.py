"""The graph for clients: `Graph` for threads, `AsyncGraph` for asyncio, and what both are made of.

A reader's place is something every node understands: the leaves of what it has read, or of the snapshot it reads. So it
goes on at another node without a gap and without anything twice. An event's id is computed here from the bytes that
came: a node cannot pass off other content under it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol, TypeVar

from chaplain.client.api.calls import PreparedCall
from chaplain.client.protocol.events import ClientCall
from chaplain.client.types import validation
from chaplain.client.types.results import Record
from chaplain.client_service.messages import Instruct, LookUp
from chaplain.errors import Misused, Unreachable
from chaplain.graph.messages import client
from chaplain.graph.messages.client import Append, Appended, GraphRequest, Page, ReadArrivals, ReadSnapshot, Row
from chaplain.graph.messages.event import CONTENT_BYTES_MAX, Event, decode
from chaplain.wire.parcel import Layer

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
WAIT_S = 2.0
"""How long a node is asked to wait for news before it answers that there are none."""
PATIENCE_S = 30.0
"""How long a reader waits for a node that has not yet got what was read elsewhere."""


class GraphEvent(Record, frozen=True):
    """One event of a graph stream."""

    id: str
    parents: tuple[str, ...]
    """Ids of the events it was written behind: the author's own last one first, if there is one."""
    author: int
    """The node that signed it."""
    timestamp: int
    """When its author says that it was written, in nanoseconds since 1970."""
    value: bytes
    read: bool
    """At least half of the members, its author included, have it on disk."""
    confirms: int
    """How many members beside its author are known to have it."""
    writer: str = ""
    """The client that it was written by."""
    height: int = 0
    """The longest way to a beginning; with the id it is the event's place in the agreed order."""
    forked: bool = False
    """Its author had already gone on from the same event another way."""


class GraphReceipt(Record, frozen=True):
    """An event that is on the disk of the node it was written at."""

    stream: str
    id: str


class GraphClientContext(Protocol):
    timeout_s: float

    def run(self, ask: PreparedCall[T]) -> T: ...


class AsyncGraphClientContext(Protocol):
    timeout_s: float

    async def run(self, ask: PreparedCall[T]) -> T: ...


def append(stream: str, value: bytes) -> PreparedCall[GraphReceipt]:
    content = validation.octets(value)
    if len(content) > CONTENT_BYTES_MAX:
        raise Misused(f"an event of a graph holds at most {CONTENT_BYTES_MAX} bytes, not {len(content)}")
    body = client.encode(Append(stream))

    def read(payload: bytes) -> GraphReceipt:
        return GraphReceipt(stream, client.decode_answer(payload, Appended).id.hex())

    return PreparedCall(
        lambda call, timeout_ns: ClientCall(Instruct(call, Layer.GRAPH, body), content, timeout_ns), read
    )


def look_up(request: GraphRequest, timeout_s: float) -> PreparedCall[Page]:
    body = client.encode(request)
    return PreparedCall(
        lambda call, timeout_ns: ClientCall(LookUp(call, Layer.GRAPH, body), b"", timeout_ns),
        lambda payload: client.decode_answer(payload, Page),
        timeout_s,
    )


class GraphReader:
    """Where somebody stands in a stream: says what to ask next, and what came of it."""

    def __init__(self, stream: str, *, only_read: bool, follow: bool, timeout_s: float) -> None:
        self._stream = stream
        self._only_read = only_read
        self._follow = follow
        self._timeout_s = timeout_s + WAIT_S
        self._log, self._position, self._limit = b"", 0, 0
        self._leaves: dict[bytes, None] = {}
        self._after: Event | None = None
        self._behind_s: float | None = None
        self.done = False

    def ask(self) -> PreparedCall[Page]:
        wait_ns = int(WAIT_S * 1e9)
        leaves = tuple(self._leaves)
        if self._follow:
            arrivals = ReadArrivals(self._stream, self._only_read, leaves, self._log, self._position, wait_ns)
            return look_up(arrivals, self._timeout_s)
        height, last = (0, b"") if self._after is None else (self._after.height, self._after.id)
        snapshot = ReadSnapshot(self._stream, self._only_read, leaves, self._log, self._limit, height, last, wait_ns)
        return look_up(snapshot, self._timeout_s)

    def take(self, page: Page) -> list[GraphEvent]:
        self._log, self._position, self._limit = page.log, page.position, page.limit
        events = [decode(row.raw) for row in page.rows]
        if self._follow:
            self._advance(events)
        else:
            self._leaves = dict.fromkeys(page.leaves)
            self._after = events[-1] if events else self._after
            self.done = page.done
        self._note_behind(bool(events) or page.done)
        return [_shown(event, row) for event, row in zip(events, page.rows, strict=True)]

    def _advance(self, events: list[Event]) -> None:
        for event in events:
            for link in event.links:
                self._leaves.pop(link.id, None)
            self._leaves[event.id] = None

    def _note_behind(self, progress: bool) -> None:
        """A node that is behind answers with nothing; not for ever."""
        now_s = time.monotonic()
        if progress:
            self._behind_s = None
        elif self._behind_s is None:
            self._behind_s = now_s
        elif now_s - self._behind_s > PATIENCE_S:
            raise Unreachable(f"for {PATIENCE_S:g} s no node had all of {self._stream!r} that was read: read again")


def _shown(event: Event, row: Row) -> GraphEvent:
    return GraphEvent(
        id=event.id.hex(),
        parents=tuple(link.id.hex() for link in event.links),
        author=row.author,
        timestamp=event.timestamp_ns,
        value=event.content,
        read=row.read,
        confirms=row.confirms,
        writer=event.writer,
        height=event.height,
        forked=row.forked,
    )


class Graph:
    """A stream of the graph: written anywhere, also in a partition; in the end the same everywhere."""

    def __init__(self, line: GraphClientContext, stream: str) -> None:
        self.stream = validation.name("a stream's name", stream)
        self._line = line

    def __repr__(self) -> str:
        return f"Graph({self.stream!r})"

    def append(self, value: bytes) -> GraphReceipt:
        """Write an event. It is on this client's node's disk when this returns, and on its way to all others."""
        return self._line.run(append(self.stream, value))

    def read(self, only_read: bool = False, follow: bool = False, timeout: float | None = None) -> Iterator[GraphEvent]:
        """Events that are there now, in the agreed order; or, with `follow`, all of them as they came and come.

        `only_read` leaves out what too few members have. `follow` ends when nothing new came for `timeout` seconds.
        """
        reader = GraphReader(self.stream, only_read=only_read, follow=follow, timeout_s=self._line.timeout_s)
        return self._pages(reader, validation.wait_s(timeout))

    def _pages(self, reader: GraphReader, wait_s: float | None) -> Iterator[GraphEvent]:
        ends = _Ends(wait_s)
        while not reader.done:
            events = reader.take(self._line.run(reader.ask()))
            yield from events
            if ends.after(bool(events)):
                return


class AsyncGraph:
    """The same for asyncio."""

    def __init__(self, line: AsyncGraphClientContext, stream: str) -> None:
        self.stream = validation.name("a stream's name", stream)
        self._line = line

    def __repr__(self) -> str:
        return f"AsyncGraph({self.stream!r})"

    async def append(self, value: bytes) -> GraphReceipt:
        """Write an event. It is on this client's node's disk when this returns, and on its way to all others."""
        return await self._line.run(append(self.stream, value))

    def read(
        self, only_read: bool = False, follow: bool = False, timeout: float | None = None
    ) -> AsyncIterator[GraphEvent]:
        """Events that are there now, in the agreed order; or, with `follow`, all of them as they came and come.

        `only_read` leaves out what too few members have. `follow` ends when nothing new came for `timeout` seconds.
        """
        reader = GraphReader(self.stream, only_read=only_read, follow=follow, timeout_s=self._line.timeout_s)
        return self._pages(reader, validation.wait_s(timeout))

    async def _pages(self, reader: GraphReader, wait_s: float | None) -> AsyncIterator[GraphEvent]:
        ends = _Ends(wait_s)
        while not reader.done:
            events = reader.take(await self._line.run(reader.ask()))
            for event in events:
                yield event
            if ends.after(bool(events)):
                return


class _Ends:
    """When somebody who follows has waited long enough."""

    def __init__(self, timeout_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._news_s = clock()

    def after(self, news: bool) -> bool:
        now_s = self._clock()
        if news:
            self._news_s = now_s
        return self._timeout_s is not None and now_s - self._news_s >= self._timeout_s
