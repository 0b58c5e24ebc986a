"""The backend that reads streams from running nodes, through the Python client.

This module decides how a process connects, how often it polls, and how it resumes after it lost a node. Packs are
transferred as they were written and become Arrow batches in the task; no code loops over single messages. A planned
range contains only committed messages, so a task waits for a node that has not received them yet.

Each process has one client per cluster, because connecting costs more than a small read. Secrets stay in their file on
the machine that connects.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from chaplain import Client
from chaplain.client.api.arrow import record_of
from chaplain.client.protocol.journal.events import ReadChunk
from chaplain.errors import Busy, ChaplainError, Closed, Dropped, Missing, Refused, Unknown, Unreachable
from chaplain.pipeline.source.options import RECONNECT_S, KnownOffsets, Target
from chaplain.pipeline.source.rows import DroppedRows, OffsetRange, cuts, rows_of
from chaplain.segment.pack import heads_of
from chaplain.segment.record import Record

T = TypeVar("T")

LOOK_EVERY_S = 0.1
"""How long the known lengths of streams are reused: Spark asks for them dozens of times a second."""
ANSWER_S = 10.0
"""Time-out of a request."""
_RETRY_S = 0.1
"""Pause between retries."""
_TRANSIENT = (Unreachable, Closed, Missing, Unknown, Busy)
"""Transient errors: a retry, or another node, may succeed."""


class LiveRange(OffsetRange, frozen=True):
    """A range of offsets that is read from a cluster's nodes."""

    target: Target
    reconnect_s: float = RECONNECT_S
    """If no node sends anything for this long, the task fails."""


_clients: dict[tuple[int, Target], Client] = {}
"""By process id and target: a forked process must not use its parent's connections."""


def client_of(target: Target, timeout_s: float = ANSWER_S) -> Client:
    """Return this process's client for a cluster. The time-out is for a new one."""
    key = (os.getpid(), target)
    if key not in _clients:
        _clients[key] = connect(target, timeout_s)
    return _clients[key]


def connect(target: Target, timeout_s: float = ANSWER_S) -> Client:
    """Open a connection that is not shared."""
    identity = target.identity_file or None
    if target.endpoints:
        return Client.connect(endpoints=target.endpoints, identity=identity, timeout=timeout_s)
    return Client.connect(target.cluster, identity=identity, timeout=timeout_s)


def forget(target: Target) -> None:
    """Close this process's client, so that the next request opens a new connection."""
    client = _clients.pop((os.getpid(), target), None)
    if client is not None:
        client.close()


@atexit.register
def _close_all() -> None:
    for process, target in list(_clients):
        if process == os.getpid():
            forget(target)


class LiveOffsets(KnownOffsets, frozen=True):
    """The offsets of a stream on running nodes. Timestamps are read from the nodes when they are needed."""

    target: Target = Target()
    stream: str = ""

    def since(self, time_ns: int) -> int | None:
        """Find the offset by binary search: the timestamps of a stream never decrease."""
        low, high = self.first, self.next
        while low < high:
            chunk = _chunk_at(self.target, self.stream, (low + high) // 2)
            if chunk.timestamp_ns >= time_ns:
                high = chunk.first_offset
            else:
                low = chunk.first_offset + _messages(chunk)
        return low if low < self.next else None


class LiveBackend:
    """Plans queries with the offsets that the nodes of a cluster report."""

    def __init__(self, target: Target, reconnect_s: float = RECONNECT_S) -> None:
        self._target = target
        self._reconnect_s = ANSWER_S
        self._heads: dict[str, int] = {}
        self._firsts: dict[str, int] = {}
        self._looked_s = 0.0
        self.refresh()
        # The first request fails soon, because an address may be wrong. A cluster that answered once will answer again.
        self._reconnect_s = reconnect_s

    @property
    def streams(self) -> Sequence[str]:
        return sorted(self._heads)

    def refresh(self, at_once: bool = True) -> None:
        """Query the streams' offsets. The answer of a node that lags behind does not reduce known offsets."""
        if not at_once and time.monotonic() - self._looked_s < LOOK_EVERY_S:
            return
        for record in _retry(self._target, lambda client: client.streams(), self._reconnect_s):
            self._heads[record.stream] = max(record.next_offset, self._heads.get(record.stream, 0))
            self._firsts[record.stream] = max(record.first_offset, self._firsts.get(record.stream, 0))
        self._looked_s = time.monotonic()

    def check_access(self, stream: str) -> None:
        """Try to read from the stream: nodes do not list streams without read permission, but refuse reads of them."""
        try:
            with client_of(self._target).journal(stream).read(0, 1, timeout=ANSWER_S) as reader:
                next(reader.portions(), None)
        except Refused:
            raise
        except ChaplainError:
            return  # the stream does not exist or is not available now, which the caller reports

    def known_offsets(self, stream: str) -> KnownOffsets:
        return LiveOffsets(self._firsts.get(stream, 0), self._heads.get(stream, 0), (), self._target, stream)

    def pack_end(self, stream: str, start: int, offset: int) -> int:
        """Return where a range from `start` to about `offset` ends with a whole pack. It is never empty."""
        chunk = _chunk_at(self._target, stream, offset)
        at = chunk.first_offset
        for head in heads_of(chunk.packs):
            if at + head.count > offset and at > start:
                return at
            at += head.count
            if at > offset:
                return at
        return at

    def split(self, stream: str, start: int, end: int, parts: int) -> list[OffsetRange]:
        return [LiveRange(stream, low, high, self._target, self._reconnect_s) for low, high in cuts(start, end, parts)]


def read_live(
    wanted: LiveRange, columns: Sequence[str], fail_on_loss: bool = True, fail_on_headers: bool = True
) -> Iterator[Any]:
    """Read the rows of a range as Arrow batches, identical to those from segments."""
    dropped = DroppedRows(wanted.stream)
    return rows_of(_records(wanted, fail_on_loss, dropped), wanted, columns, dropped, fail_on_headers)


def _records(wanted: LiveRange, fail_on_loss: bool, dropped: DroppedRows) -> Iterator[Record]:
    """Yield the records of a range. After the loss of a node, resume after the last received record."""
    next_offset = wanted.start
    until_s = time.monotonic() + wanted.reconnect_s
    while next_offset < wanted.end:
        try:
            for chunk in _chunks(wanted.target, wanted.stream, next_offset, wanted.end):
                yield record_of(wanted.stream, chunk)
                next_offset, until_s = chunk.stop, time.monotonic() + wanted.reconnect_s
            if next_offset < wanted.end:
                raise Unreachable(f"nothing came for {ANSWER_S:g} s")
        except Dropped as error:
            if fail_on_loss:
                raise
            kept = _first_retained(wanted.target, wanted.stream)
            if kept <= next_offset:  # the answer came from another node, which still has these offsets
                _wait(wanted.target, error, until_s)
            kept = min(max(next_offset, kept), wanted.end)
            dropped.add(next_offset, kept)
            next_offset = kept
        except _TRANSIENT as error:
            _wait(wanted.target, error, until_s)
        except ChaplainError as error:  # a missing identity or right, for example: the rows still exist
            error.add_note(f"while reading {wanted.stream!r} from offset {next_offset}")
            raise


def _wait(target: Target, error: ChaplainError, until_s: float) -> None:
    """Wait before a retry, with a new connection unless data is `Missing`. Raise the error when the time is over."""
    if time.monotonic() > until_s:
        raise error
    if not isinstance(error, Missing):
        forget(target)
    time.sleep(_RETRY_S)


def _retry(target: Target, request: Callable[[Client], T], reconnect_s: float = ANSWER_S) -> T:
    """Repeat a request after transient errors, for at most `reconnect_s`."""
    until_s = time.monotonic() + reconnect_s
    while True:
        try:
            return request(client_of(target))
        except _TRANSIENT as error:
            _wait(target, error, until_s)


def _first_retained(target: Target, stream: str) -> int:
    listed = _retry(target, lambda client: client.streams())
    return next((one.first_offset for one in listed if one.stream == stream), 0)


def _chunks(target: Target, stream: str, start: int, end: int) -> Iterator[ReadChunk]:
    """Read with `follow`, because another node may have messages that this node has not received yet."""
    with client_of(target).journal(stream).read(start, end, follow=True, timeout=ANSWER_S) as reader:
        yield from reader.portions()


def _chunk_at(target: Target, stream: str, offset: int) -> ReadChunk:
    return _retry(target, lambda _: next(_chunks(target, stream, offset, offset + 1)))


def _messages(chunk: ReadChunk) -> int:
    return sum(head.count for head in heads_of(chunk.packs))
