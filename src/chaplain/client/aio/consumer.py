"""Named consumers: `AsyncConsumer` and its messages.

A consumer reads its stream with an ordinary reader. The cores in `client.protocol.consumers` decide which messages the
consumer delivers and acknowledges; this module connects these cores with the stream. While a request with
acknowledgements is under way, further acknowledgements wait and share the next request. A ticker reads the consumer's
state a few times in each lease. It sends a command only if the state requires one.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, cast

from chaplain.client.aio.connection import AsyncClientContext
from chaplain.client.aio.cursor import find_stream
from chaplain.client.aio.waiting import AsyncNotifier, AsyncTicker
from chaplain.client.api import consumer_calls
from chaplain.client.api.journal_calls import EARLIEST
from chaplain.client.api.no_copy import NotPicklable
from chaplain.client.io.journal_sinks import ChunkSink
from chaplain.client.protocol.consumers.queue_progress import QueueProgress
from chaplain.client.protocol.consumers.slot_progress import SlotProgress
from chaplain.client.protocol.consumers.state import ConsumerState, MemberState
from chaplain.client.protocol.journal.events import WriteCommand
from chaplain.client.types.codecs import V
from chaplain.client.types.consumers import ConsumerSettings, start_offset
from chaplain.client.types.journal import Message
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.errors import ChaplainError, Closed, Forbidden, LeaseLost, Missing, Misused, Refused
from chaplain.journal.messages.consumer import (
    NONCE_BYTES,
    Acknowledge,
    Challenge,
    Command,
    Fetch,
    Finish,
    Leave,
    Mode,
    Return,
    Touch,
)

if TYPE_CHECKING:
    from chaplain.client.aio.journal import AsyncJournal, AsyncReader

LOOKS_PER_LEASE = 3
"""How often a worker looks at the state in each lease time."""
RETRY_S = 0.2
"""Pause after a failure, and before a fetch is repeated that leased nothing."""
DEAD_STREAM = "chaplain-dead-stream"
DEAD_OFFSET = "chaplain-dead-offset"
DEAD_CONSUMER = "chaplain-dead-consumer"
"""Headers of a message in a dead-letter stream: where it comes from."""


class AsyncConsumedMessage(Generic[V]):
    """A message that a consumer delivered. `ack` or `nack` it."""

    __slots__ = ("_at", "_consumer", "deliveries", "message")

    def __init__(self, consumer: AsyncConsumer[V], message: Message[V], deliveries: int, at: tuple[int, int]) -> None:
        self.message = message
        self.deliveries = deliveries
        """Queue: how often the message was delivered, this time included. Otherwise 1."""
        self._consumer = consumer
        self._at = at

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.message!r}>"

    @property
    def stream(self) -> str:
        return self.message.stream

    @property
    def offset(self) -> int:
        return self.message.offset

    @property
    def key(self) -> bytes | None:
        return self.message.key

    @property
    def value(self) -> V:
        return self.message.value

    @property
    def raw(self) -> bytes:
        return self.message.raw

    @property
    def headers(self) -> dict[str, bytes]:
        return self.message.headers

    @property
    def timestamp(self) -> int:
        return self.message.timestamp

    async def ack(self) -> bool:
        """Acknowledge the message. It is sent soon, together with others; `commit` waits for it.

        Returns False if it is already known that the lease of the message has ended.
        """
        return self._consumer._acknowledge(self.message.offset, self._at)

    async def nack(self, delay: float = 0.0) -> bool:
        """Return the message: it is delivered again after `delay` seconds.

        In the modes `single` and `keyed`, this worker delivers it again, and then the messages that follow it in its
        slot. Returns False if it is already known that the lease of the message has ended.
        """
        return self._consumer._give_back(self.message.offset, self._at, delay)

    async def execute(self, sql: str, parameters: Any = None, database: str = "main") -> Any:
        """Execute one statement and acknowledge this message, as one request: both happen, or neither.

        Raises `LeaseLost` if the lease has ended: then nothing was executed.
        """
        return await self.transaction([(sql, parameters or ())], database)

    async def transaction(self, items: Iterable[Any], database: str = "main") -> Any:
        """Execute statements as one transaction and acknowledge this message, as one request. Raises the errors of
        `Sql.transaction`, and `LeaseLost`.
        """
        return await self._consumer._execute(self.message.offset, self._at, items, database)


class AsyncConsumer(NotPicklable, Generic[V]):
    """A worker of a named consumer. Use it in an `async with` statement, and iterate over its messages.

    The cluster stores the consumer's position, and divides the messages among its workers.
    """

    def __init__(self, context: AsyncClientContext, journal: AsyncJournal[V], settings: ConsumerSettings) -> None:
        self.stream = journal.stream
        self.name = settings.name
        self._context = context
        self._journal = journal
        self._settings = settings
        self._changed = AsyncNotifier()
        self._ticker: AsyncTicker | None = None
        self._progress: SlotProgress | QueueProgress | None = None
        self._in_flight: list[Command] = []
        """Commands of one request that has no receipt yet."""
        self._doubtful: list[Command] = []
        """Commands that may not have counted: the state shows what did."""
        self._index = 0
        """The last cluster message that contains a command of this worker."""
        self._joining = False
        self._stale = False
        """The assignment may have changed: the iteration has to look at it."""
        self._final = False
        """Send as much as possible with the next acknowledgement."""
        self._lost = 0
        self._error: BaseException | None = None
        self._closed = False
        self._reader: AsyncReader[V] | None = None
        self._buffer: deque[tuple[Message[V], int]] = deque()
        """Queue: messages that were read and not delivered, with their number of deliveries."""
        self._to_read: list[tuple[int, int]] = []
        self._wants_more = True
        """Queue: there may be messages to fetch."""
        self._fetch_after_s = 0.0
        """Queue: nothing is fetched before this time, after a fetch that leased nothing."""
        self._next_offset = 0
        """Queue: the first offset that no worker has fetched."""
        self._due_s = 0.0
        """Queue: when the first message that another worker has, or that waits, may be delivered again."""
        self._looked_for_leases = False
        """Queue: the state is being read after a fetch."""
        self._fetched = False
        """Queue: a fetch was answered, and the state was not read since."""
        self._seen: dict[int, tuple[int, float]] = {}
        """When each other worker was first seen with its latest time of activity."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._ticker is not None else "not open"
        return f"<{type(self).__name__} {self.name!r} of {self.stream!r}: {state}>"

    @property
    def token(self) -> int:
        """The fencing token of this worker. Later workers have higher tokens. If this worker joins again, it gets a new
        one.
        """
        return self._progress.token if self._progress is not None else 0

    # Iteration.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncConsumedMessage[V]:
        """Wait for the next message. Ends after `timeout` seconds without one."""
        await self._open()
        wait_s = self._settings.timeout_s
        until_s = None if wait_s is None else time.monotonic() + wait_s
        while True:
            self._raise_if_failed()
            now_s = time.monotonic()
            left_s = None if until_s is None else max(until_s - now_s, 0.0)
            found = await (self._next_of_queue(left_s) if self._is_queue else self._next_of_slots(left_s))
            if found is not None:
                return found
            if until_s is not None and time.monotonic() >= until_s:
                raise StopAsyncIteration

    @property
    def _is_queue(self) -> bool:
        return self._settings.mode is Mode.QUEUE

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise Closed("this consumer is closed: consume again")

    async def _next_of_slots(self, wait_s: float | None) -> AsyncConsumedMessage[V] | None:
        """The next message, or None if something changed or the time is over."""
        now_s = time.monotonic()
        with self._changed.lock:
            progress, self._stale = self._progress, False
            assert isinstance(progress, SlotProgress)
            holds, target = progress.holds, progress.seek(now_s)
            if target is not None:
                progress.seeked(target, now_s)
            elif not holds:
                progress.stopped()
            pause_s = progress.next_seek_s()
        if target is not None or not holds:
            await self._close_reader()
        if target is not None:
            self._reader = self._journal.read(target or EARLIEST, follow=True)
        if pause_s is not None and pause_s > now_s:
            wait_s = pause_s - now_s if wait_s is None else min(wait_s, pause_s - now_s)
        reader = self._reader
        if reader is None:
            await self._changed.wait_for(lambda: self._stale or None, wait_s)
            return None
        while (message := await reader.poll(wait_s, self._is_interrupted)) is not None:
            with self._changed.lock:
                at = progress.offer(message.key, message.offset) if progress is self._progress else None
            if at is not None:
                return AsyncConsumedMessage(self, message, 1, at)
            if self._stale:
                break
        return None

    def _is_interrupted(self) -> bool:
        return self._stale or self._closed or self._error is not None

    async def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def _next_of_queue(self, wait_s: float | None) -> AsyncConsumedMessage[V] | None:
        """As `_next_of_slots`, for a queue."""
        with self._changed.lock:
            self._stale = False
            progress = self._progress
            assert isinstance(progress, QueueProgress)
            reload, self._fetched = self._fetched, False
            self._looked_for_leases = reload
            wants = self._may_fetch() and not reload and not self._in_flight and progress.to_fetch() is not None
        if wants:
            self._context.hand_over(self._submit)
        if reload:
            await self._look()
        while self._to_read:
            await self._read_leased(progress, *self._to_read.pop(0))
        while self._buffer:
            message, deliveries = self._buffer.popleft()
            with self._changed.lock:
                leased = progress.deliveries.get(message.offset) == deliveries
                if leased:
                    progress.delivered.add(message.offset)
            if not leased:
                continue
            delivery = AsyncConsumedMessage(self, message, deliveries, (0, deliveries))
            if not self._settings.max_deliveries or deliveries <= self._settings.max_deliveries:
                return delivery
            await self._write_dead(message)
            await delivery.ack()
        await self._wait_for_queue(wait_s)
        return None

    def _may_fetch(self) -> bool:
        return self._wants_more and time.monotonic() >= self._fetch_after_s

    async def _read_leased(self, progress: QueueProgress, first: int, last: int) -> None:
        """Read the leased messages of this range."""
        try:
            async with self._journal.read(first, last + 1) as reader:
                async for message in reader:
                    deliveries = progress.deliveries.get(message.offset)
                    if deliveries is not None:
                        self._buffer.append((message, deliveries))
        except Missing:  # retention deleted them: nothing is left to deliver
            for offset in range(first, last + 1):
                deliveries = progress.deliveries.get(offset, 0)
                with self._changed.lock:
                    progress.delivered.add(offset)
                self._acknowledge(offset, (0, deliveries))

    async def _write_dead(self, message: Message[V]) -> None:
        """Write a message that was delivered too often to the dead-letter stream."""
        source = {
            DEAD_STREAM: self.stream.encode(),
            DEAD_OFFSET: b"%d" % message.offset,
            DEAD_CONSUMER: self.name.encode(),
        }
        headers = {name: value for name, value in message.headers.items() if name}
        stream = self._journal_of(self._settings.dead_letter)
        await stream.write(message.raw, message.key, {**headers, **source})

    def _journal_of(self, stream: str) -> AsyncJournal:
        return cast("AsyncJournal", type(self._journal)(self._context, stream))

    async def _wait_for_queue(self, wait_s: float | None) -> None:
        """Wait until there may be something to fetch: a receipt, a new message, or one that is due again."""
        with self._changed.lock:
            waiting = self._in_flight or self._fetched or self._stale
        if waiting:
            await self._changed.wait_for(self._is_fetched, wait_s)
            return
        limits = [one for one in (wait_s, RETRY_S if self._wants_more else None) if one is not None]
        if self._due_s:
            limits.append(max(self._due_s - time.time(), RETRY_S))
        reader = self._reader
        if reader is None:
            reader = self._reader = self._journal.read(self._next_offset or EARLIEST, follow=True)
        message = await reader.poll(min(limits, default=None), self._is_interrupted)
        if message is not None or (self._due_s and time.time() >= self._due_s):
            self._wants_more = True
            await self._close_reader()

    def _is_fetched(self) -> bool | None:
        done = self._fetched or self._stale or not self._in_flight
        return True if done or self._is_interrupted() else None

    # Joining, and looking at the state.

    async def _open(self) -> None:
        """Join, once."""
        if self._ticker is not None or self._closed:
            return
        await self._join()
        self._ticker = AsyncTicker(self._tick)

    async def _join(self) -> None:
        """Become a worker with a new token."""
        nonce = os.urandom(NONCE_BYTES)
        join = self._settings.join(nonce, await self._first_offset())
        place = await self._context.run(consumer_calls.tell(self.stream, [join]))
        self._index = max(self._index, place.index)
        described = await self._described(0)
        member = described.member_of(nonce) if described is not None else None
        if member is None:
            raise Refused(_why_not(self._settings, described))
        assert described is not None
        with self._changed.lock:
            self._in_flight, self._doubtful = [], []
            if self._is_queue:
                self._progress = QueueProgress(self.name, member.token, self._settings.prefetch)
                self._buffer.clear()
                self._to_read.clear()
                self._wants_more = True
            else:
                self._progress = SlotProgress(self.name, member.token, self._settings.slots)
            self._take(described)

    async def _first_offset(self) -> int:
        """The offset at which a new consumer starts."""
        start = self._settings.start
        if not isinstance(start, datetime):
            return start_offset(start)
        if await self._described(0) is not None:
            return 0  # the consumer exists, and has its position
        return await first_offset_since(self._context, self._journal, start)

    async def _described(self, token: int) -> ConsumerState | None:
        """The state, at a node that has executed the last command of this worker."""
        while True:
            index, described = await self._context.run(consumer_calls.state(self.stream, self.name, token))
            if index >= self._index:
                return described
            await self._changed.wait_for(lambda: self._closed or None, RETRY_S / 10)

    async def _look(self) -> ConsumerState | None:
        """Read the state and apply it to this worker. Joins again if the cluster has removed the worker."""
        progress = self._progress
        assert progress is not None
        described = await self._described(progress.token if self._is_queue else 0)
        if described is None:
            raise Missing(f"there is no consumer {self.name!r} of stream {self.stream!r} any more: it was removed")
        if all(member.token != progress.token for member in described.members):
            await self._join_again(progress)
            return None
        with self._changed.lock:
            self._take(described)
        return described

    async def _join_again(self, progress: SlotProgress | QueueProgress) -> None:
        """Join with a new token, once: the ticker and the iteration may both find that the worker was removed."""
        with self._changed.lock:
            if self._joining or progress is not self._progress:
                return
            self._joining = True
            self._lost += progress.in_hand
        try:
            await self._join()
        finally:
            self._joining = False

    def _take(self, described: ConsumerState) -> None:
        """Apply the state that the cluster has decided to this worker. The caller holds the lock."""
        progress, doubtful = self._progress, self._doubtful
        self._doubtful = []
        if isinstance(progress, QueueProgress):
            progress.refused([one for one in doubtful if isinstance(one, Finish | Return)])
            ranges = progress.assign(described)
            self._to_read += ranges
            self._due_s = described.due / 1e9
            self._next_offset = described.next_offset
            self._wants_more = described.head > described.next_offset or 0 < described.due <= time.time_ns()
            if not ranges and self._looked_for_leases:
                self._fetch_after_s = time.monotonic() + RETRY_S
        elif isinstance(progress, SlotProgress):
            if doubtful:
                progress.refused(described)
            else:
                progress.assign(described)
        assert progress is not None
        self._lost += progress.lost
        progress.lost = 0

    async def _tick(self) -> float | None:
        """Read the state; show that this worker is alive, and challenge workers that are silent although messages
        wait.
        """
        if self._closed:
            return None
        pause_s: float | None = self._settings.lease_s / LOOKS_PER_LEASE
        try:
            described = await self._look()
            if described is not None and (commands := self._due_commands(described, time.monotonic())):
                place = await self._context.run(consumer_calls.tell(self.stream, commands))
                self._index = max(self._index, place.index)
                await self._look()
            with self._changed.lock:
                if isinstance(self._progress, SlotProgress):
                    self._progress.report_skipped()
            self._context.hand_over(self._submit)
        except (Forbidden, Missing, Misused, Closed) as error:
            self._error = error
            pause_s = None
        except ChaplainError:  # temporary: the next look may succeed
            pause_s = RETRY_S
        self._stale = True
        self._changed.notify()
        if self._reader is not None:
            self._reader.wake()
        return pause_s

    def _due_commands(self, described: ConsumerState, now_s: float) -> list[Command]:
        """The commands that the state asks for."""
        progress = self._progress
        assert progress is not None
        commands: list[Command] = []
        me = next((member for member in described.members if member.token == progress.token), None)
        if me is None:  # the iteration has joined again meanwhile: the next look is about the new worker
            return commands
        if isinstance(progress, QueueProgress):
            if progress.in_hand:
                commands.append(Touch(self.name, me.token))
            return commands
        overdue = any(target == me.token != holder for _, holder, target, _ in described.slots)
        waited_s = self._waited_s(me.token, described.epoch, now_s) if overdue else 0.0
        if me.challenged or waited_s > self._settings.lease_s:
            commands.append(Touch(self.name, me.token))
        for member in described.members:
            if member.token != me.token and self._is_silent(described, member, now_s):
                commands.append(Challenge(self.name, me.token, member.token))
        return commands

    def _waited_s(self, token: int, mark: int, now_s: float) -> float:
        """Seconds since this worker saw another value of `mark` of that worker; 0 if the value is new."""
        seen = self._seen.get(token)
        if seen is None or seen[0] != mark:
            self._seen[token] = (mark, now_s)
            return 0.0
        return now_s - seen[1]

    def _is_silent(self, described: ConsumerState, member: MemberState, now_s: float) -> bool:
        """Whether a worker has messages to process and has sent no command for a while."""
        behind = any(holder == member.token and position < described.head for position, holder, _, _ in described.slots)
        return self._waited_s(member.token, member.active, now_s) > 0 and behind

    # Acknowledgements.

    def _acknowledge(self, offset: int, at: tuple[int, int]) -> bool:
        with self._changed.lock:
            progress = self._progress
            if isinstance(progress, QueueProgress):
                counts = progress.acknowledge(offset, at[1])
            else:
                counts = progress is not None and progress.acknowledge(*at, offset)
            idle = counts and not self._in_flight
        if idle:
            self._context.hand_over(self._submit)
        return counts

    def _give_back(self, offset: int, at: tuple[int, int], delay_s: float) -> bool:
        if not 0 <= delay_s <= 86_400:
            raise Misused(f"a delay is 0 to 86400 seconds, not {delay_s!r}")
        with self._changed.lock:
            progress = self._progress
            if isinstance(progress, QueueProgress):
                counts = progress.give_back(offset, at[1], round(delay_s * 1000))
                self._wants_more = True
            else:
                counts = progress is not None and progress.pause(*at, offset, time.monotonic() + delay_s)
            self._stale = True
        self._context.hand_over(self._submit)
        return counts

    async def _execute(self, offset: int, at: tuple[int, int], items: Iterable[Any], database: str) -> Any:
        from chaplain.client.aio.sql import AsyncSql  # noqa: PLC0415  it imports the journal, which imports this module

        with self._changed.lock:
            progress = self._progress
            command: Acknowledge | Finish | None = None
            if isinstance(progress, QueueProgress):
                command = progress.together(offset, at[1])
            elif progress is not None:
                command = progress.together(*at, offset)
        if command is None:
            raise LeaseLost("the lease has ended, or an earlier message of the same keys is not acknowledged")
        result = await AsyncSql(self._context, database).transaction_with(items, (self.stream, command))
        with self._changed.lock:
            if isinstance(progress, QueueProgress):
                progress.delivered.discard(offset)
                progress.answered([command] if isinstance(command, Finish) else [])
            elif progress is not None:
                progress.acknowledge(*at, offset)
        return result

    async def commit(self) -> None:
        """Wait until the cluster has decided about all acknowledgements so far.

        Raises `LeaseLost` if one of them did not count, and the first failure to send them.
        """
        with self._changed.lock:
            self._final = True
        self._context.hand_over(self._submit)
        done = await self._changed.wait_for(self._is_settled, self._context.timeout_s)
        if not done and self._error is None:
            raise LeaseLost("the cluster has not decided in time: the messages may be delivered again")
        lost, self._lost = self._lost, 0
        if lost:
            raise LeaseLost("a lease ended before its messages were acknowledged: another worker gets them")

    def _is_settled(self) -> bool | None:
        self._raise_if_failed()
        waiting = self._in_flight or self._doubtful or self._final
        return None if waiting or (self._progress is not None and self._progress.pending) else True

    async def close(self) -> None:
        """Send the acknowledgements, and leave: other workers continue at once."""
        if self._closed or self._ticker is None:
            self._closed = True
            return
        await self._ticker.close()
        try:
            if self._error is None:
                with suppress(LeaseLost):
                    await self.commit()
                await self._leave()
        except ChaplainError:
            pass  # the lease ends by itself
        finally:
            self._closed = True
            await self._close_reader()
            self._changed.notify()

    async def _leave(self) -> None:
        progress = self._progress
        assert progress is not None
        unseen = progress.to_give_back() if isinstance(progress, QueueProgress) else None
        commands: list[Command] = [unseen] if unseen is not None else []
        await self._context.run(consumer_calls.tell(self.stream, [*commands, Leave(self.name, progress.token)]))

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # For the engine.

    def _submit(self) -> None:
        """Send the waiting commands, unless a request with commands is under way."""
        with self._changed.lock:
            if self._in_flight or self._doubtful or self._closed or self._error is not None:
                return
            commands, self._final = self._waiting_commands(), False
            progress, self._in_flight = self._progress, commands
        if not commands:
            self._changed.notify()
            return
        batch = consumer_calls.batch_of(self.stream, commands)
        sink = ChunkSink(
            batch.size_bytes,
            lambda size_bytes, place: self._answered(progress, commands, place),
            lambda error: self._failed(progress, commands, error),
        )
        timeout_ns = int(self._context.timeout_s * 1e9)
        try:
            self._context.registry.submit_call(lambda call: WriteCommand(call, batch, timeout_ns), sink)
        except ChaplainError as error:
            self._failed(progress, commands, error)

    def _waiting_commands(self) -> list[Command]:
        progress = self._progress
        if isinstance(progress, QueueProgress):
            fetch = progress.to_fetch() if self._may_fetch() else None
            return [*progress.to_send(), *([fetch] if fetch is not None else [])]
        assert progress is not None
        found = (progress.to_send(self._final), progress.to_release())
        return [command for command in found if command is not None]

    def _answered(self, progress: object, commands: Sequence[Command], place: ReceiptPlace) -> None:
        """The cluster has executed the commands. `place.base_offset` is the number of refused ones."""
        with self._changed.lock:
            if progress is not self._progress:
                return  # the worker has joined again
            self._in_flight = []
            self._index = max(self._index, place.index)
            if place.base_offset:
                self._doubtful = [*commands]
            elif isinstance(progress, QueueProgress):
                progress.answered([one for one in commands if isinstance(one, Finish | Return)])
            released = not isinstance(progress, QueueProgress) and any(_changes_slots(one) for one in commands)
            self._fetched = self._fetched or any(isinstance(one, Fetch) for one in commands)
        if (place.base_offset or released) and self._ticker is not None:
            self._ticker.wake()
        self._submit()
        self._changed.notify()

    def _failed(self, progress: object, commands: Sequence[Command], error: BaseException) -> None:
        with self._changed.lock:
            if progress is not self._progress:
                return
            self._in_flight, self._doubtful = [], [*commands]
            if isinstance(error, Closed | Forbidden | Misused):
                self._error = error
        if self._ticker is not None:
            self._ticker.wake()
        self._changed.notify()
        if self._reader is not None:
            self._reader.wake()


def _changes_slots(command: Command) -> bool:
    return not isinstance(command, Acknowledge)


def _why_not(settings: ConsumerSettings, described: ConsumerState | None) -> str:
    """The reason for which the cluster did not accept a worker."""
    if described is None:
        return "the cluster has as many consumers as it may have: remove one with `chaplain consumer remove`"
    slots = f" with {len(described.slots)} slots" if described.mode == "keyed" else ""
    wanted = settings.mode.name.lower()
    if described.mode != wanted or len(described.slots) != settings.slots:
        return (
            f"the consumer {settings.name!r} has mode {described.mode!r}{slots}: use that, or remove the consumer first"
        )
    return f"the consumer {settings.name!r} has as many workers as it may have"


async def first_offset_since(context: AsyncClientContext, journal: AsyncJournal[Any], since: datetime) -> int:
    """The offset of the first retained message that is not older than this time; the head if there is none."""
    since_ns = int(since.timestamp() * 1e9)
    found = await find_stream(context, journal.stream)
    if found is None:
        return 0
    low, high = found.first_offset, found.next_offset
    while low < high:
        middle = (low + high) // 2
        async with journal.read(middle, middle + 1) as reader:
            message = await anext(reader)
        if message.timestamp < since_ns:
            low = middle + 1
        else:
            high = middle
    return low
