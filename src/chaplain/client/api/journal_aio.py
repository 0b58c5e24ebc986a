"""The journal for asyncio: `AsyncJournal`, its `AsyncWriter` and its `AsyncReader`. In step with `journal_sync`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from chaplain.client.api import journal_calls
from chaplain.client.api.calls import PreparedCall
from chaplain.client.api.journal_calls import EARLIEST, TABLE_ROWS_MAX, WRITER_BYTES_MAX, Item, Start
from chaplain.client.api.no_copy import NotPicklable
from chaplain.client.api.offset_file import Cursor
from chaplain.client.io.call_registry import CallRegistry
from chaplain.client.io.journal_futures import ChunkSink, PortionSink
from chaplain.client.io.write_coalescing import WriteCoalescer
from chaplain.client.protocol.journal.batch_builder import CHUNK_BYTES, BatchBuilder, Headers
from chaplain.client.protocol.journal.events import Batch, ReadChunk, TakenCommand, WriteCommand
from chaplain.client.protocol.journal.unpacking import messages_of
from chaplain.client.types import validation
from chaplain.client.types.journal import Message, Receipt
from chaplain.client.types.receipts import ReceiptPlace, Receipts, last_receipt
from chaplain.errors import ChaplainError, Closed, Misused

T = TypeVar("T")


class AsyncJournalClientContext(Protocol):
    """What a client's methods are made with."""

    timeout_s: float
    cluster: str
    board: CallRegistry

    def together(self, stream: str) -> WriteCoalescer: ...

    def push(self) -> None:
        """Have what was handed over leave now: a program that only awaits what is there never goes back to its loop."""

    async def run(self, ask: PreparedCall[T]) -> T: ...


class AsyncJournal:
    """A stream of the journal: one agreed order, on disk at a quorum before the receipt."""

    def __init__(self, line: AsyncJournalClientContext, stream: str) -> None:
        self.stream = validation.journal_stream(stream)
        self._line = line
        self._together = line.together(stream)

    def __repr__(self) -> str:
        return f"AsyncJournal({self.stream!r})"

    async def write(
        self,
        value: bytes,
        key: bytes | None = None,
        headers: Headers | None = None,
        id: Sequence[int] | None = None,  # noqa: A002 the surface's name
    ) -> Receipt:
        """Append one message. Thousands may be under way: whatever waits is packed together.

        With the `id` of an `Unknown`: only if neither that one nor another retry of it is written; else gives that
        one's receipt.
        """
        if type(value) is bytes and len(value) < CHUNK_BYTES and key is None and headers is None and id is None:
            return await self._together.write(value)
        batch = journal_calls.single(self.stream, value, key, headers)
        self._together.ship()  # what was written before goes before
        return await self._line.run(journal_calls.write_one(batch, id))

    async def write_many(self, items: Iterable[Item], id: Sequence[int] | None = None) -> Receipts:  # noqa: A002 likewise
        """Append messages as one request: all of them, one after the other, or none.

        With the `id` of an `Unknown`: as `write` does.
        """
        batch = journal_calls.many(self.stream, items)
        self._together.ship()  # what was written before goes before
        return await self._line.run(journal_calls.write(batch, id))

    def writer(self, receipts: bool = False) -> AsyncWriter:
        """The fast way for many: packs and pipelines; use it in an `async with` statement.

        With `receipts`, every receipt is kept until `take_receipts` is called.
        """
        return AsyncWriter(self._line, self.stream, receipts)

    def read(
        self,
        start: Start = EARLIEST,
        stop: int | None = None,
        follow: bool = False,
        timeout: float | None = None,
    ) -> AsyncReader:
        """Messages from offset `start` up to, not with, `stop`, or the head at the time; with `follow`, whatever comes.

        Without `start`, from the first one that is kept; `start=None` begins at the head. An offset that was dropped
        is an error that names the first one kept. With `timeout`, following ends when nothing came for so many seconds.
        """
        ask = journal_calls.read(self.stream, start, stop, follow)
        return AsyncReader(self._line, self.stream, ask, validation.wait_s(timeout))

    def cursor(self, file: str | Path) -> Cursor:
        """Where a consumer of this stream has got to, kept in a file."""
        return Cursor(file, self._line.cluster, self.stream)

    async def to_arrow(
        self,
        start: Start = EARLIEST,
        stop: int | None = None,
        limit: int = TABLE_ROWS_MAX,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """A `pyarrow.Table` of the messages from offset `start` up to, not with, `stop`, or the head at the time.

        More than `limit` of them are an error. DuckDB takes the table as it is.
        """
        from chaplain.client.api.arrow import TableReader  # noqa: PLC0415  pyarrow takes a while, and few need it

        reading = TableReader(self.stream, columns, limit)
        async with self.read(start, stop) as reader:
            async for portion in reader.portions():
                reading.take(portion)
        return reading.table()

    async def to_pandas(self, *args: Any, **kwargs: Any) -> Any:
        """The same as a pandas frame."""
        return (await self.to_arrow(*args, **kwargs)).to_pandas()

    async def to_polars(self, *args: Any, **kwargs: Any) -> Any:
        """The same as a polars frame."""
        from chaplain.client.api.arrow import to_polars  # noqa: PLC0415  likewise

        return to_polars(await self.to_arrow(*args, **kwargs))


class AsyncWriter(NotPicklable):
    """Writes many messages, each its own request, in order. The first failure is raised by whatever is awaited next."""

    def __init__(self, line: AsyncJournalClientContext, stream: str, receipts: bool, message_type: int = 0) -> None:
        self.stream = stream
        self._message_type = message_type
        self.count = 0
        """Messages with a receipt."""
        self.last: Receipt | None = None
        """Of the last message that has one."""
        self._line = line
        self._group = line.board.new_group()
        self._changed = asyncio.Event()
        self._gathering = BatchBuilder()
        self._unanswered_bytes = 0
        self._unanswered = 0
        self._error: BaseException | None = None
        self._closed = False
        self._places: list[ReceiptPlace] | None = [] if receipts else None

    async def write(self, value: bytes, key: bytes | None = None, headers: Headers | None = None) -> None:
        """Hand over one message; waits only while too many have no receipt."""
        if self._error is not None or self._closed:
            self._complain()
        self._gathering.add(value, key, headers)
        if self._gathering.full or not self._unanswered:
            self._ship()
            if self._error is not None:
                self._complain()
            if self._unanswered_bytes > WRITER_BYTES_MAX:
                await self._wait(lambda: self._unanswered_bytes <= WRITER_BYTES_MAX)

    async def flush(self) -> None:
        """Wait until everything so far has its receipt."""
        self._line.board.check()
        self._complain()
        self._ship()
        await self._wait(lambda: not self._unanswered)

    async def close(self) -> None:
        """Flush, and take no more."""
        if not self._closed:
            try:
                await self.flush()
            finally:
                self._closed = True

    def take_receipts(self) -> list[Receipt]:
        """The receipts that came since this was called last; only of a writer that keeps them."""
        if self._places is None:
            raise Misused("this writer keeps no receipts: make it with receipts=True")
        places, self._places = self._places, []
        return [receipt for place in places for receipt in Receipts(place)]

    @property
    def closed(self) -> bool:
        return self._closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        self._closed = True
        self._gathering = BatchBuilder()  # nor may it leave later, when what was handed over is answered

    def _complain(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise Closed("this writer is closed: make another")

    def _ship(self) -> None:
        if not len(self._gathering):
            return
        gathering, self._gathering = self._gathering, BatchBuilder()
        for batch in gathering.batches(self.stream, self._message_type):
            self._hand_over(batch)

    def _hand_over(self, batch: Batch) -> None:
        sink = ChunkSink(batch.size_bytes, self._written, self._failed)
        timeout_ns = int(self._line.timeout_s * 1e9)
        self._unanswered += 1
        self._unanswered_bytes += batch.size_bytes
        try:
            self._line.board.open(lambda call: WriteCommand(call, batch, timeout_ns, self._group), sink)
            self._line.push()
        except ChaplainError as error:
            self._error = self._error or error

    async def _wait(self, holds: Callable[[], bool]) -> None:
        while not holds() and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        self._complain()

    def _written(self, size_bytes: int, place: ReceiptPlace) -> None:
        self._unanswered -= 1
        self._unanswered_bytes -= size_bytes
        self.count += place.messages
        self.last = last_receipt(place)
        if self._places is not None:
            self._places.append(place)
        if not self._unanswered and self._error is None:
            self._ship()
        self._changed.set()

    def _failed(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.set()


class AsyncReader(NotPicklable):
    """Iterates over messages. Close it, or use it in an `async with` statement, to stop before the end.

    Tasks may share it: each message is given to one of them.
    """

    def __init__(
        self, line: AsyncJournalClientContext, stream: str, ask: PreparedCall[object], timeout_s: float | None
    ) -> None:
        self.stream = stream
        self._line = line
        self._timeout_s = timeout_s
        self._changed = asyncio.Event()
        self._fetching = asyncio.Lock()
        """Held by whoever takes the next portion: what another has begun to give away must not be put aside by it."""
        self._sink = PortionSink(self._changed.set)
        self._messages: Iterator[Message] = iter(())
        self._size_bytes = 0
        self._call = line.board.open(lambda number: ask.build(number, int(line.timeout_s * 1e9)), self._sink)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        for message in self._messages:
            return message
        end_s = self._end_s()
        async with self._fetching:
            while True:
                for message in self._messages:  # of a portion that was taken since, or just now
                    return message
                if not await self._fetch(end_s):
                    raise StopAsyncIteration

    async def portions(self) -> AsyncIterator[ReadChunk]:
        """What comes as it came: packs for whoever takes them apart by column. Not to be mixed with iteration."""
        while (portion := await self._take(self._end_s())) is not None:
            yield portion

    def _end_s(self) -> float | None:
        """When nothing came for too long, if nothing comes from now on."""
        return None if self._timeout_s is None else asyncio.get_running_loop().time() + self._timeout_s

    async def _fetch(self, end_s: float | None) -> bool:
        """Take the next portion apart; False at the end."""
        portion = await self._take(end_s)
        if portion is not None:
            self._messages = iter(messages_of(self.stream, portion))
        return portion is not None

    async def _take(self, end_s: float | None) -> ReadChunk | None:
        """The next portion; None at the end."""
        self._line.board.check()
        self._release()
        try:
            async with asyncio.timeout_at(end_s):
                while not self._sink.portions:
                    if self._sink.error is not None:
                        raise self._sink.error
                    if self._sink.ended:
                        return None
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return None
        portion = self._sink.portions.popleft()
        self._size_bytes = len(portion.packs)
        return portion

    def _release(self) -> None:
        """What was taken may be sent again."""
        size_bytes, self._size_bytes = self._size_bytes, 0
        if size_bytes and not self._sink.ended and self._sink.error is None:
            self._line.board.submit(TakenCommand(self._call, size_bytes))
            self._line.push()

    async def close(self) -> None:
        self._line.board.cancel(self._call)
        self._sink.error = self._sink.error or Closed("this reader is closed: read again")
        self._messages = iter(())
        self._sink.portions.clear()
        self._changed.set()  # whoever waits for more need not

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call"):
            self._line.board.cancel(self._call)
