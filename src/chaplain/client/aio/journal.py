"""The journal: `AsyncJournal`, its `AsyncWriter` and its `AsyncReader`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, cast

from chaplain.client.aio import proving
from chaplain.client.aio.connection import AsyncClientContext
from chaplain.client.aio.consumer import AsyncConsumer
from chaplain.client.aio.cursor import AsyncCursor
from chaplain.client.aio.waiting import AsyncNotifier
from chaplain.client.api import journal_calls
from chaplain.client.api.calls import PreparedCall
from chaplain.client.api.journal_calls import EARLIEST, TABLE_ROWS_MAX, WRITER_BYTES_MAX, Item, Start
from chaplain.client.api.no_copy import NotPicklable
from chaplain.client.io.journal_sinks import ChunkSink, ReadSink
from chaplain.client.protocol.journal.batch_builder import CHUNK_BYTES, BatchBuilder, Headers
from chaplain.client.protocol.journal.events import Batch, ReadChunk, TakenCommand, WriteCommand
from chaplain.client.protocol.journal.unpacking import messages_of
from chaplain.client.types import validation
from chaplain.client.types.codecs import Codec, V, encoded_items
from chaplain.client.types.consumers import ConsumerStart, consumer_settings
from chaplain.client.types.journal import NO_ORIGIN, Message, Receipt, ReceiptOrigin, decoded
from chaplain.client.types.receipts import ReceiptPlace, ReceiptSequence, last_receipt, receipt_from
from chaplain.errors import ChaplainError, Closed, Misused
from chaplain.proofs.proof import Proof


class AsyncJournal(Generic[V]):
    """A stream of the journal: an append-only log in one agreed order.

    A receipt means that the message is committed: the order is agreed, and the message is on disk at a quorum.
    """

    def __init__(self, context: AsyncClientContext, stream: str, codec: Codec[V] | None = None) -> None:
        self.stream = validation.journal_stream(stream)
        self._codec = codec
        self._context = context
        self._single_writes = context.single_writes(stream)
        self._origin = ReceiptOrigin(self._prove)

    def __repr__(self) -> str:
        codec = "" if self._codec is None else f", codec={self._codec!r}"
        return f"AsyncJournal({self.stream!r}{codec})"

    async def _prove(self, stream: str, offset: int) -> Proof:
        assert stream == self.stream, "a receipt of another stream"
        return await proving.prove(self._context, self, offset)

    async def write(
        self,
        value: V,
        key: bytes | None = None,
        headers: Headers | None = None,
        id: Sequence[int] | None = None,  # noqa: A002  part of the public API
        isolated: bool = False,
        *,
        type: int = 0,  # noqa: A002  likewise
    ) -> Receipt:
        """Append one message and return its receipt.

        Writes that are pending concurrently are packed together: there may be thousands.

        With the `id` of an `Unknown`, the request is retried: the message is appended only if neither the original nor
        another retry of it is in the log. Otherwise the receipt of the written request is returned.

        Raises `Unknown` if the outcome cannot be determined, `DiskFull` if the nodes have no room, and `Unreachable` if
        the request was not sent in time. After every error but `Unknown`, the message is not and never will be in the
        log. With `isolated`, a proof of the message never shows other messages. `type` is a number of the program's
        own, 0 or 2 to 239, by which readers can select messages; executors execute only statements, whose type is 1.
        """
        data = cast("bytes", value) if self._codec is None else self._codec.encode(value)
        plain = key is None and headers is None and data.__class__ is bytes and len(data) < CHUNK_BYTES
        if plain and id is None and not isolated and not type:
            return receipt_from(await self._single_writes.write(data), self._origin)
        batch = journal_calls.single(self.stream, data, key, headers, isolated=isolated, message_type=type)
        self._single_writes.submit_batch()  # keep the order: earlier single writes go first
        return receipt_from(await self._context.run(journal_calls.write_one(batch, id)), self._origin)

    async def write_many(
        self,
        items: Iterable[Item[V]],
        id: Sequence[int] | None = None,  # noqa: A002  likewise
        isolated: bool = False,
        *,
        type: int = 0,  # noqa: A002  likewise
    ) -> ReceiptSequence:
        """Append messages as one request: all of them, contiguous and in order, or none. Returns their receipts.

        Each item is a value, a tuple of value and key, or a tuple of value, key and headers. `id` retries a request
        that raised `Unknown`, as for `write`. `type` is the type of all of them, as for `write`. Raises the errors of
        `write`.
        """
        taken = [*encoded_items(self._codec, validation.several("messages", items))]
        batch = journal_calls.many(self.stream, taken, isolated=isolated, message_type=type)
        self._single_writes.submit_batch()  # keep the order: earlier single writes go first
        return (await self._context.run(journal_calls.write(batch, id))).from_client(self._origin)

    def writer(
        self,
        receipts: bool = False,
        isolated: bool = False,
        *,
        type: int = 0,  # noqa: A002  likewise
    ) -> AsyncWriter[V]:
        """Return a writer, the fast way to append many messages. Use it in an `async with` statement.

        It packs messages and pipelines requests. With `receipts`, it keeps every receipt until `take_receipts` is
        called. With `isolated`, a proof of one message never shows another. `type` is the type of all messages, as for
        `write`.
        """
        message_type = journal_calls.check_type(type)
        return AsyncWriter(
            self._context,
            self.stream,
            receipts,
            message_type,
            isolated=isolated,
            origin=self._origin,
            codec=self._codec,
        )

    def read(
        self,
        start: Start = EARLIEST,
        stop: int | None = None,
        follow: bool = False,
        timeout: float | None = None,
        types: Collection[int] | None = None,
    ) -> AsyncReader[V]:
        """Return an iterator over messages from offset `start` up to, but excluding, `stop`.

        - Without `start`, it begins at the first retained offset; `start=None` begins at the head.
        - Without `stop`, it ends at the head that the stream had when the read began.
        - With `follow`, it continues with new messages; then `timeout` ends it after that many seconds without one.
        - With `types`, it returns only messages of these types and skips the others.

        Messages are contiguous and in order, also when the client changes nodes. Iteration raises:

        - `Dropped` if retention has deleted an offset; the error names the first retained one;
        - `Missing` if the stream or the offset does not exist;
        - `Refused` without the right to read;
        - `Unreachable` if nothing arrives in time.
        """
        prepared = journal_calls.read(self.stream, start, stop, follow)
        chosen = None if types is None else journal_calls.check_types(types)
        return AsyncReader(self._context, self.stream, prepared, validation.wait_s(timeout), chosen, codec=self._codec)

    def consume(
        self,
        name: str,
        group: str | None = None,
        mode: str = "single",
        start: ConsumerStart = "earliest",
        timeout: float | None = None,
        *,
        lease: float = 10.0,
        slots: int = 64,
        prefetch: int = 100,
        max_deliveries: int | None = None,
        dead_letter: str | None = None,
    ) -> AsyncConsumer[V]:
        """Return a worker of a consumer, whose position the cluster stores. Use it in an `async with` statement.

        - `single`: one worker gets all messages, in order; the others stand by.
        - `keyed`: workers share the messages by key. The messages of one key are processed in order.
        - `queue`: workers share the messages one by one, and acknowledge each by itself.

        `start` is for a new consumer: `"earliest"`, `"latest"`, an offset, or a `datetime`. With `group`, the
        consumer's full name is `group/name`. A worker that does not answer for `lease` seconds loses its messages to
        others. `timeout` ends the iteration after that many seconds without a message.

        In a queue, `prefetch` is the number of messages that a worker leases in advance. After `max_deliveries`, a
        message is written to the stream `dead_letter`; without that stream, it is given up.

        Needs the right to read the stream. Iteration raises `Dropped` if retention has deleted messages that were not
        processed.
        """
        settings = consumer_settings(
            name,
            group,
            mode,
            start,
            timeout,
            lease=lease,
            slots=slots,
            prefetch=prefetch,
            max_deliveries=max_deliveries,
            dead_letter=dead_letter,
        )
        return AsyncConsumer(self._context, self, settings)

    def cursor(self, file: str | Path) -> AsyncCursor:
        """Return a cursor: a consumer's position in this stream, stored in a file. Use it in an `async with` statement.

        A new cursor begins at the first retained message.
        """
        return AsyncCursor(self._context, file, self.stream)

    async def to_arrow(
        self,
        start: Start = EARLIEST,
        stop: int | None = None,
        limit: int = TABLE_ROWS_MAX,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """Return a `pyarrow.Table` of the messages from offset `start` up to, but excluding, `stop` or the head.

        More than `limit` messages raise `Misused`. DuckDB can query the table directly.
        """
        from chaplain.client.api.arrow import TableReader  # noqa: PLC0415  pyarrow is slow to import and rarely needed

        reading = TableReader(self.stream, columns, limit)
        async with self.read(start, stop) as reader:
            async for chunk in reader.portions():
                reading.take(chunk)
        return reading.table()

    async def to_pandas(self, *args: Any, **kwargs: Any) -> Any:
        """Return the same as a pandas DataFrame. Takes the arguments of `to_arrow`."""
        return (await self.to_arrow(*args, **kwargs)).to_pandas()

    async def to_polars(self, *args: Any, **kwargs: Any) -> Any:
        """Return the same as a polars DataFrame. Takes the arguments of `to_arrow`."""
        from chaplain.client.api.arrow import to_polars  # noqa: PLC0415  likewise

        return to_polars(await self.to_arrow(*args, **kwargs))


class AsyncWriter(NotPicklable, Generic[V]):
    """Writes many messages in order, each its own request, without waiting for each receipt.

    The next call raises the first failure. If a message is refused, no later one is written.
    """

    def __init__(
        self,
        context: AsyncClientContext,
        stream: str,
        receipts: bool,
        message_type: int = 0,
        *,
        isolated: bool = False,
        origin: ReceiptOrigin = NO_ORIGIN,
        codec: Codec[V] | None = None,
    ) -> None:
        self.stream = stream
        self._codec = codec
        self._origin = origin
        self._message_type = message_type
        self._isolated = isolated
        self.count = 0
        """Number of messages that have a receipt."""
        self.last: Receipt | None = None
        """The receipt of the last acknowledged message."""
        self._context = context
        self._group = context.registry.new_group()
        self._changed = AsyncNotifier()
        self._chunks = deque([BatchBuilder()])
        """Messages that are not submitted. The last chunk collects more; full ones are before it."""
        self._handed_over = False
        """True while the engine has to submit them."""
        self._all_submitted = True
        """False from a flush until everything that was written before it is submitted."""
        self._unanswered_bytes = 0
        self._unanswered = 0
        self._error: BaseException | None = None
        self._closed = False
        self._ranges: list[ReceiptPlace] | None = [] if receipts else None

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "closed" if self._closed else "open"
        return f"<{type(self).__name__} of {self.stream!r}: {state}, {self.count} receipts>"

    async def write(self, value: V, key: bytes | None = None, headers: Headers | None = None) -> None:
        """Submit one message. Blocks only while more than 8 MiB have no receipt yet."""
        data = cast("bytes", value) if self._codec is None else self._codec.encode(value)
        with self._changed.lock:
            if self._error is not None or self._closed:
                self._raise_if_failed()
            chunk = self._chunks[-1]
            chunk.add(data, key, headers)
            if chunk.full:
                self._chunks.append(BatchBuilder())
            elif self._unanswered or self._handed_over:
                return  # the next receipt, or the engine, submits it
            self._hand_over()
            if self._error is not None:
                self._raise_if_failed()
        if not self._has_room():
            await self._changed.wait_for(self._has_room, None)

    async def flush(self) -> None:
        """Wait until every message so far has its receipt. Raises the first failure."""
        self._context.registry.check_usable()
        with self._changed.lock:
            self._raise_if_failed()
            self._all_submitted = False
            self._hand_over()
        await self._changed.wait_for(self._is_flushed, None)

    async def close(self) -> None:
        """Flush, and accept no more messages."""
        if not self._closed:
            try:
                await self.flush()
            finally:
                self._closed = True

    def take_receipts(self) -> list[Receipt]:
        """Return the receipts that arrived since the last call. Needs `writer(receipts=True)`."""
        if self._ranges is None:
            raise Misused("this writer keeps no receipts: make it with receipts=True")
        with self._changed.lock:
            ranges, self._ranges = self._ranges, []
        return [receipt for place in ranges for receipt in ReceiptSequence(place, self._origin)]

    @property
    def closed(self) -> bool:
        """True once the writer accepts no more messages."""
        return self._closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        with self._changed.lock:
            self._closed = True
            self._chunks = deque([BatchBuilder()])  # a later receipt must not submit the collected messages

    def _raise_if_failed(self) -> None:
        """Raise the first failure, or `Closed` if the writer is closed."""
        if self._error is not None:
            raise self._error
        if self._closed:
            raise Closed("this writer is closed: make another")

    def _hand_over(self) -> None:
        self._handed_over = True
        try:
            self._context.hand_over(self._submit_chunks)
        except BaseException:  # also of a signal handler: then another call hands them over
            self._handed_over = False
            raise

    def _has_room(self) -> bool | None:
        self._raise_if_failed()
        return self._unanswered_bytes + self._unsent_bytes() <= WRITER_BYTES_MAX or None

    def _unsent_bytes(self) -> int:
        return sum(chunk.size_bytes for chunk in self._chunks)

    def _is_flushed(self) -> bool | None:
        self._raise_if_failed()
        return (self._all_submitted and not self._unanswered) or None

    # For the engine. A signal handler may raise in the thread of a caller, and then a chunk could be lost.

    def _submit_chunks(self) -> None:
        """Submit all collected messages."""
        with self._changed.lock:
            self._handed_over = False
            chunks, self._chunks = self._chunks, deque([BatchBuilder()])
            for chunk in chunks:
                if len(chunk):
                    for batch in chunk.batches(self.stream, self._message_type):
                        self._submit(journal_calls.with_isolation(batch, self._isolated))
            self._all_submitted = True
        self._changed.notify()

    def _submit(self, batch: Batch) -> None:
        sink = ChunkSink(batch.size_bytes, self._written, self._failed)
        timeout_ns = int(self._context.timeout_s * 1e9)
        self._unanswered += 1
        self._unanswered_bytes += batch.size_bytes
        try:
            self._context.registry.submit_call(lambda call: WriteCommand(call, batch, timeout_ns, self._group), sink)
        except ChaplainError as error:
            self._failed(error)

    def _written(self, size_bytes: int, place: ReceiptPlace) -> None:
        with self._changed.lock:
            self._unanswered -= 1
            self._unanswered_bytes -= size_bytes
            self.count += place.messages
            self.last = receipt_from(last_receipt(place), self._origin)
            if self._ranges is not None:
                self._ranges.append(place)
            if not self._unanswered and self._error is None:
                self._submit_chunks()
        self._changed.notify()

    def _failed(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.notify()


class AsyncReader(NotPicklable, Generic[V]):
    """Iterates over messages. Use it in an `async with` statement, or close it, to stop before the end.

    Tasks may share a reader: each message goes to one of them.
    """

    def __init__(
        self,
        context: AsyncClientContext,
        stream: str,
        prepared: PreparedCall[object],
        timeout_s: float | None,
        types: Collection[int] | None = None,
        *,
        codec: Codec[V] | None = None,
    ) -> None:
        self.stream = stream
        self._types = types
        self._codec = codec
        self._context = context
        self._timeout_s = timeout_s
        self._changed = AsyncNotifier()
        self._sink = ReadSink(self._changed.notify)
        self._messages: Iterator[Message[V]] = iter(())
        self._size_bytes = 0
        self._call = context.registry.submit_call(
            lambda number: prepared.build(number, int(context.timeout_s * 1e9)), self._sink
        )

    def __repr__(self) -> str:
        state = "failed" if self._sink.error is not None else "ended" if self._sink.ended else "open"
        return f"<{type(self).__name__} of {self.stream!r}: {state}>"

    def __aiter__(self) -> AsyncIterator[Message[V]]:
        return self

    async def __anext__(self) -> Message[V]:
        for message in self._messages:
            return message
        self._context.registry.check_usable()
        found = await self._changed.wait_for(self._next_message, self._timeout_s)
        if not found:
            raise StopAsyncIteration
        return found[0]

    async def poll(self, wait_s: float | None, interrupted: Callable[[], bool]) -> Message[V] | None:
        """Wait for the next message. Returns None at the end, after `wait_s` seconds, or if `interrupted` is true."""
        for message in self._messages:
            return message
        self._context.registry.check_usable()
        found = await self._changed.wait_for(lambda: () if interrupted() else self._next_message(), wait_s)
        return found[0] if found else None

    def wake(self) -> None:
        """Make `poll` look at its `interrupted` again."""
        self._changed.notify()

    async def portions(self) -> AsyncIterator[ReadChunk]:
        """Iterate over chunks of undecoded packs, for columnar decoding. Do not mix with iteration over messages."""
        self._context.registry.check_usable()
        while found := await self._changed.wait_for(self._next_chunk, self._timeout_s):
            self._drop_chunk()
            yield found[0]

    def _next_message(self) -> tuple[Message[V]] | tuple[()] | None:
        """Return the next message in a tuple, an empty one at the end, or None if it has not arrived."""
        while True:
            for message in self._messages:  # of a chunk that another caller, or this one, has just decoded
                return (message,)
            if not (found := self._next_chunk()):
                return () if found is not None else None
            # The chunk is dropped after it is decoded: an exception of a signal handler may interrupt the decoding.
            self._messages = iter(self._decoded(messages_of(self.stream, found[0], self._types)))
            self._drop_chunk()

    def _decoded(self, messages: list[Message]) -> list[Message[V]]:
        return cast("list[Message[V]]", messages) if self._codec is None else decoded(messages, self._codec)

    def _next_chunk(self) -> tuple[ReadChunk] | tuple[()] | None:
        """Return the next chunk in a tuple, an empty one at the end, or None if it has not arrived."""
        sink = self._sink
        self._grant_taken()
        if sink.chunks:
            return (sink.chunks[0],)
        if sink.error is not None:
            raise sink.error
        return () if sink.ended else None

    def _drop_chunk(self) -> None:
        self._size_bytes = len(self._sink.chunks.popleft().packs)

    def _grant_taken(self) -> None:
        """Grant the node as many bytes as were taken."""
        size_bytes, self._size_bytes = self._size_bytes, 0
        if size_bytes and not self._sink.ended and self._sink.error is None:
            self._context.submit_now(TakenCommand(self._call, size_bytes))

    async def close(self) -> None:
        """Stop reading. A task that waits for more gets `Closed`."""
        self._context.registry.cancel(self._call)
        self._sink.error = self._sink.error or Closed("this reader is closed: read again")
        self._messages = iter(())
        self._sink.chunks.clear()
        self._changed.notify()  # wake a task that waits for more

    async def __aenter__(self) -> AsyncReader[V]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call"):
            self._context.registry.cancel(self._call)
