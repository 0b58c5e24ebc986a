"""Maps the number of each pending call to the sink that receives its outcome.

The registry numbers calls and delivers outcomes. A sink contains a future of the kind that its client uses; the
registry does not depend on this kind. Any thread may use the registry.

A registry belongs to the process that created it. In the child of a fork no thread would deliver an outcome, and a lock
that another thread held stays locked forever. There every call raises `Closed` before it touches a lock.
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
from chaplain.client.types.results import Event, ListenerItem, MemberMessage, MemberNews, PoolMessage, Question
from chaplain.client_service.messages import CALL_MAX, EventItem, MessageItem, NewsItem, PoolItem, QuestionItem
from chaplain.errors import (
    Busy,
    ChaplainError,
    Closed,
    DiskFull,
    Dropped,
    Forbidden,
    LeaseLost,
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
    Failure.NO_RIGHT: Forbidden,
    Failure.LEASE_LOST: LeaseLost,
}


def error_of(raised: Raised) -> ChaplainError:
    """The exception for a call that failed."""
    if raised.failure is Failure.UNKNOWN:
        return Unknown(raised.reason, raised.request)
    if raised.failure is Failure.STATEMENT:
        return StatementFailed(raised.reason, raised.kind)
    return _ERRORS[raised.failure](raised.reason)


class FutureLike(Protocol):
    """The part of a future that sinks use."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class OutcomeSink(Protocol):
    """Receives the outcomes of one call."""

    def on_outcome(self, outcome: Outcome, /) -> None: ...
    def fail(self, error: BaseException, /) -> None: ...


class Completion:
    """Receives the outcome of one call and resolves its future."""

    def __init__(self, future: FutureLike) -> None:
        self._future = future

    def on_outcome(self, outcome: Outcome) -> None:
        match outcome:
            case Returned():
                self._set(outcome.payload)
            case Raised():
                self.fail(error_of(outcome))
            case WritesAcknowledged():
                self._set(outcome.place)
            case Yielded() | ReadChunk() | ListeningBegan():
                raise AssertionError("only a subscription receives items")
            case _:
                assert_never(outcome)

    def fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    def _set(self, payload: bytes | ReceiptPlace) -> None:
        if not self._future.done():
            self._future.set_result(payload)


class SubscriptionSink:
    """Buffers the items of a subscription. Calls `notify` after each change."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self.inbox = Inbox()
        self.started = False
        self.error: BaseException | None = None

    def on_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, Yielded):
            self.inbox.put(_item_of(outcome))
        elif isinstance(outcome, Raised):
            self.error = error_of(outcome)
        else:
            self.started = True
        self._notify()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._notify()


class CallRegistry:
    """The pending calls of one client."""

    def __init__(self, submit: Callable[[ClientInput], None]) -> None:
        self._submit = submit
        self._sinks: dict[int, OutcomeSink] = {}
        self._lock = (
            RLock()
        )  # reentrant: garbage collection may run a listener's finalizer, which cancels, at any allocation
        self._last_call = 0
        self._last_group = 0
        self._pid = os.getpid()

    def check_usable(self) -> None:
        """Raise `Closed` if this process or loop must not use the client. Call it before waiting for anything."""
        if os.getpid() != self._pid:
            raise Closed(FORKED)

    def register(self, sink: OutcomeSink) -> int:
        """Give a call that is about to be submitted its number."""
        self.check_usable()
        with self._lock:
            call = self._next_call()
            self._sinks[call] = sink
        return call

    def submit_call(self, build: Callable[[int], ClientInput], sink: OutcomeSink) -> int:
        """Register and submit a call without blocking for its outcome. Returns its number."""
        call = self.register(sink)
        try:
            self._submit(build(call))
        except BaseException:
            self._remove(call)
            raise
        return call

    def submit(self, event: ClientInput) -> None:
        """Submit an input that has no outcome. Does nothing if the client has ended."""
        with suppress(Closed):
            self._submit(event)

    def new_group(self) -> int:
        """A number for a group of writes that fail together (`WriteCommand.group`)."""
        self.check_usable()
        with self._lock:
            self._last_group += 1
            return self._last_group

    def cancel(self, call: int) -> None:
        """Cancel a call. Does nothing if the call or the client has ended."""
        if os.getpid() == self._pid and self._remove(call) is not None:
            with suppress(Closed):
                self._submit(Cancelled(call))

    def cancel_sink(self, sink: OutcomeSink) -> None:
        """Cancel the call of this sink, if it has one: an interrupted caller may not know the number."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            calls = [call for call, one in self._sinks.items() if one is sink]
        for call in calls:
            self.cancel(call)

    def deliver(self, outcomes: list[Outcome]) -> None:
        """Give each outcome to the sink of its call."""
        for outcome in outcomes:
            ended = isinstance(outcome, Returned | Raised | WritesAcknowledged)
            sink = self._remove(outcome.call) if ended else self._sinks.get(outcome.call)
            if sink is not None:
                sink.on_outcome(outcome)

    def fail_all(self, error: BaseException) -> None:
        """Fail every pending call."""
        with self._lock:
            sinks, self._sinks = list(self._sinks.values()), {}
        for sink in sinks:
            sink.fail(error)

    def _remove(self, call: int) -> OutcomeSink | None:
        with self._lock:
            return self._sinks.pop(call, None)

    def _next_call(self) -> int:
        """The next number that no pending call has. Numbers wrap, and a subscription may outlive a wrap."""
        while True:
            self._last_call = self._last_call % CALL_MAX + 1
            if self._last_call not in self._sinks:
                return self._last_call


def _item_of(yielded: Yielded) -> ListenerItem:
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
        case MessageItem():
            return MemberMessage(payload, item.sender, item.client, yielded.missed, yielded.moved)
        case QuestionItem():
            return Question(item.query, item.question, payload, item.asker, yielded.missed, yielded.moved)
        case _:
            assert_never(item)
