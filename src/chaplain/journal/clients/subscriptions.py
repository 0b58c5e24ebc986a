"""Serves reads of streams: agreed messages by offset, within the client's credit.

Old messages come from the log, in spans of positions that the host reads. New messages come from memory, for readers at
the end of their stream. Decides which messages are sent to which reader, and when. Does not decide who may read: the
caller checks.

Invariants: a reader gets contiguous, ordered and agreed messages of its stream. A reader has at most one span under
way. It exceeds its credit by at most one chunk. A new message costs work only for readers of the streams that it wrote
to.

The spans under way are bounded for each identity, so an identity with many reads gets no more of the node's time than
one with few.

Bounds: the reads of a session, of an identity and of all clients; one more is refused as busy. A read has at most its
window of credit, even if the client grants more. The windows of an identity share a budget, and so do those of all
clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import TypeAlias

import msgspec

from chaplain.errors import Malformed
from chaplain.journal.consensus.events import ReadLog, RecordDamaged
from chaplain.journal.events import Locate, ToClient
from chaplain.journal.messages.client import EARLIEST, LATEST, Chunk, Ended, Failed, Grant, Read
from chaplain.journal.messages.cluster import Body
from chaplain.journal.model.records import LogPosition
from chaplain.journal.model.results import AppliedMessage
from chaplain.journal.settings import JournalSettings
from chaplain.journal.snapshots.retention import NOT_NEEDED
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.journal.storage.records import body_of, group_messages
from chaplain.segment.record import Kind, Record

DROPPED = "dropped"
READ_WINDOW_BYTES_MIN = 64 * 1024
"""The smallest window of a read. A read has at least this window, even if there are many reads."""
SubscriptionEffect: TypeAlias = ReadLog | ToClient | RecordDamaged


class _Reader(msgspec.Struct):
    """One read of a client."""

    instance: bytes
    owner: bytes
    """The ACL id of the session's identity."""
    call: int
    stream: str
    next_offset: int
    end_offset: int | None
    follow: bool
    credit_bytes: int
    reading: bool = False
    """A span of the log is under way for this reader."""

    @property
    def done(self) -> bool:
        """True if the reader has reached its end offset."""
        return self.end_offset is not None and self.next_offset >= self.end_offset


_Key = tuple[bytes, int]


class Subscriptions:
    """Open reads by session and call, by stream and by identity."""

    def __init__(
        self,
        settings: JournalSettings,
        index: StreamIndex,
        locate: Locate,
        is_backfilling: Callable[[], bool] = bool,
        tokens: Iterator[int] | None = None,
    ) -> None:
        """`is_backfilling` returns True while this node fetches messages from before its first offset from other nodes.
        `tokens` numbers reads of the log.
        """
        self._settings = settings
        self._is_backfilling = is_backfilling
        self._tokens = tokens or count(1)
        self._index = index
        self._locate = locate
        self._readers: dict[_Key, _Reader] = {}
        self.by_stream: dict[str, dict[_Key, _Reader]] = {}
        """Readers by stream."""
        self._by_instance: dict[bytes, dict[_Key, _Reader]] = {}
        self._by_owner: Counter[bytes] = Counter()
        """Number of reads of each identity."""
        self.unwritten: dict[_Key, _Reader] = {}
        """Readers whose next message is agreed and not yet on this disk with its verdict."""
        self._last: AppliedMessage | None = None
        """The last message that was applied. Its verdict is on disk only after the next write."""
        self._reads: dict[int, tuple[_Key, int, bytes]] = {}
        """Spans under way, by token: the reader, the first index, and the identity."""
        self._spans: Counter[bytes] = Counter()
        """Number of spans under way for each identity."""
        self._queued: dict[bytes, dict[_Key, _Reader]] = {}
        """By identity that has reached its bound of spans: its readers that wait for one."""
        self.effects: list[SubscriptionEffect] = []

    def begin(self, instance: bytes, owner: bytes, read: Read) -> None:
        """Start a read in a session of the identity `owner`."""
        if (instance, read.call) in self._readers or self._is_full(instance, owner):
            failed = Failed(read.call, "busy", "this call is in use, or too many reads are open: end one first")
            self.effects.append(ToClient(instance, failed))
            return
        offset = self._start_offset(read)
        reader = _Reader(instance, owner, read.call, read.stream, offset, read.end_offset, read.follow, 0)
        self._add(reader)
        self._add_credit(reader, read.credit_bytes)
        self._request_span(reader)

    def _is_full(self, instance: bytes, owner: bytes) -> bool:
        settings = self._settings
        return (
            len(self._by_instance.get(instance, ())) >= settings.reads_per_client_max
            or self._by_owner[owner] >= settings.reads_per_identity_max
            or len(self._readers) >= settings.reads_max
        )

    def _add(self, reader: _Reader) -> None:
        key = (reader.instance, reader.call)
        self._readers[key] = reader
        self.by_stream.setdefault(reader.stream, {})[key] = reader
        self._by_instance.setdefault(reader.instance, {})[key] = reader
        self._by_owner[reader.owner] += 1

    def _remove(self, key: _Key) -> None:
        reader = self._readers.pop(key, None)
        if reader is None:
            return
        self.unwritten.pop(key, None)
        self._queued.get(reader.owner, {}).pop(key, None)
        del self.by_stream[reader.stream][key]
        if not self.by_stream[reader.stream]:
            del self.by_stream[reader.stream]
        del self._by_instance[reader.instance][key]
        if not self._by_instance[reader.instance]:
            del self._by_instance[reader.instance]
        self._by_owner[reader.owner] -= 1
        if not self._by_owner[reader.owner]:
            del self._by_owner[reader.owner]

    def _add_credit(self, reader: _Reader, size_bytes: int) -> None:
        """Add credit, up to the reader's window. The window bounds the memory of sent data that the client has not
        taken.
        """
        settings, reads = self._settings, self._by_owner[reader.owner]
        shares = settings.read_identity_bytes_max // reads, settings.read_bytes_in_all_max // len(self._readers)
        window_bytes = max(READ_WINDOW_BYTES_MIN, min(settings.read_window_bytes, *shares))
        reader.credit_bytes = min(reader.credit_bytes + max(0, size_bytes), window_bytes)

    def _start_offset(self, read: Read) -> int:
        if read.offset == EARLIEST:
            return self._index.first_offset(read.stream)
        return self._index.next_offset(read.stream) if read.offset == LATEST else read.offset

    def first_needed(self) -> int:
        """The first index that a reader still needs. Retention keeps the log from there on."""
        index, first = self._index, NOT_NEEDED
        for reader in self._readers.values():
            offset = max(reader.next_offset, index.first_offset(reader.stream))
            if offset < index.next_offset(reader.stream):
                first = min(first, index.find(reader.stream, offset))
        return first

    def grant(self, instance: bytes, grant: Grant) -> None:
        """A client grants more credit to a read."""
        reader = self._readers.get((instance, grant.call))
        if reader is not None:
            self._add_credit(reader, grant.credit_bytes)
            self._request_span(reader)

    def stop(self, instance: bytes, call: int) -> None:
        self._remove((instance, call))

    def session_closed(self, instance: bytes) -> None:
        for key in list(self._by_instance.get(instance, ())):
            self._remove(key)

    def end_forbidden(self, allowed: Callable[[bytes, str], bool]) -> None:
        """Rights have changed: end the reads that are not allowed any more."""
        for reader in list(self._readers.values()):
            if not allowed(reader.instance, reader.stream):
                self._end(reader, "no_right", "this client may no longer read this stream")

    def on_applied(self, executed: AppliedMessage) -> None:
        """Send a new message from memory to the readers at the end of its streams."""
        self._last = executed
        if not self.by_stream:
            return
        for written in executed.verdict.streams:
            readers = [one for one in self.by_stream.get(written.stream, {}).values() if not one.reading]
            if readers:
                batches = [record for record in executed.batches if record.stream == written.stream]
                for reader in readers:
                    self._send_batches(reader, executed.position, batches)

    def retry_unwritten(self) -> None:
        """More of the log may be on disk now: try the readers that wait for it."""
        unwritten, self.unwritten = self.unwritten, {}
        for reader in unwritten.values():
            self._request_span(reader)

    def on_log_read(self, token: int, records: Sequence[Record]) -> bool:
        """The host has read a span. Return False if it belongs to no reader."""
        key, index, owner = self._reads.pop(token, ((b"", 0), 0, b""))
        if index:
            self._end_span(owner)
        reader = self._readers.get(key)
        if reader is None:
            return index > 0
        reader.reading = False
        before = reader.next_offset
        for body, message in whole_messages(records, index):
            position = LogPosition(body.index, body.regime, body.timestamp_ns, message[0].chain_hash)
            self._send_batches(reader, position, message)
        if reader.next_offset == before and key in self._readers and reader.credit_bytes > 0:
            # The span contains no complete message at the reader's offset, although the index says so.
            self.effects.append(RecordDamaged(index))
            self._end(reader, "damaged", "this node's log is damaged here and being repaired: read from another node")
            return True
        self._request_span(reader)
        return True

    # A single reader.

    def _request_span(self, reader: _Reader) -> None:
        """Request the next span of the log, if there is something to send and credit for it."""
        if reader.reading or (reader.instance, reader.call) not in self._readers:
            return
        if reader.done or (not reader.follow and reader.next_offset >= self._index.next_offset(reader.stream)):
            self._end(reader, "end", "")
            return
        if reader.credit_bytes <= 0 or reader.next_offset >= self._index.next_offset(reader.stream):
            return
        first = self._index.first_offset(reader.stream)
        if reader.next_offset < first and self._is_backfilling():
            self._end(
                reader, "damaged", "this node is fetching these messages from other nodes: read from another node"
            )
            return
        if reader.next_offset < first:
            why = f"offset {reader.next_offset} was dropped: the first one kept is {first}"
            reader.next_offset = first
            self._end(reader, DROPPED, why)
            return
        index = self._index.find(reader.stream, reader.next_offset)
        span = self._locate(index, min(self._settings.read_bytes_max, reader.credit_bytes))
        if span is None:
            self._send_unwritten(reader, index)
            return
        if self._spans[reader.owner] >= self._settings.spans_per_identity_max:
            self._queued.setdefault(reader.owner, {})[reader.instance, reader.call] = reader
            return
        self._spans[reader.owner] += 1
        token = next(self._tokens)
        self._reads[token] = ((reader.instance, reader.call), index, reader.owner)
        reader.reading = True
        self.effects.append(ReadLog(token, *span))

    def _send_unwritten(self, reader: _Reader, index: int) -> None:
        """Send a message that is not on disk yet, if it is the last one; otherwise let the reader wait."""
        last, before = self._last, reader.next_offset
        if last is not None and last.position.index == index:
            self._send_batches(reader, last.position, last.batches)
        if reader.next_offset > before:
            self._request_span(reader)
        else:
            self.unwritten[reader.instance, reader.call] = reader  # `retry_unwritten` continues

    def _end_span(self, owner: bytes) -> None:
        """A span of this identity is complete: its next queued reader may have one."""
        self._spans[owner] -= 1
        if not self._spans[owner]:
            del self._spans[owner]
        while (queued := self._queued.get(owner)) and self._spans[owner] < self._settings.spans_per_identity_max:
            self._request_span(queued.pop(next(iter(queued))))
        if not queued:
            self._queued.pop(owner, None)

    def _send_batches(self, reader: _Reader, moment: LogPosition, records: Iterable[Record]) -> None:
        """Send the batches of a message that continue the reader's offset."""
        for record in records:
            if record.kind != Kind.BATCH or record.stream != reader.stream or reader.done:
                continue
            continues = record.first_offset <= reader.next_offset < record.first_offset + record.count
            if not continues or reader.credit_bytes <= 0:
                continue
            body = bytes(record.body)
            when = (moment.index, moment.regime, moment.timestamp_ns)
            chunk = Chunk(reader.call, record.first_offset, record.count, *when, record.origin_node)
            self.effects.append(ToClient(reader.instance, chunk, body))
            reader.credit_bytes -= len(body)
            reader.next_offset = record.first_offset + record.count
        if reader.done:
            self._end(reader, "end", "")

    def _end(self, reader: _Reader, kind: str, reason: str) -> None:
        self._remove((reader.instance, reader.call))
        self.effects.append(ToClient(reader.instance, Ended(reader.call, kind, reason, reader.next_offset)))


def whole_messages(records: Iterable[Record], index: int) -> list[tuple[Body, list[Record]]]:
    """Complete messages from this index on, in order, with their batches as the verdicts state them.

    If the log contains a message twice, the later copy counts, as in recovery.
    """
    found: list[tuple[Body, list[Record]]] = []
    for at, group in sorted(group_messages(records).items()):
        if at >= index and group.is_whole:
            with suppress(Malformed):
                found.append((body_of(group.first)[0], group.joined()))
    return found
