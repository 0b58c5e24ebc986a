"""Reading streams: asks for them, holds back what nobody takes, and goes on at another node where one was lost.

    head: how long is the stream? ──▶ read: chunks, from the next offset on ──▶ end

Decides what is asked of which session and when a read has ended. Refuses to look into packs. A node is allowed to send
`WINDOW_BYTES`, and so many more as were taken; so a slow reader holds little here and nothing at the node.

Invariants: what a caller gets of a stream is contiguous and in order, whatever happened to sessions; a read that does
not follow ends where the stream ended when it began.
"""

from __future__ import annotations

from chaplain.client.protocol.call_events import Failure, Raised, Returned
from chaplain.client.protocol.journal.events import JournalEffect, ReadChunk, ReadCommand, TakenCommand
from chaplain.client.protocol.journal.node_selection import Outlets
from chaplain.core import soonest
from chaplain.journal.messages.client import LATEST, Chunk, Ended, Failed, Grant, NodeMessage, Read, StopReading

WINDOW_BYTES = 4 * 1024 * 1024
"""What one read may hold here, beside one chunk."""
READS_MAX = 64
BEHIND_NS = 300_000_000
"""A node may be so far behind its master; what it does not have yet may be there."""
AGAIN_NS = 50_000_000
HEADS_MAX = 1024
FROM_HEAD = -1
"""As a start: where the stream ends."""
FROM_START = -2
"""As a start: the first offset that is kept, whatever it is."""


class _Reader:
    __slots__ = (
        "again_ns",
        "believed_ns",
        "due_ns",
        "earliest",
        "headed",
        "held_bytes",
        "next_offset",
        "owed_bytes",
        "stop",
        "wire",
        "wish",
    )

    def __init__(self, wish: ReadCommand) -> None:
        self.wish = wish
        self.next_offset = max(wish.start, 0)
        self.stop = wish.stop
        self.earliest = wish.start == FROM_START
        """Nothing has come yet, and whatever is kept may come first."""
        self.headed = False
        """How long the stream is was found out."""
        self.held_bytes = 0
        self.owed_bytes = 0
        """Taken, but not granted again yet."""
        self.wire = 0
        self.again_ns: int | None = None
        self.due_ns: int | None = None
        self.believed_ns = 0
        """From then on a node that is not master is believed that there is nothing."""

    @property
    def finished(self) -> bool:
        return self.stop is not None and self.next_offset >= self.stop


class Streaming:
    def __init__(self, effects: list[JournalEffect], outlets: Outlets) -> None:
        self._effects = effects
        self._outlets = outlets
        self._readers: dict[int, _Reader] = {}
        self._heads: dict[str, int] = {}
        """How long streams are at least: a node that is behind is asked again."""

    def begin(self, now_ns: int, wish: ReadCommand) -> None:
        if len(self._readers) >= READS_MAX:
            reason = f"{READS_MAX} reads are open, which is the bound: close one first"
            self._effects.append(Raised(wish.call, Failure.BUSY, reason))
            return
        reader = self._readers[wish.call] = _Reader(wish)
        reader.due_ns = now_ns + wish.timeout_ns
        reader.believed_ns = now_ns + BEHIND_NS
        self._ask(reader)

    def note_head(self, stream: str, head: int) -> None:
        """The stream has at least so many messages."""
        if head > self._heads.pop(stream, 0):
            self._heads[stream] = head
            if len(self._heads) > HEADS_MAX:
                del self._heads[next(iter(self._heads))]

    def taken(self, wish: TakenCommand) -> None:
        reader = self._readers.get(wish.call)
        if reader is None:
            return
        reader.held_bytes -= wish.size_bytes
        reader.owed_bytes += wish.size_bytes
        assert reader.held_bytes >= 0, "more was taken than was given"
        if self._outlets.asked_here(reader.wire) and (reader.owed_bytes >= WINDOW_BYTES // 4 or not reader.held_bytes):
            self._outlets.say(Grant(reader.wire, reader.owed_bytes))
            reader.owed_bytes = 0

    def cancelled(self, call: int) -> None:
        reader = self._readers.get(call)
        if reader is not None:
            self._drop(reader)

    def moved(self) -> None:
        for reader in self._readers.values():
            self._ask(reader)

    def hurt(self) -> None:
        """Something may have been lost: have it sent again."""
        for reader in self._readers.values():
            self._stop(reader)
            self._ask(reader)

    def woken(self, now_ns: int, trouble: str) -> None:
        for reader in list(self._readers.values()):
            if reader.again_ns is not None and now_ns >= reader.again_ns:
                self._ask(reader)
            if reader.due_ns is not None and now_ns >= reader.due_ns:
                self._overdue(now_ns, reader, trouble)

    def _overdue(self, now_ns: int, reader: _Reader, trouble: str) -> None:
        if reader.held_bytes:  # nobody takes what is here: no wonder that nothing comes
            reader.due_ns = now_ns + reader.wish.timeout_ns
            return
        waited = f"{reader.wish.timeout_ns / 1e9:g} s"
        where = trouble if self._outlets.chosen is None else "the node that serves this client does not answer"
        reason = f"read {reader.wish.stream!r}: nothing came for {waited}; {where}"
        self._fail(reader, Failure.UNREACHABLE, reason)

    def due_ns(self) -> int | None:
        if not self._readers:
            return None
        return soonest(time for reader in self._readers.values() for time in (reader.again_ns, reader.due_ns))

    @property
    def waits(self) -> bool:
        return bool(self._readers)

    def bar(self, reason: str) -> None:
        for reader in list(self._readers.values()):
            self._fail(reader, Failure.REFUSED, reason)

    def stop(self) -> None:
        for reader in list(self._readers.values()):
            self._fail(reader, Failure.CLOSED, "the client was closed")

    # Asking.

    def _ask(self, reader: _Reader) -> None:
        self._outlets.forget(reader.wire)
        reader.wire, reader.again_ns = 0, None
        if self._outlets.chosen is None:
            return
        stream = reader.wish.stream

        def answer(now_ns: int, message: NodeMessage, payload: bytes) -> None:
            self._answered(now_ns, reader, message, payload)

        if not reader.headed:
            reader.wire = self._outlets.ask(lambda call: Read(call, stream, LATEST, 0), answer)
            return
        credit = max(0, WINDOW_BYTES - reader.held_bytes)
        offset, stop = reader.next_offset, reader.stop
        reader.owed_bytes = 0
        reader.wire = self._outlets.ask(lambda call: Read(call, stream, offset, credit, stop, True), answer)

    def _answered(self, now_ns: int, reader: _Reader, message: NodeMessage, payload: bytes) -> None:
        match message:
            case Chunk():
                self._chunk(now_ns, reader, message, payload)
            case Ended(kind="end") if not reader.headed:
                self._head(now_ns, reader, message.next_offset)
            case Ended(kind="dropped"):
                self._dropped(reader, message)
            case Ended() | Failed():
                self._ended(now_ns, reader, message.kind, message.reason)

    def _head(self, now_ns: int, reader: _Reader, head: int) -> None:
        wish = reader.wish
        nothing = (not head and not wish.follow) or (wish.start != FROM_HEAD and reader.next_offset > head)
        early = nothing and not self._outlets.at_master and now_ns < reader.believed_ns
        if early or head < self._heads.get(wish.stream, 0):
            reader.again_ns = now_ns + AGAIN_NS
            return
        self.note_head(wish.stream, head)
        if wish.start == FROM_HEAD:
            reader.next_offset = head
        if not head and not wish.follow:
            reason = f"there is no stream {wish.stream!r}: a stream is there from its first message on"
            self._fail(reader, Failure.MISSING, reason)
        elif reader.next_offset > head:
            reason = f"stream {wish.stream!r} ends before offset {head}: {wish.start} is not there yet"
            self._fail(reader, Failure.MISSING, reason)
        else:
            self._begin(reader, head)

    def _begin(self, reader: _Reader, head: int) -> None:
        reader.headed = True
        if reader.wish.follow:
            reader.due_ns = None
        else:
            reader.stop = head if reader.stop is None else min(reader.stop, head)
        if reader.finished:
            self._finish(reader)
        else:
            self._ask(reader)

    # What comes.

    def _chunk(self, now_ns: int, reader: _Reader, chunk: Chunk, payload: bytes) -> None:
        end = chunk.first_offset + chunk.count
        if end <= reader.next_offset or not reader.headed:
            return
        if chunk.first_offset > reader.next_offset:
            self._stop(reader)
            self._ask(reader)
            return
        stop = end if reader.stop is None else min(end, reader.stop)
        place = (chunk.first_offset, chunk.index, chunk.regime, chunk.timestamp_ns, chunk.origin_node)
        self._effects.append(ReadChunk(reader.wish.call, reader.next_offset, stop, *place, payload))
        reader.next_offset = stop
        reader.earliest = False
        reader.held_bytes += len(payload)
        if reader.due_ns is not None:
            reader.due_ns = now_ns + reader.wish.timeout_ns
        self.note_head(reader.wish.stream, end)
        if reader.finished:
            self._finish(reader)

    def _ended(self, now_ns: int, reader: _Reader, kind: str, reason: str) -> None:
        if kind in ("damaged", "not_executor") and self._outlets.rotate():
            return  # the other node is asked because we moved
        if kind in ("end", "busy", "damaged"):  # what is damaged is mended meanwhile
            self._outlets.forget(reader.wire)
            reader.wire, reader.again_ns = 0, now_ns + AGAIN_NS
        else:
            self._fail(reader, Failure.REFUSED, f"read {reader.wish.stream!r}: {reason}")

    def _dropped(self, reader: _Reader, ended: Ended) -> None:
        """What is to come next was dropped. Whoever wants whatever there is begins with what is kept."""
        if not reader.earliest:
            self._fail(reader, Failure.DROPPED, f"read {reader.wish.stream!r}: {ended.reason}")
            return
        reader.next_offset = max(reader.next_offset, ended.next_offset)
        if reader.finished:
            self._finish(reader)
        else:
            self._ask(reader)

    # Ends.

    def _finish(self, reader: _Reader) -> None:
        self._drop(reader)
        self._effects.append(Returned(reader.wish.call, b""))

    def _fail(self, reader: _Reader, failure: Failure, reason: str) -> None:
        self._drop(reader)
        self._effects.append(Raised(reader.wish.call, failure, reason))

    def _drop(self, reader: _Reader) -> None:
        del self._readers[reader.wish.call]
        if not reader.finished:
            self._stop(reader)
        self._outlets.forget(reader.wire)

    def _stop(self, reader: _Reader) -> None:
        """The node need not send more."""
        if self._outlets.asked_here(reader.wire):
            self._outlets.say(StopReading(reader.wire))
