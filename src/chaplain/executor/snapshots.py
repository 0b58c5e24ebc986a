"""Copies (snapshots) of databases: kept on disk so that the log can be dropped, and fetched from other executors.

    the log is to be dropped up to a message ──▶ KeepDatabase, once it is applied ──▶ the log may be dropped
    the log lacks the next message of a database ──▶ AskCopy, piece by piece ──▶ the copy replaces the database

Decides when a copy is made, which executor is asked for one, and when to ask another. Does not know databases, or
whether a copy is correct. The node that makes, sends or installs a copy checks its rows, and executors compare
fingerprints when it is open.

Bounds: one piece in flight per database; one copy being made per database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from chaplain.core import Report
from chaplain.executor.apply_queue import ApplyPhase, ApplyQueue
from chaplain.executor.events import CopyErrand, CopyTaken, DatabaseKept, KeepDatabase, KeptRead, ReadKept, TakeCopy
from chaplain.executor.messages import AskCopy, CopyPiece, PeerMessage

PATIENCE_NS = 3_000_000_000
"""An executor that sends nothing for this long is replaced by the next one."""
READS_MAX = 16
"""Reads of copies for other executors at a time; further requests are ignored."""
Send = Callable[[bytes, PeerMessage, bytes], None]


class _IncomingCopy(msgspec.Struct):
    """A copy that is being fetched."""

    queue: ApplyQueue
    peer: bytes
    due_ns: int
    position: int = 0
    name: tuple[int, int, bytes] | None = None
    """Index, size and digest of the copy. A piece with other values belongs to another copy: start again."""
    writing: bool = False


class SnapshotTransfer:
    def __init__(self, send: Send, peers: Callable[[], Sequence[bytes]]) -> None:
        """`peers` returns the other executors that are connected."""
        self._send = send
        self._peers = peers
        self._incoming: dict[str, _IncomingCopy] = {}
        self._reads: dict[int, tuple[bytes, AskCopy]] = {}
        self._token = 0
        self.effects: list[CopyErrand | Report] = []

    @property
    def due_ns(self) -> int | None:
        return min((copy.due_ns for copy in self._active()), default=None)

    def _active(self) -> list[_IncomingCopy]:
        """Transfers of executors that have not stopped since."""
        return [copy for copy in self._incoming.values() if copy.queue.phase is ApplyPhase.LACKING]

    # Making and sending copies.

    def keep_copy(self, queue: ApplyQueue, through: int) -> None:
        """Have a copy made if the kept one lacks messages up to this one."""
        if queue.is_open and not queue.keeping and queue.first_after_kept() <= through and queue.has_reached(through):
            queue.keeping = True
            self.effects.append(KeepDatabase(queue.stream))

    def on_kept(self, queue: ApplyQueue, event: DatabaseKept) -> None:
        """Record the new copy. If copying failed, or the copy is damaged, it is not tried again and the log is
        retained.
        """
        if event.damage:
            self._report("copy not kept", queue.stream, event.damage)
        elif not event.failed:
            queue.keeping, queue.kept = False, event.index

    def on_request(self, peer: bytes, ask: AskCopy, queue: ApplyQueue | None) -> None:
        if queue is not None and not queue.kept:
            self.keep_copy(queue, queue.applied)  # the peer asks again
        elif len(self._reads) < READS_MAX:
            self._token += 1
            self._reads[self._token] = (peer, ask)
            self.effects.append(ReadKept(self._token, ask.stream, ask.position))

    def on_read(self, event: KeptRead, queues: Mapping[str, ApplyQueue]) -> None:
        peer, ask = self._reads.pop(event.token)
        if event.damage:
            queues[ask.stream].kept = 0  # a new copy is made the next time the log is to be dropped
            self._report("copy damaged", ask.stream, event.damage)
        elif event.data:
            piece = CopyPiece(ask.stream, event.index, ask.position, event.size_bytes, event.digest)
            self._send(peer, piece, event.data)

    # Fetching a copy.

    def start(self, now_ns: int, queue: ApplyQueue) -> None:
        queue.wait_for_copy()
        self._incoming[queue.stream] = _IncomingCopy(queue, b"", now_ns)
        self._request_from_next(now_ns, self._incoming[queue.stream])

    def _request_from_next(self, now_ns: int, copy: _IncomingCopy) -> None:
        """Ask the next executor, from the first byte."""
        peers = sorted(self._peers())
        copy.due_ns = now_ns + PATIENCE_NS
        copy.position, copy.name = 0, None
        if peers:
            copy.peer = next((peer for peer in peers if peer > copy.peer), peers[0])
            self._request(copy)

    def _request(self, copy: _IncomingCopy) -> None:
        self._send(copy.peer, AskCopy(copy.queue.stream, copy.position), b"")

    def on_piece(self, now_ns: int, peer: bytes, piece: CopyPiece, data: bytes) -> None:
        copy = self._incoming.get(piece.stream)
        if copy is None or copy.writing or peer != copy.peer or piece.position != copy.position:
            return
        if copy not in self._active():
            return
        name = (piece.index, piece.size_bytes, piece.digest)
        queue = copy.queue
        outdated = piece.index <= queue.applied or piece.index < queue.given_up
        if copy.name not in (None, name) or outdated or not data:
            self._request_from_next(now_ns, copy)
            return
        copy.name, copy.writing = name, True
        copy.due_ns = now_ns + PATIENCE_NS
        self.effects.append(TakeCopy(piece.stream, piece.position, data, piece.size_bytes, piece.digest))

    def on_written(self, now_ns: int, event: CopyTaken) -> None:
        copy = self._incoming[event.stream]
        copy.writing = False
        copy.due_ns = now_ns + PATIENCE_NS
        if copy not in self._active():
            return
        if event.failed:
            self._report("copy refused", event.stream, event.failed)
            self._request_from_next(now_ns, copy)
        else:
            copy.position = event.position
            self._request(copy)

    def _report(self, what: str, stream: str, reason: str) -> None:
        self.effects.append(Report(what, detail={"stream": stream, "reason": reason}))

    def opened(self, queue: ApplyQueue) -> None:
        self._incoming.pop(queue.stream, None)

    def woken(self, now_ns: int) -> None:
        for copy in self._active():
            if now_ns >= copy.due_ns:
                if copy.writing:
                    copy.due_ns = now_ns + PATIENCE_NS
                else:
                    self._request_from_next(now_ns, copy)
