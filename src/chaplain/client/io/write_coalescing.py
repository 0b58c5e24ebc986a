"""Coalesce single writes of one event-loop turn into one batch, and resolve their futures one by one.

Without coalescing, each of thousands of coroutines that write one message would submit its own call, and that
submission is most of the cost of such a write. Each message remains a request of its own, with its own id and receipt.

A coroutine that gets a receipt usually writes again. Receipts are therefore resolved in slices, so that the program and
its loop run in between. Meanwhile the new writes of these coroutines are collected in one batch. The batch is submitted
when it is full, or when all futures of an acknowledged batch are resolved. So the cluster works on one batch while the
client resolves the futures of another.

Invariants:
- messages are submitted in the order in which they were written;
- every future is resolved;
- a message whose future was cancelled before its batch was submitted is not submitted;
- a message waits at most until `RESOLVED_LEAST` other futures and the rest of one batch are resolved.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from operator import methodcaller
from typing import Protocol

from chaplain.client.io.call_registry import CallRegistry, error_of
from chaplain.client.protocol.call_events import Failure, Raised
from chaplain.client.protocol.events import Outcome
from chaplain.client.protocol.journal.batch_builder import BatchBuilder
from chaplain.client.protocol.journal.events import WriteCommand, WritesAcknowledged
from chaplain.client.protocol.journal.packing import MESSAGE_BYTES, PACK_BYTES, PACK_HEAD_BYTES, PACK_MESSAGES
from chaplain.client.types.journal import Receipt, RequestId
from chaplain.client.types.receipts import ReceiptSequence
from chaplain.errors import ChaplainError, Unknown

FULL_BYTES = PACK_BYTES - PACK_HEAD_BYTES
"""A batch of at most this size fits into one pack."""
FULL_MESSAGES = PACK_MESSAGES // 4
"""Messages of a full batch. Several batches keep the cluster and the program busy at the same time."""
RESOLVED_LEAST = FULL_MESSAGES // 2
"""When all futures of an acknowledged batch are resolved, the next batch is submitted if this many futures were
resolved since the last submission, or if no other acknowledged batch is left. Small batches merge that way.
"""
SLICE = 256
"""Futures that are resolved at a time. A future that is resolved and dropped soon is never seen by the garbage
collector. With a larger slice, many futures live until a collection, and collections take a sixth of the client's time.
"""

ReceiptFuture = asyncio.Future[Receipt]
_is_done = methodcaller("done")


class CoalescerContext(Protocol):
    """The interface of the client that the coalescer uses."""

    timeout_s: float
    registry: CallRegistry
    loop: asyncio.AbstractEventLoop

    def flush_now(self) -> None:
        """Send queued inputs now, before the other callbacks that are ready to run."""


class WriteCoalescer:
    """Coalesces the writes of one client to one stream."""

    def __init__(self, context: CoalescerContext, stream: str) -> None:
        self._context = context
        self._stream = stream
        self._new_future = context.loop.create_future
        self._futures: list[ReceiptFuture] = []
        self._values: list[bytes] = []
        self._size_bytes = 0
        self._flush_scheduled = False
        """True if a flush is scheduled. It submits all messages written before it runs."""
        self._answers: deque[tuple[list[ReceiptFuture], Iterator[Receipt]]] = deque()
        self._resolved = 0
        """Futures resolved since a batch was last submitted."""

    def write(self, value: bytes) -> ReceiptFuture:
        """Add one message and return the future of its receipt. The value must fit into a pack."""
        if not self._flush_scheduled:
            self._context.registry.check_usable()
            self._flush_scheduled = True
            self._context.loop.call_soon(self._flush)
        future: ReceiptFuture = self._new_future()
        self._size_bytes += len(value) + MESSAGE_BYTES
        if self._size_bytes > FULL_BYTES or len(self._futures) >= FULL_MESSAGES:
            self.submit_batch()
            self._context.flush_now()
            self._size_bytes = len(value) + MESSAGE_BYTES
        self._futures.append(future)
        self._values.append(value)
        return future

    def _flush(self) -> None:
        self._flush_scheduled = bool(self._answers)
        self.submit_batch()
        self._context.flush_now()

    def submit_batch(self) -> None:
        """Submit the collected messages as one batch."""
        futures, values = self._futures, self._values
        self._futures, self._values, self._size_bytes, self._resolved = [], [], 0, 0
        if any(map(_is_done, futures)):
            wanted = [at for at, future in enumerate(futures) if not future.done()]
            futures, values = [futures[at] for at in wanted], [values[at] for at in wanted]
        if not futures:
            return
        builder = BatchBuilder()
        builder.extend(values)
        batch = builder.batch(self._stream)
        timeout_ns = int(self._context.timeout_s * 1e9)
        try:
            self._context.registry.submit_call(
                lambda call: WriteCommand(call, batch, timeout_ns), CoalescedSink(self, futures)
            )
        except ChaplainError as error:
            for future in futures:
                future.set_exception(error)

    # Answers.

    def acknowledge(self, futures: list[ReceiptFuture], receipts: ReceiptSequence) -> None:
        """Resolve these futures with their receipts, in slices."""
        if not self._answers:
            self._context.loop.call_soon(self._resolve_slice)
        self._answers.append((futures, iter(receipts)))
        self._flush_scheduled = True

    def _resolve_slice(self) -> None:
        """Resolve one slice. The coroutines that it wakes run before the callbacks scheduled here."""
        futures, receipts = self._answers[0]
        resolved = futures[:SLICE]
        del futures[:SLICE]
        for future, receipt in zip(resolved, receipts, strict=False):
            if not future.done():
                future.set_result(receipt)
        self._resolved += len(resolved)
        if not futures:
            self._answers.popleft()
            if not self._answers or self._resolved >= RESOLVED_LEAST:
                self._context.loop.call_soon(self._flush)
        if self._answers:
            self._context.loop.call_soon(self._resolve_slice)


class CoalescedSink:
    """Receives the outcome of a batch and gives each future its own receipt or error."""

    def __init__(self, coalescer: WriteCoalescer, futures: list[ReceiptFuture]) -> None:
        self._coalescer = coalescer
        self._futures = futures

    def on_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, WritesAcknowledged):
            self._coalescer.acknowledge(self._futures, ReceiptSequence(outcome.place))
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
    """The error of one request of a failed batch. `Unknown` names the request's own id."""
    if raised.failure is not Failure.UNKNOWN or raised.request is None:
        return error_of(raised)
    client_id, first_id = raised.request
    own = RequestId(client_id, first_id + number)
    return Unknown(raised.reason.replace(str((client_id, first_id)), str(tuple(own))), own)
