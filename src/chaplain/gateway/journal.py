"""Endpoints of journal streams: write, read, follow, prove and resolve."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Annotated, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta

from chaplain.client.aio import AsyncClient
from chaplain.client.aio.journal import AsyncJournal, AsyncReader
from chaplain.client.api.journal_calls import EARLIEST, Start
from chaplain.client.protocol.journal.packing import REQUEST_BYTES_MAX
from chaplain.client.protocol.journal.reader import WINDOW_BYTES
from chaplain.client.types.journal import Message, Receipt
from chaplain.core import Frozen
from chaplain.errors import ChaplainError, Dropped, Missing, Misused, Unknown
from chaplain.gateway import problems
from chaplain.gateway.documents import (
    BATCH_MESSAGES_MAX,
    MessageDocument,
    MessagesDocument,
    NewMessages,
    OutcomeDocument,
    ReceiptsDocument,
    StreamsDocument,
    message_document,
    message_of,
    receipt_document,
    receipts_document,
    stream_document,
)
from chaplain.gateway.idempotency import IdempotencyKeys
from chaplain.gateway.operations import (
    ANY_TYPE,
    EVENT_STREAM,
    HEADER,
    JSON,
    TEXT,
    Answer,
    Body,
    Call,
    Documented,
    EventStream,
    Operation,
)
from chaplain.gateway.problems import Problem, problem_of
from chaplain.gateway.settings import GatewaySettings

T = TypeVar("T")

BATCH = "application/vnd.chaplain.messages+json"
RECEIPT_BYTES = 512
"""More than one receipt takes in an answer."""
LATEST = "latest"

OffsetText: TypeAlias = Annotated[str, Meta(pattern=r"^(earliest|latest|[0-9]{1,19})$")]
StreamName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=255)]
Offset: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
RequestText: TypeAlias = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,9}-[1-9][0-9]{0,9}$")]


class WriteParameters(Frozen, frozen=True, forbid_unknown_fields=True, rename={
    "idempotency_key": "idempotency-key", "retry": "chaplain-retry"}):  # fmt: skip
    """Where and how to write."""

    stream: StreamName
    key: Annotated[str, Meta(description="The key of a single message; empty: none")] = ""
    isolated: Annotated[bool, Meta(description="A proof of one message never shows another")] = False
    idempotency_key: Annotated[
        str,
        Meta(min_length=1, max_length=255, extra=HEADER, description="A repeated request with this key writes once"),
    ] = ""
    retry: Annotated[
        str,
        Meta(extra=HEADER, description="The request of an `unknown-outcome`: it is written only if the first was not"),
    ] = ""


class ReadParameters(Frozen, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "stop": "to"}):
    """Which messages to read."""

    stream: StreamName
    start: Annotated[str, Meta(pattern=r"^(earliest|[0-9]{1,19})$", description="First offset")] = EARLIEST
    stop: Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="First offset that is left out")] | None = None
    limit: Annotated[int, Meta(ge=1, le=100_000, description="Most messages of a page")] = 100


class FollowParameters(Frozen, frozen=True, forbid_unknown_fields=True, rename={
    "start": "from", "stop": "to", "last_event_id": "last-event-id"}):  # fmt: skip
    """Where to begin."""

    stream: StreamName
    start: Annotated[OffsetText, Meta(description="First offset; `latest` begins with the next message")] = EARLIEST
    stop: Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="The stream ends before this offset")] | None = None
    last_event_id: Annotated[
        str, Meta(pattern=r"^([0-9]{1,19})?$", extra=HEADER, description="Offset of the last message received")
    ] = ""


class OneMessage(Frozen, frozen=True, forbid_unknown_fields=True):
    """One message."""

    stream: StreamName
    offset: Offset


class ListParameters(Frozen, frozen=True, forbid_unknown_fields=True):
    """Which page of the list."""

    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 256


class RequestParameters(Frozen, frozen=True, forbid_unknown_fields=True):
    """A write request."""

    request: RequestText


Written: TypeAlias = Sequence[Receipt]


class JournalEndpoints:
    """The handlers. `keys` are the idempotency keys of all tokens."""

    def __init__(self, settings: GatewaySettings, keys: IdempotencyKeys[Written]) -> None:
        self._settings = settings
        self._keys = keys

    def operations(self) -> list[Operation]:
        """The declarations of these endpoints."""
        reads = (problems.MISSING, problems.DROPPED)
        write_body = Body(
            {JSON: None, BATCH: NewMessages, ANY_TYPE: None},
            f"`{BATCH}` is a batch. Of any other type the body is the value of one message, stored as it is. If its"
            f" type is `{JSON}`, it has to be JSON.",
            {BATCH: BATCH_MESSAGES_MAX * RECEIPT_BYTES},
        )
        return [
            Operation(
                "listStreams", "GET", "/v1/streams", "List the streams that the client may read", self._list_streams,
                Documented(200, "A page of streams", StreamsDocument), ListParameters,
            ),
            Operation(
                "writeMessages", "POST", "/v1/streams/{stream}/messages", "Append messages", self._write,
                Documented(201, "The messages are committed", ReceiptsDocument), WriteParameters, write_body,
                (
                    problems.IN_PROGRESS, problems.KEY_REUSED, problems.MISSING, problems.UNKNOWN_OUTCOME,
                    problems.DISK_FULL,
                ),
            ),
            Operation(
                "readMessages", "GET", "/v1/streams/{stream}/messages", "Read a page of messages", self._read,
                Documented(200, "A page of messages", MessagesDocument), ReadParameters, None, reads,
            ),
            Operation(
                "readMessage", "GET", "/v1/streams/{stream}/messages/{offset}", "Read one message", self._read_one,
                Documented(200, "The message", MessageDocument), OneMessage, None, reads,
            ),
            Operation(
                "proveMessage", "GET", "/v1/streams/{stream}/messages/{offset}/proof",
                "Prove a message; waits until a signed checkpoint covers it", self._prove,
                Documented(200, "The proof, for `chaplain check`", None, TEXT), OneMessage, None, reads,
            ),
            Operation(
                "followMessages", "GET", "/v1/streams/{stream}/follow", "Follow a stream", self._follow,
                Documented(
                    200,
                    "Server-sent events: one for each message, with its offset as id. An event `problem` ends the"
                    " stream with a problem document.",
                    None, EVENT_STREAM,
                ),
                FollowParameters, None, reads,
            ),
            Operation(
                "resolveRequest", "POST", "/v1/requests/{request}/resolve",
                "Find out the outcome of a write; if it is still under way, it is stopped", self._resolve,
                Documented(200, "The outcome", OutcomeDocument), RequestParameters, None,
                (problems.MISSING, problems.UNKNOWN_OUTCOME),
            ),
        ]  # fmt: skip

    async def _list_streams(self, call: Call) -> Answer:
        given: ListParameters = call.parameters
        async with call.lend() as client:
            found = await client.streams(given.after, given.limit + 1)
        shown = found[: given.limit]
        return Answer(
            StreamsDocument([*map(stream_document, shown)], shown[-1].stream if len(found) > len(shown) else None)
        )

    async def _write(self, call: Call) -> Answer:
        given: WriteParameters = call.parameters
        write = self._writing(call)
        retried = parse_request(given.retry) if given.retry else None
        if not given.idempotency_key:
            async with call.lend() as client:
                receipts = await write(client, retried)
        else:
            receipts = await self._write_once(call, write, retried)
        place = f"/v1/streams/{quote(given.stream, safe='')}/messages/{receipts[0].offset}"
        return Answer(receipts_document(receipts), 201, {"location": place})

    def _writing(self, call: Call) -> Callable[[AsyncClient, tuple[int, int] | None], Awaitable[Written]]:
        """Decode the body; the returned function writes it."""
        given: WriteParameters = call.parameters
        if call.content_type == BATCH:
            batch = decode(call.body, NewMessages)
            items = [message_of(message) for message in batch.messages]
            if given.key:
                raise Problem(problems.INVALID, "each message of a batch has its own key")
            _check_size(sum(len(value) + len(key or b"") for value, key, _ in items))

            async def write_many(client: AsyncClient, retried: tuple[int, int] | None) -> Written:
                return await client.journal(given.stream).write_many(items, retried, given.isolated)

            return write_many
        if call.content_type == JSON:
            decode(call.body, msgspec.Raw)
        _check_size(len(call.body))
        key = given.key.encode() or None

        async def write(client: AsyncClient, retried: tuple[int, int] | None) -> Written:
            return [await client.journal(given.stream).write(call.body, key, None, retried, given.isolated)]

        return write

    async def _write_once(
        self,
        call: Call,
        write: Callable[[AsyncClient, tuple[int, int] | None], Awaitable[Written]],
        retried: tuple[int, int] | None,
    ) -> Written:
        """Write, or return the receipts of the first request with this idempotency key."""
        given: WriteParameters = call.parameters
        clock_s = asyncio.get_running_loop().time
        key = (call.token.id, given.idempotency_key)
        what = msgspec.json.encode([given.stream, given.key, given.isolated, call.content_type])
        begun = self._keys.begin(clock_s(), key, hashlib.sha256(what + b"\0" + call.body).digest())
        if begun is not None and not isinstance(begun, tuple):
            return begun
        try:
            async with call.lend() as client:
                receipts = await write(client, retried or begun)
        except Unknown as error:
            if error.id is None:
                self._keys.failed(key)
            else:
                self._keys.unknown(clock_s(), key, error.id)
            raise
        except (ChaplainError, Problem):
            if begun is None:
                self._keys.failed(key)
            else:  # a retry was refused: that says nothing about the first attempt
                self._keys.unknown(clock_s(), key, begun)
            raise
        except BaseException:  # the gateway ends, or has a bug
            self._keys.lost(clock_s(), key)
            raise
        self._keys.written(clock_s(), key, receipts)
        return receipts

    async def _read(self, call: Call) -> Answer:
        given: ReadParameters = call.parameters
        start = EARLIEST if given.start == EARLIEST else int(given.start)
        limit = min(given.limit, self._settings.page_messages_max)
        with call.buffer(WINDOW_BYTES):
            async with call.lend() as client, client.journal(given.stream).read(start, given.stop) as reader:
                found, following = await self._page(reader, limit)
            return Answer(MessagesDocument([*map(message_document, found)], following))

    async def _page(self, reader: AsyncReader, limit: int) -> tuple[list[Message], int | None]:
        found: list[Message] = []
        size_bytes = 0
        async for message in reader:
            size_bytes += len(message.value) + len(message.key or b"") + sum(map(len, message.headers.values()))
            if found and (len(found) >= limit or size_bytes > self._settings.page_bytes_max):
                return found, message.offset
            found.append(message)
        return found, None

    async def _read_one(self, call: Call) -> Answer:
        given: OneMessage = call.parameters
        with call.buffer(WINDOW_BYTES):
            async with call.lend() as client:
                return Answer(message_document(await _one(client.journal(given.stream), given.offset)))

    async def _prove(self, call: Call) -> Answer:
        given: OneMessage = call.parameters
        with call.buffer(WINDOW_BYTES):
            async with call.lend() as client:
                return Answer((await client.prove(given.stream, given.offset)).text)

    async def _resolve(self, call: Call) -> Answer:
        given: RequestParameters = call.parameters
        async with call.lend() as client:
            receipt = await client.resolve(parse_request(given.request))
        return Answer(OutcomeDocument(receipt is not None, None if receipt is None else receipt_document(receipt)))

    # Following.

    async def _follow(self, call: Call) -> EventStream:
        given: FollowParameters = call.parameters
        start: Start
        if given.last_event_id:
            start = int(given.last_event_id) + 1
        elif given.start == LATEST:
            start = None
        else:
            start = EARLIEST if given.start == EARLIEST else int(given.start)
        if given.stop is not None and (start is None or (isinstance(start, int) and start >= given.stop)):
            raise Problem(problems.INVALID, "`to` has to be above the first offset")
        async with AsyncExitStack() as stack:
            stack.enter_context(call.follow())
            client = await stack.enter_async_context(call.lend())
            journal = client.journal(given.stream)
            await _probe(journal, start)
            reader = await stack.enter_async_context(journal.read(start, given.stop, follow=True))
            return EventStream(self._events(call, reader, given.stop), stack.pop_all().aclose)
        raise AssertionError("the stack suppresses no exception")

    async def _events(self, call: Call, reader: AsyncReader, stop: int | None) -> AsyncIterator[bytes]:
        """Encode messages as they arrive. A follower that does not read stops the reader, and so the node."""
        clock_s, heartbeat_s = asyncio.get_running_loop().time, self._settings.heartbeat_seconds
        yield b": following\n\n"
        try:
            while call.is_token_valid():
                began_s = clock_s()
                message = await reader.poll(heartbeat_s, lambda: False)
                if message is not None:
                    yield _event(message)
                elif clock_s() - began_s < heartbeat_s / 2:  # not the time-out: the reading has ended
                    return
                else:
                    yield b":\n\n"
                if message is not None and message.offset + 1 == stop:
                    return
            raise Problem(problems.UNAUTHENTICATED, "the token was removed")
        except (Problem, ChaplainError) as error:
            problem = error if isinstance(error, Problem) else problem_of(error)
            yield b"event: problem\ndata: " + problem.document() + b"\n\n"


async def _probe(journal: AsyncJournal, start: Start) -> None:
    """Raise the errors of reading before the answer begins. A stream without messages can be followed."""
    stop = start + 1 if isinstance(start, int) else None if start is None else 1
    try:
        async with journal.read(start, stop) as reader:
            async for _ in reader:
                return
    except Missing as error:
        if isinstance(start, int) and (start > 0 or isinstance(error, Dropped)):
            raise


async def _one(journal: AsyncJournal, offset: int) -> Message:
    async with journal.read(offset, offset + 1) as reader:
        async for message in reader:
            return message
    raise Missing(f"stream {journal.stream!r} has no message at offset {offset}")


def _event(message: Message) -> bytes:
    return b"id: %d\ndata: " % message.offset + msgspec.json.encode(message_document(message)) + b"\n\n"


def parse_request(text: str) -> tuple[int, int]:
    """The id of a write from its text."""
    lane, _, number = text.partition("-")
    if not (lane.isdecimal() and number.isdecimal() and lane.isascii() and number.isascii()):
        raise Misused(f"the id of a request is two numbers with a dash, not {text!r:.80}")
    return int(lane), int(number)


def decode(body: bytes, kind: type[T]) -> T:
    """Decode JSON of this type."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(problems.INVALID, f"the body is not as documented: {error}") from None


def _check_size(size_bytes: int) -> None:
    if size_bytes > REQUEST_BYTES_MAX:
        raise Problem(problems.TOO_LARGE, f"a write has at most {REQUEST_BYTES_MAX} bytes, not {size_bytes}")
