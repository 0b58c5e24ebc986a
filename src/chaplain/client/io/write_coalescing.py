"""Single writes that a program asks for in one turn of its loop, handed over as one batch and answered one by one.

Thousands of coroutines that each write one message cost the client one hand-over each otherwise, which is most of what
such a write costs. Each message is still a request of its own, with its own id and receipt.

Who has a receipt usually writes again. So answers are told a slice at a time, which lets the program and its loop do
something in between, and what is written meanwhile leaves as one batch: when that is full, or when the writers of a
batch were told. The cluster works on the one while those of the next are told.

Invariants: messages are handed over in the order in which they were written; every future ends; one that was cancelled
before its batch was handed over is not handed over; no message waits while more than `TOLD_LEAST` others, and what is
left of one batch, are told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from operator import methodcaller
from typing import Protocol

from chaplain.client.io.call_registry import CallRegistry, Sink, error_of
from chaplain.client.io.journal_futures import NOBODY
from chaplain.client.protocol.call_events import Failure, Raised
from chaplain.client.protocol.events import Outcome
from chaplain.client.protocol.journal.batch_builder import BatchBuilder
from chaplain.client.protocol.journal.events import WriteCommand, WritesAcknowledged
from chaplain.client.protocol.journal.packing import MESSAGE_BYTES, PACK_BYTES, PACK_HEAD_BYTES, PACK_MESSAGES
from chaplain.client.types.journal import Receipt, RequestId
from chaplain.client.types.receipts import Receipts
from chaplain.errors import ChaplainError, Unknown

FULL_BYTES = PACK_BYTES - PACK_HEAD_BYTES
"""A batch fits into a pack."""
FULL_MESSAGES = PACK_MESSAGES // 4
"""So that of thousands that are under way the cluster has some while the program has others."""
TOLD_LEAST = FULL_MESSAGES // 2
"""Small batches that are answered together become one: who was told of fewer waits for the next."""
SLICE = 256
"""Futures that are done at a time. Those of a larger slice outlive collections of garbage, which then take up a sixth
of the client's time: a future that is done and forgotten soon never meets one."""

Waiting = asyncio.Future[Receipt]
_is_done = methodcaller("done")


class CoalescerContext(Protocol):
    timeout_s: float
    board: CallRegistry
    loop: asyncio.AbstractEventLoop

    def push(self) -> None:
        """Have what was handed over leave now rather than after whatever else is ready to run."""


class WriteCoalescer:
    """The writes to one stream of one client."""

    def __init__(self, line: CoalescerContext, stream: str) -> None:
        self._line = line
        self._stream = stream
        self._new_future = line.loop.create_future
        self._futures: list[Waiting] = []
        self._values: list[bytes] = []
        self._size_bytes = 0
        self._leaving = False
        """Whatever is written now leaves without another word."""
        self._answers: deque[tuple[list[Waiting], Iterator[Receipt]]] = deque()
        self._told = 0
        """How many, since a batch left."""

    def write(self, value: bytes) -> Waiting:
        """The value is octets, and small enough for a pack."""
        if not self._leaving:
            self._line.board.check()
            self._leaving = True
            self._line.loop.call_soon(self._leave)
        future: Waiting = self._new_future()
        self._size_bytes += len(value) + MESSAGE_BYTES
        if self._size_bytes > FULL_BYTES or len(self._futures) >= FULL_MESSAGES:
            self.ship()
            self._line.push()
            self._size_bytes = len(value) + MESSAGE_BYTES
        self._futures.append(future)
        self._values.append(value)
        return future

    def _leave(self) -> None:
        self._leaving = bool(self._answers)
        self.ship()
        self._line.push()

    def ship(self) -> None:
        """Hand over what was written so far."""
        futures, values = self._futures, self._values
        self._futures, self._values, self._size_bytes, self._told = [], [], 0, 0
        if any(map(_is_done, futures)):
            wanted = [at for at, future in enumerate(futures) if not future.done()]
            futures, values = [futures[at] for at in wanted], [values[at] for at in wanted]
        if not futures:
            return
        gathering = BatchBuilder()
        gathering.extend(values)
        batch = gathering.batch(self._stream)
        timeout_ns = int(self._line.timeout_s * 1e9)
        try:
            self._line.board.open(lambda call: WriteCommand(call, batch, timeout_ns), TogetherSink(self, futures))
        except ChaplainError as error:
            for future in futures:
                future.set_exception(error)

    # Answers.

    def answer(self, futures: list[Waiting], receipts: Receipts) -> None:
        """These were written, and are to be told so."""
        if not self._answers:
            self._line.loop.call_soon(self._tell)
        self._answers.append((futures, iter(receipts)))
        self._leaving = True

    def _tell(self) -> None:
        """Tell a slice. Those who are told have their turn before whatever is called from here."""
        futures, receipts = self._answers[0]
        told = futures[:SLICE]
        del futures[:SLICE]
        for future, receipt in zip(told, receipts, strict=False):
            if not future.done():
                future.set_result(receipt)
        self._told += len(told)
        if not futures:
            self._answers.popleft()
            if not self._answers or self._told >= TOLD_LEAST:
                self._line.loop.call_soon(self._leave)
        if self._answers:
            self._line.loop.call_soon(self._tell)


class TogetherSink(Sink):
    """Waits for the place of a batch, and gives each future its own receipt or error."""

    def __init__(self, together: WriteCoalescer, futures: list[Waiting]) -> None:
        super().__init__(NOBODY)
        self._together = together
        self._futures = futures

    def take(self, outcome: Outcome) -> None:
        if isinstance(outcome, WritesAcknowledged):
            self._together.answer(self._futures, Receipts(outcome.place))
        elif isinstance(outcome, Raised):
            self._raised(outcome)

    def _raised(self, raised: Raised) -> None:
        for number, future in enumerate(self._futures):
            if not future.done():
                future.set_exception(_error_at(raised, number))

    def fail(self, error: BaseException) -> None:
        for future in self._futures:
            if not future.done():
                future.set_exception(error)


def _error_at(raised: Raised, number: int) -> ChaplainError:
    """The error of one request of a batch: it names that request."""
    if raised.failure is not Failure.UNKNOWN or raised.request is None:
        return error_of(raised)
    client_id, first_id = raised.request
    own = RequestId(client_id, first_id + number)
    return Unknown(raised.reason.replace(str((client_id, first_id)), str(tuple(own))), own)
