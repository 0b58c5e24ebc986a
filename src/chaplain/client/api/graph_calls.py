"""Graph calls as data: what to ask and how to decode the answer. Both clients use them.

A reader's position is independent of the node: it is the set of leaves that the reader has read, or the leaves of its
snapshot. The reader continues at another node without gaps or duplicates. The client computes the id of an event from
the received bytes, so a node cannot present other content under that id.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from chaplain.client.api.calls import PreparedCall
from chaplain.client.protocol.events import ClientCall
from chaplain.client.types import validation
from chaplain.client.types.results import ResultRecord
from chaplain.client_service.messages import Instruct, LookUp
from chaplain.errors import Misused, Unreachable
from chaplain.graph.messages import client
from chaplain.graph.messages.client import Append, Appended, EventRow, GraphRequest, Page, ReadArrivals, ReadSnapshot
from chaplain.graph.messages.event import CONTENT_BYTES_MAX, SignedEvent, decode
from chaplain.wire.parcel import Layer

WAIT_S = 2.0
"""How long a node waits for new events before it answers with none."""
NO_PROGRESS_MAX_S = 30.0
"""If a node lacks events that the reader has read at another node, the reader waits this long and asks again."""


class GraphEvent(ResultRecord, frozen=True):
    """One event of a graph stream."""

    id: str
    parents: tuple[str, ...]
    """Ids of the events it follows; the author's own previous event comes first, if there is one."""
    author: int
    """The node that signed the event."""
    timestamp: int
    """The author's clock when the event was written, in nanoseconds since 1970."""
    value: bytes
    read: bool
    """True if more than half of the members, including the author, have it on disk."""
    confirms: int
    """Number of members, without the author, that are known to have it on disk."""
    writer: str = ""
    """The name of the client that wrote it."""
    height: int = 0
    """Length of the longest path to a root. Height and id define the event's place in the agreed order."""
    forked: bool = False
    """True if the author had already written another event after the same previous event."""


class GraphReceipt(ResultRecord, frozen=True):
    """The id of an event that is on the disk of the node it was written at."""

    stream: str
    id: str


def append(stream: str, value: bytes) -> PreparedCall[GraphReceipt]:
    """Append an event."""
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
    """Read one page."""
    body = client.encode(request)
    return PreparedCall(
        lambda call, timeout_ns: ClientCall(LookUp(call, Layer.GRAPH, body), b"", timeout_ns),
        lambda payload: client.decode_answer(payload, Page),
        timeout_s,
    )


class GraphReader:
    """The position of a reader in a stream: the next request, and the events it takes from a page."""

    def __init__(self, stream: str, *, only_read: bool, follow: bool, timeout_s: float) -> None:
        self._stream = stream
        self._only_read = only_read
        self._follow = follow
        self._timeout_s = timeout_s + WAIT_S
        self._log, self._position, self._limit = b"", 0, 0
        self._leaves: dict[bytes, None] = {}
        self._after: SignedEvent | None = None
        self._no_progress_since_s: float | None = None
        self.done = False

    def next_request(self) -> PreparedCall[Page]:
        """The request for the next page."""
        wait_ns = int(WAIT_S * 1e9)
        leaves = tuple(self._leaves)
        if self._follow:
            arrivals = ReadArrivals(self._stream, self._only_read, leaves, self._log, self._position, wait_ns)
            return look_up(arrivals, self._timeout_s)
        height, last = (0, b"") if self._after is None else (self._after.height, self._after.id)
        snapshot = ReadSnapshot(self._stream, self._only_read, leaves, self._log, self._limit, height, last, wait_ns)
        return look_up(snapshot, self._timeout_s)

    def take(self, page: Page) -> list[GraphEvent]:
        """Return the events of a page and advance the position."""
        self._log, self._position, self._limit = page.log, page.position, page.limit
        events = [decode(row.raw) for row in page.rows]
        if self._follow:
            self._advance(events)
        else:
            self._leaves = dict.fromkeys(page.leaves)
            self._after = events[-1] if events else self._after
            self.done = page.done
        self._check_progress(bool(events) or page.done)
        return [_to_graph_event(event, row) for event, row in zip(events, page.rows, strict=True)]

    def _advance(self, events: list[SignedEvent]) -> None:
        for event in events:
            for link in event.links:
                self._leaves.pop(link.id, None)
            self._leaves[event.id] = None

    def _check_progress(self, progress: bool) -> None:
        """Raise `Unreachable` after `NO_PROGRESS_MAX_S` seconds in which every node lagged and returned no events."""
        now_s = time.monotonic()
        if progress:
            self._no_progress_since_s = None
        elif self._no_progress_since_s is None:
            self._no_progress_since_s = now_s
        elif now_s - self._no_progress_since_s > NO_PROGRESS_MAX_S:
            raise Unreachable(
                f"for {NO_PROGRESS_MAX_S:g} s no node had all of {self._stream!r} that was read: read again"
            )


def _to_graph_event(event: SignedEvent, row: EventRow) -> GraphEvent:
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


class IdleTimeout:
    """Ends a read that follows after `timeout_s` seconds without a new event."""

    def __init__(self, timeout_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._last_event_s = clock()

    def expired_after(self, has_events: bool) -> bool:
        """Note whether the last page had events. Returns True when the timeout has passed."""
        now_s = self._clock()
        if has_events:
            self._last_event_s = now_s
        return self._timeout_s is not None and now_s - self._last_event_s >= self._timeout_s
