"""Records pool messages and events that this node receives in segments, so that Spark can read them.

It decides which messages are recorded and in which batches they are written. It never slows the node down: while
`pending_bytes_max` wait for the disk, further messages are not recorded, and their number is reported.

Invariants: at most one write is in progress; the size of the next write is bounded, and so is each of its records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias, assert_never

from chaplain.client_service import presenters
from chaplain.core import Drained, Operation, Persist, Persisted, Report
from chaplain.errors import Malformed
from chaplain.gossip.events import EventSeen
from chaplain.mesh.events import JoinPool, Shout, Shouted
from chaplain.node.settings import RecorderSettings
from chaplain.segment.tap import StreamKind, Tap
from chaplain.wire import parcel

EVERYTHING = "*"
RECORD_BYTES = 4 << 20
"""Messages share a record up to this size; a larger one (at most a frame) gets its own record.
A record fits in a segment."""
ROW_BYTES = 16
"""Upper bound of the octets that a message takes in addition to its value and its key."""
Row: TypeAlias = tuple[bytes, bytes | None]
"""A message and its key."""


RecorderInput: TypeAlias = Shouted | Shout | EventSeen | Drained | Persisted
RecorderEffect: TypeAlias = Persist | Report


class Recorder:
    def __init__(self, settings: RecorderSettings, pools: Tap, events: Tap) -> None:
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._taps = {StreamKind.POOL: pools, StreamKind.EVENT: events}
        self._waiting: dict[tuple[StreamKind, str, int], list[Row]] = {}
        """Messages of the next write with their keys, by kind, stream and sender."""
        self._waiting_bytes = 0
        self._writing: dict[StreamKind, int] = {}
        """While a write is in progress: the end of each log once it is done."""
        self._ticket = 0
        self._omitted = 0

    @property
    def pools(self) -> tuple[str, ...]:
        return self._settings.pools

    def joins(self) -> list[JoinPool]:
        """The pools to join: a node receives only messages of pools that it is in."""
        return [JoinPool(pool) for pool in self.pools]

    def deadline(self) -> int | None:
        return None

    def step(self, now_ns: int, event: RecorderInput) -> list[RecorderEffect]:
        match event:
            case Shouted():
                self._on_pool_message(event.pool, event.content, event.peer.identifier)
            case Shout():
                self._on_pool_message(event.pool, event.content)
            case EventSeen():
                wanted = self._settings.events
                if EVERYTHING in wanted or event.event.type in wanted:
                    self._enqueue(StreamKind.EVENT, event.event.type, event.event.id.origin, event.event.content)
            case Persisted():
                for kind, position in self._writing.items():
                    self._taps[kind].synced(position)
                self._writing = {}
                return self._write(now_ns)
            case Drained():
                return [] if self._writing else self._write(now_ns)
            case _:
                assert_never(event)
        return []

    def _on_pool_message(self, pool: str, content: bytes, sender: int | None = None) -> None:
        """A message of a peer, or of this node itself (no `sender`)."""
        if pool not in self._settings.pools:
            return
        try:
            opened = parcel.decode(content) if sender is None else presenters.broadcast(content, sender)
        except Malformed:
            self.counts["malformed"] += 1
            return
        self._enqueue(StreamKind.POOL, pool, opened.node, opened.payload, key=opened.body or None)

    def _enqueue(self, kind: StreamKind, stream: str, sender: int, value: bytes, key: bytes | None = None) -> None:
        row = (value, key)
        if self._waiting_bytes + _row_bytes(row) > self._settings.pending_bytes_max:
            self._omitted += 1
            self.counts["left_out"] += 1
            return
        self._waiting_bytes += _row_bytes(row)
        self._waiting.setdefault((kind, stream, sender), []).append(row)
        self.counts["kept"] += 1

    def _write(self, now_ns: int) -> list[RecorderEffect]:
        if not self._waiting:
            return []
        operations: list[Operation] = []
        for (kind, stream, sender), messages in self._waiting.items():
            for portion in _portions(messages):
                values, keys = zip(*portion, strict=True)
                operations += self._taps[kind].write(kind, stream, values, now_ns, keys=keys, writer=sender)
            self._writing[kind] = self._taps[kind].written
        self._waiting, self._waiting_bytes = {}, 0
        self._ticket += 1
        return [Persist(self._ticket, tuple(operations)), *self._report_omitted()]

    def _report_omitted(self) -> list[RecorderEffect]:
        count, self._omitted = self._omitted, 0
        return [Report("messages not recorded", detail={"count": count})] if count else []


def _portions(rows: list[Row]) -> Iterator[list[Row]]:
    """Split the messages, in order, into portions that fit in one record."""
    portion: list[Row] = []
    held_bytes = 0
    for row in rows:
        size_bytes = _row_bytes(row)
        if portion and held_bytes + size_bytes > RECORD_BYTES:
            yield portion
            portion, held_bytes = [], 0
        portion.append(row)
        held_bytes += size_bytes
    yield portion


def _row_bytes(row: Row) -> int:
    value, key = row
    return ROW_BYTES + len(value) + len(key or b"")
