"""Who waits for which call.

Gives every call its number, and hands each outcome to the one who waits. Sinks hold a future of whichever kind the
face uses; the board does not care. Safe to use from many threads.

Belongs to the process that made it. In the child of a fork nobody would ever hand out an outcome, and a lock that some
thread held is held for ever: there, whoever wants something is told before a lock is touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import Any, Protocol, assert_never

from chaplain.client.io.item_buffer import Inbox
from chaplain.client.io.lifecycle import FORKED
from chaplain.client.protocol.events import (
    Cancelled,
    ClientInput,
    Failure,
    ListeningBegan,
    Outcome,
    Raised,
    Returned,
    Yielded,
)
from chaplain.client.protocol.journal.events import ReadChunk, WritesAcknowledged
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.client.types.results import Event, Heard, MemberNews, PoolMessage, Question
from chaplain.client_service.messages import CALL_MAX, EventItem, NewsItem, PoolItem, QuestionItem
from chaplain.errors import (
    Busy,
    ChaplainError,
    Closed,
    DiskFull,
    Dropped,
    Missing,
    NotExecutor,
    Refused,
    StatementFailed,
    Unknown,
    Unreachable,
)

_ERRORS: dict[Failure, type[ChaplainError]] = {
    Failure.UNREACHABLE: Unreachable,
    Failure.REFUSED: Refused,
    Failure.UNKNOWN: Unknown,
    Failure.BUSY: Busy,
    Failure.CLOSED: Closed,
    Failure.INVALID: Refused,
    Failure.MISSING: Missing,
    Failure.DISK_FULL: DiskFull,
    Failure.STATEMENT: StatementFailed,
    Failure.DROPPED: Dropped,
    Failure.NOT_EXECUTOR: NotExecutor,
}


def error_of(raised: Raised) -> ChaplainError:
    if raised.failure is Failure.UNKNOWN:
        return Unknown(raised.reason, raised.request)
    if raised.failure is Failure.STATEMENT:
        return StatementFailed(raised.reason, raised.kind)
    return _ERRORS[raised.failure](raised.reason)


class FutureLike(Protocol):
    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class Sink:
    """Waits for one answer."""

    def __init__(self, future: FutureLike) -> None:
        self._future = future

    def take(self, outcome: Outcome) -> None:
        match outcome:
            case Returned():
                self._set(outcome.payload)
            case Raised():
                self.fail(error_of(outcome))
            case WritesAcknowledged():
                self._set(outcome.place)
            case ListeningBegan():
                self._set(b"")
            case Yielded() | ReadChunk():
                raise AssertionError("only a listening is given items")
            case _:
                assert_never(outcome)

    def fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    def _set(self, payload: bytes | ReceiptPlace) -> None:
        if not self._future.done():
            self._future.set_result(payload)


class ListeningSink(Sink):
    """Waits for a listening to begin, then puts its items into the inbox and knocks."""

    def __init__(self, future: FutureLike, inbox: Inbox, knock: Callable[[], None]) -> None:
        super().__init__(future)
        self._inbox = inbox
        self._knock = knock
        self.error: BaseException | None = None

    def take(self, outcome: Outcome) -> None:
        if isinstance(outcome, Yielded):
            self._inbox.put(_item_of(outcome))
            self._knock()
        else:
            super().take(outcome)

    def fail(self, error: BaseException) -> None:
        begun = self._future.done()
        super().fail(error)
        if begun:
            self.error = error
            self._knock()


class CallRegistry:
    def __init__(self, submit: Callable[[ClientInput], None]) -> None:
        self._submit = submit
        self._sinks: dict[int, Sink] = {}
        self._lock = RLock()  # a listener may be collected, and cancel, wherever this thread allocates
        self._last = 0
        self._groups = 0
        self._pid = os.getpid()

    def check(self) -> None:
        """To be called before waiting for anything."""
        if not self._is_here:
            raise Closed(FORKED)

    @property
    def _is_here(self) -> bool:
        return os.getpid() == self._pid

    def enter(self, sink: Sink) -> int:
        """Have the sink wait for a call of this number, which is yet to be handed over."""
        self.check()
        with self._lock:
            call = self._number()
            self._sinks[call] = sink
        return call

    def open(self, build: Callable[[int], ClientInput], sink: Sink) -> int:
        """Hand over a call that nobody blocks for."""
        call = self.enter(sink)
        try:
            self._submit(build(call))
        except BaseException:
            self._forget(call)
            raise
        return call

    def submit(self, event: ClientInput) -> None:
        """Hand over something that no answer belongs to. Harmless if the client has ended."""
        with suppress(Closed):
            self._submit(event)

    def new_group(self) -> int:
        self.check()
        with self._lock:
            self._groups += 1
            return self._groups

    def cancel(self, call: int) -> None:
        """Nobody waits any more. Harmless if the call has ended, or the client."""
        if self._is_here and self._forget(call) is not None:
            with suppress(Closed):
                self._submit(Cancelled(call))

    def abandon(self, sink: Sink) -> None:
        """Cancel its call, if it has one: whoever was interrupted may not know the number."""
        if not self._is_here:
            return
        with self._lock:
            calls = [call for call, one in self._sinks.items() if one is sink]
        for call in calls:
            self.cancel(call)

    def deliver(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            ended = isinstance(outcome, Returned | Raised | WritesAcknowledged)
            sink = self._forget(outcome.call) if ended else self._sinks.get(outcome.call)
            if sink is not None:
                sink.take(outcome)

    def fail_all(self, error: BaseException) -> None:
        with self._lock:
            sinks, self._sinks = list(self._sinks.values()), {}
        for sink in sinks:
            sink.fail(error)

    def _forget(self, call: int) -> Sink | None:
        with self._lock:
            return self._sinks.pop(call, None)

    def _number(self) -> int:
        """The next number that no call under way has: they wrap, and a listening may last."""
        while True:
            self._last = self._last % CALL_MAX + 1
            if self._last not in self._sinks:
                return self._last


def _item_of(yielded: Yielded) -> Heard:
    item, payload = yielded.item, yielded.payload
    match item:
        case EventItem():
            return Event(item.id, item.event, payload, item.sender, yielded.missed, yielded.moved)
        case NewsItem():
            return MemberNews(
                item.kind, item.node, item.pool, item.state, item.was, item.reason, yielded.missed, yielded.moved
            )
        case PoolItem():
            return PoolMessage(item.pool, payload, item.sender, item.client, yielded.missed, yielded.moved)
        case QuestionItem():
            return Question(item.query, item.question, payload, item.asker, yielded.missed, yielded.moved)
        case _:
            assert_never(item)
