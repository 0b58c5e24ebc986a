"""Writes down what this node hears in pools and of events, if it was told to, so that Spark can read it.

Decides which messages are kept and in which batches they are written. Refuses to slow anybody down: while the disk is
behind by `pending_bytes_max`, further messages are not kept, and it says how many.

Invariants: at most one write is under way; what waits for the next is bounded, and so is each record of it.
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
"""Messages are put together up to this; a larger one, of at most a frame, goes alone. A record fits in a segment."""
ROW_BYTES = 16
"""More than a message takes beside its value and its key."""
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
        """Messages to be written next, with their keys, by kind, stream and who sent them."""
        self._waiting_bytes = 0
        self._writing: dict[StreamKind, int] = {}
        """While a write is under way: how far each log will go when it is done."""
        self._ticket = 0
        self._left_out = 0

    @property
    def pools(self) -> tuple[str, ...]:
        return self._settings.pools

    def joins(self) -> list[JoinPool]:
        """A node hears only pools it is in."""
        return [JoinPool(pool) for pool in self.pools]

    def deadline(self) -> int | None:
        return None

    def step(self, now_ns: int, event: RecorderInput) -> list[RecorderEffect]:
        match event:
            case Shouted():
                self._hear_pool(event.pool, event.content, event.peer.identifier)
            case Shout():
                self._hear_pool(event.pool, event.content)
            case EventSeen():
                wanted = self._settings.events
                if EVERYTHING in wanted or event.event.type in wanted:
                    self._keep(StreamKind.EVENT, event.event.type, event.event.id.origin, event.event.content)
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

    def _hear_pool(self, pool: str, content: bytes, speaker: int | None = None) -> None:
        """Of a peer, or of this node itself."""
        if pool not in self._settings.pools:
            return
        try:
            opened = parcel.decode(content) if speaker is None else presenters.broadcast(content, speaker)
        except Malformed:
            self.counts["malformed"] += 1
            return
        self._keep(StreamKind.POOL, pool, opened.node, opened.payload, key=opened.body or None)

    def _keep(self, kind: StreamKind, stream: str, sender: int, value: bytes, key: bytes | None = None) -> None:
        row = (value, key)
        if self._waiting_bytes + _row_bytes(row) > self._settings.pending_bytes_max:
            self._left_out += 1
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
        return [Persist(self._ticket, tuple(operations)), *self._say_left_out()]

    def _say_left_out(self) -> list[RecorderEffect]:
        count, self._left_out = self._left_out, 0
        return [Report("messages not recorded", detail={"count": count})] if count else []


def _portions(rows: list[Row]) -> Iterator[list[Row]]:
    """In order, each of what one record holds."""
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
