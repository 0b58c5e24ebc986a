"""Single writes that a program asks for in one turn of its loop, handed over as one batch and answered one by one.

Thousands of coroutines that each write one message cost the client one hand-over each otherwise, which is most of what
such a write costs. Each message is still a request of its own, with its own id and receipt.

Invariants: messages are handed over in the order in which they were written; every future ends; one that was cancelled
before the turn was over is not handed over.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from chaplain.client.board import Board, Sink, error_of
from chaplain.client.call_events import Failure, Raised
from chaplain.client.events import Outcome
from chaplain.client.journal_events import Place, WriteWish, Written
from chaplain.client.journal_requests import CHUNK_BYTES, CHUNK_MESSAGES, Gathering, receipts_of
from chaplain.client.journal_results import Receipt, RequestId
from chaplain.client.journal_sinks import NOBODY
from chaplain.errors import ChaplainError, Unknown

Waiting = asyncio.Future[Receipt]


class Line(Protocol):
    timeout_s: float
    board: Board
    loop: asyncio.AbstractEventLoop


class Together:
    """The writes to one stream of one client."""

    def __init__(self, line: Line, stream: str) -> None:
        self._line = line
        self._stream = stream
        self._futures: list[Waiting] = []
        self._values: list[bytes] = []
        self._size_bytes = 0

    def write(self, value: bytes) -> Waiting:
        """The value is octets, and small enough for a chunk."""
        futures = self._futures
        if not futures:
            self._line.loop.call_soon(self.ship)
        future: Waiting = self._line.loop.create_future()
        futures.append(future)
        self._values.append(value)
        self._size_bytes += len(value)
        if self._size_bytes >= CHUNK_BYTES or len(futures) >= CHUNK_MESSAGES:
            self.ship()
        return future

    def ship(self) -> None:
        """Hand over what was written so far."""
        futures, values = self._futures, self._values
        self._futures, self._values, self._size_bytes = [], [], 0
        if any(future.done() for future in futures):
            wanted = [at for at, future in enumerate(futures) if not future.done()]
            futures, values = [futures[at] for at in wanted], [values[at] for at in wanted]
        if not futures:
            return
        gathering = Gathering()
        gathering.extend(values)
        batch = gathering.batch(self._stream)
        timeout_ns = int(self._line.timeout_s * 1e9)
        try:
            self._line.board.open(lambda call: WriteWish(call, batch, timeout_ns), TogetherSink(futures))
        except ChaplainError as error:
            for future in futures:
                future.set_exception(error)


class TogetherSink(Sink):
    """Waits for the place of a batch, and gives each future its own receipt or error."""

    def __init__(self, futures: list[Waiting]) -> None:
        super().__init__(NOBODY)
        self._futures = futures

    def take(self, outcome: Outcome) -> None:
        if isinstance(outcome, Written):
            self._written(outcome.place)
        elif isinstance(outcome, Raised):
            self._raised(outcome)

    def _written(self, place: Place) -> None:
        for future, receipt in zip(self._futures, receipts_of(place), strict=True):
            if not future.done():
                future.set_result(receipt)

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
