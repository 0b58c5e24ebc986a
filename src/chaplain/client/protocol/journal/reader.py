"""Read streams: request them, apply flow control, and continue at another node when a session is lost.

    head: how long is the stream? ──▶ read: chunks, from the next offset on ──▶ end

Decides what to request from which session, and when a read has ended. Does not decode packs. A node may send
`WINDOW_BYTES`, and as many bytes more as the caller has consumed. A slow caller therefore buffers little here, and
nothing at the node.

Invariants:
- a caller gets contiguous messages in order, also when sessions are lost;
- without `follow`, a read stops at the offset where the stream ended when the read began.
"""

from __future__ import annotations

from chaplain.client.protocol.call_events import Failure, Raised, Returned, refusal
from chaplain.client.protocol.journal.events import JournalEffect, ReadChunk, ReadCommand, TakenCommand
from chaplain.client.protocol.journal.node_selection import NodeSelector
from chaplain.core import soonest
from chaplain.journal.messages.client import LATEST, Chunk, Ended, Failed, Grant, NodeMessage, Read, StopReading

WINDOW_BYTES = 4 * 1024 * 1024
"""Bytes that one read may buffer here, in addition to one chunk."""
READS_MAX = 64
"""Concurrent reads. One more fails with `BUSY`."""
LAG_MAX_NS = 300_000_000
"""How long a node is assumed to lag behind its master: messages that it does not have may exist."""
RETRY_NS = 50_000_000
"""Pause before a node is asked again."""
HEADS_MAX = 1024
"""Streams whose known length is remembered."""
FROM_HEAD = -1
"""As a start: the head of the stream."""
FROM_START = -2
"""As a start: the first retained offset."""


class _Reader:
    """One read."""

    __slots__ = (
        "command",
        "due_ns",
        "earliest",
        "head_known",
        "held_bytes",
        "next_offset",
        "request_call",
        "retry_ns",
        "stop",
        "trusted_after_ns",
        "ungranted_bytes",
    )

    def __init__(self, command: ReadCommand) -> None:
        self.command = command
        self.next_offset = max(command.start, 0)
        self.stop = command.stop
        self.earliest = command.start == FROM_START
        """True if no message has arrived yet and the read may begin at the first retained offset."""
        self.head_known = False
        """True once the length of the stream is known."""
        self.held_bytes = 0
        """Bytes that the caller has not consumed yet."""
        self.ungranted_bytes = 0
        """Bytes that the caller has consumed and that were not granted to the node again."""
        self.request_call = 0
        """Number of the pending request at the node; 0 if there is none."""
        self.retry_ns: int | None = None
        """When to ask the node again."""
        self.due_ns: int | None = None
        """When the read fails if nothing arrives; None once the head is known, if the read follows."""
        self.trusted_after_ns = 0
        """From this time on, the answer that there are no messages is accepted from nodes other than the master, too.
        """

    @property
    def finished(self) -> bool:
        return self.stop is not None and self.next_offset >= self.stop


class StreamReaders:
    """The reads of this client."""

    def __init__(self, effects: list[JournalEffect], selector: NodeSelector) -> None:
        self._effects = effects
        self._selector = selector
        self.readers: dict[int, _Reader] = {}
        self._heads: dict[str, int] = {}
        """Known minimum lengths of streams: a node that reports less lags behind and is asked again."""

    def begin(self, now_ns: int, command: ReadCommand) -> None:
        """Start a read."""
        if len(self.readers) >= READS_MAX:
            reason = f"{READS_MAX} reads are open, which is the limit: close one first"
            self._effects.append(Raised(command.call, Failure.BUSY, reason))
            return
        reader = self.readers[command.call] = _Reader(command)
        reader.due_ns = now_ns + command.timeout_ns
        reader.trusted_after_ns = now_ns + LAG_MAX_NS
        self._send_read(reader)

    def note_head(self, stream: str, head: int) -> None:
        """The stream has at least this many messages."""
        if head > self._heads.pop(stream, 0):
            self._heads[stream] = head
            if len(self._heads) > HEADS_MAX:
                del self._heads[next(iter(self._heads))]

    def on_taken(self, command: TakenCommand) -> None:
        """The caller has consumed this many bytes: grant the node as much new credit."""
        reader = self.readers.get(command.call)
        if reader is None:
            return
        reader.held_bytes -= command.size_bytes
        reader.ungranted_bytes += command.size_bytes
        assert reader.held_bytes >= 0, "the caller consumed more than it got"
        if self._selector.is_pending_on_chosen(reader.request_call) and (
            reader.ungranted_bytes >= WINDOW_BYTES // 4 or not reader.held_bytes
        ):
            self._selector.send(Grant(reader.request_call, reader.ungranted_bytes))
            reader.ungranted_bytes = 0

    def cancel(self, call: int) -> None:
        """The caller no longer reads."""
        reader = self.readers.get(call)
        if reader is not None:
            self._drop(reader)

    def on_switched(self) -> None:
        """Another session is used: continue all reads there."""
        for reader in self.readers.values():
            self._send_read(reader)

    def resend(self) -> None:
        """Messages may have been lost: request everything again from the next offset on."""
        for reader in self.readers.values():
            self._stop(reader)
            self._send_read(reader)

    def on_timer(self, now_ns: int, unavailable_reason: str) -> None:
        """Retry and expire the due reads."""
        for reader in list(self.readers.values()):
            if reader.retry_ns is not None and now_ns >= reader.retry_ns:
                self._send_read(reader)
            if reader.due_ns is not None and now_ns >= reader.due_ns:
                self._expire(now_ns, reader, unavailable_reason)

    def _expire(self, now_ns: int, reader: _Reader, unavailable_reason: str) -> None:
        if reader.held_bytes:  # the caller consumes nothing, so the node may send nothing
            reader.due_ns = now_ns + reader.command.timeout_ns
            return
        waited = f"{reader.command.timeout_ns / 1e9:g} s"
        where = (
            unavailable_reason if self._selector.chosen is None else "the node that serves this client does not answer"
        )
        reason = f"read {reader.command.stream!r}: nothing came for {waited}; {where}"
        self._fail(reader, Failure.UNREACHABLE, reason)

    def due_ns(self) -> int | None:
        if not self.readers:
            return None
        return soonest(time for reader in self.readers.values() for time in (reader.retry_ns, reader.due_ns))

    def fail_all(self, reason: str) -> None:
        """All nodes refuse this client: fail every read."""
        for reader in list(self.readers.values()):
            self._fail(reader, Failure.REFUSED, reason)

    def stop(self) -> None:
        for reader in list(self.readers.values()):
            self._fail(reader, Failure.CLOSED, "the client was closed")

    # Requests.

    def _send_read(self, reader: _Reader) -> None:
        """Request the head or the next messages at the chosen node."""
        self._selector.forget(reader.request_call)
        reader.request_call, reader.retry_ns = 0, None
        if self._selector.chosen is None:
            return
        stream = reader.command.stream

        def on_reply(now_ns: int, message: NodeMessage, payload: bytes) -> None:
            self._on_reply(now_ns, reader, message, payload)

        if not reader.head_known:
            reader.request_call = self._selector.request(lambda call: Read(call, stream, LATEST, 0), on_reply)
            return
        credit = max(0, WINDOW_BYTES - reader.held_bytes)
        offset, stop = reader.next_offset, reader.stop
        reader.ungranted_bytes = 0
        reader.request_call = self._selector.request(
            lambda call: Read(call, stream, offset, credit, stop, True), on_reply
        )

    def _on_reply(self, now_ns: int, reader: _Reader, message: NodeMessage, payload: bytes) -> None:
        match message:
            case Chunk():
                self._on_chunk(now_ns, reader, message, payload)
            case Ended(kind="end") if not reader.head_known:
                self._on_head(now_ns, reader, message.next_offset)
            case Ended(kind="dropped"):
                self._on_dropped(reader, message)
            case Ended() | Failed():
                self._on_ended(now_ns, reader, message.kind, message.reason)

    def _on_head(self, now_ns: int, reader: _Reader, head: int) -> None:
        """The node's answer about the length of the stream."""
        command = reader.command
        nothing = (not head and not command.follow) or (command.start != FROM_HEAD and reader.next_offset > head)
        # A lagging node may not know the stream or its latest messages yet: ask again before believing it.
        early = nothing and not self._selector.at_master and now_ns < reader.trusted_after_ns
        if early or head < self._heads.get(command.stream, 0):
            reader.retry_ns = now_ns + RETRY_NS
            return
        self.note_head(command.stream, head)
        if command.start == FROM_HEAD:
            reader.next_offset = head
        if not head and not command.follow:
            reason = f"there is no stream {command.stream!r}: a stream is there from its first message on"
            self._fail(reader, Failure.MISSING, reason)
        elif reader.next_offset > head:
            reason = f"stream {command.stream!r} ends before offset {head}: {command.start} is not there yet"
            self._fail(reader, Failure.MISSING, reason)
        else:
            self._start(reader, head)

    def _start(self, reader: _Reader, head: int) -> None:
        """The head is known: request messages."""
        reader.head_known = True
        if reader.command.follow:
            reader.due_ns = None
        else:
            reader.stop = head if reader.stop is None else min(reader.stop, head)
        if reader.finished:
            self._finish(reader)
        else:
            self._send_read(reader)

    # Replies.

    def _on_chunk(self, now_ns: int, reader: _Reader, chunk: Chunk, payload: bytes) -> None:
        """Pass a chunk to the caller. A gap means that a chunk was lost: request it again."""
        end = chunk.first_offset + chunk.count
        if end <= reader.next_offset or not reader.head_known:
            return
        if chunk.first_offset > reader.next_offset:
            self._stop(reader)
            self._send_read(reader)
            return
        stop = end if reader.stop is None else min(end, reader.stop)
        place = (chunk.first_offset, chunk.index, chunk.regime, chunk.timestamp_ns, chunk.origin_node)
        self._effects.append(ReadChunk(reader.command.call, reader.next_offset, stop, *place, payload))
        reader.next_offset = stop
        reader.earliest = False
        reader.held_bytes += len(payload)
        if reader.due_ns is not None:
            reader.due_ns = now_ns + reader.command.timeout_ns
        self.note_head(reader.command.stream, end)
        if reader.finished:
            self._finish(reader)

    def _on_ended(self, now_ns: int, reader: _Reader, kind: str, reason: str) -> None:
        """The node ended the read: ask again, ask another node, or fail."""
        if kind in ("damaged", "not_executor") and self._selector.rotate():
            return  # `on_switched` asks the other node
        if kind in ("end", "busy", "damaged"):  # nodes repair damaged records meanwhile
            self._selector.forget(reader.request_call)
            reader.request_call, reader.retry_ns = 0, now_ns + RETRY_NS
        else:
            self._fail(reader, refusal(kind), f"read {reader.command.stream!r}: {reason}")

    def _on_dropped(self, reader: _Reader, ended: Ended) -> None:
        """The next message was deleted by retention.

        A read from the earliest offset continues with the first retained message; any other read fails.
        """
        if not reader.earliest:
            self._fail(reader, Failure.DROPPED, f"read {reader.command.stream!r}: {ended.reason}")
            return
        reader.next_offset = max(reader.next_offset, ended.next_offset)
        if reader.finished:
            self._finish(reader)
        else:
            self._send_read(reader)

    # Ends.

    def _finish(self, reader: _Reader) -> None:
        self._drop(reader)
        self._effects.append(Returned(reader.command.call, b""))

    def _fail(self, reader: _Reader, failure: Failure, reason: str) -> None:
        self._drop(reader)
        self._effects.append(Raised(reader.command.call, failure, reason))

    def _drop(self, reader: _Reader) -> None:
        del self.readers[reader.command.call]
        if not reader.finished:
            self._stop(reader)
        self._selector.forget(reader.request_call)

    def _stop(self, reader: _Reader) -> None:
        """Tell the node to send no more."""
        if self._selector.is_pending_on_chosen(reader.request_call):
            self._selector.send(StopReading(reader.request_call))
