"""Two-phase writes: a `TwoPhaseWriter` stages batches in the log without offsets, and `commit` gives them offsets.
`discard` makes the cluster forget them.

They serve writers such as the tasks of a Spark batch, whose messages must become visible together or not at all, and
only once even if the batch is retried. Staged batches that nobody commits expire after an hour. See
docs/decisions/spark-source-and-sink.md.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from chaplain.client.api.calls import PreparedCall
from chaplain.client.protocol.journal.error_kinds import NO_ORDER
from chaplain.client.protocol.journal.events import AskCommand, Batch, WriteCommand
from chaplain.client.sync.connection import ClientContext
from chaplain.client.sync.journal import Writer
from chaplain.client.types.journal import PLACE_UNKNOWN
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.errors import Unreachable
from chaplain.journal.execution.two_phase import (
    COMMIT,
    DISCARD,
    RANGES_MAX,
    STAGED,
    TRANSACTIONS,
    Commit,
    RequestRange,
    encode,
)
from chaplain.journal.messages.client import AskPaid, PaidAre, decode_node

_LOOK_EVERY_S = 0.01
_DISCARD_S = 10.0
"""A failure is already being reported, and must not wait for a cluster that is down."""


class TwoPhaseWriter(Writer):
    """Stages batches of any streams and remembers which ids to commit."""

    def __init__(self, context: ClientContext) -> None:
        super().__init__(context, TRANSACTIONS, receipts=True)
        self._staged: deque[Batch] = deque()
        """Batches that are not submitted."""

    def stage(self, batch: Batch) -> None:
        """Submit a batch. Blocks only while more than `WRITER_BYTES_MAX` bytes have no receipt."""
        assert batch.message_type == STAGED, "anything else would be written at once"
        with self._changed.lock:
            self._raise_if_failed()
            self._staged.append(batch)
            self._hand_over()
        if not self._has_room():
            self._changed.wait_for(self._has_room, None)

    def _submit_chunks(self) -> None:
        with self._changed.lock:
            while self._staged:
                self._submit(self._staged.popleft())
            super()._submit_chunks()

    def _unsent_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self._staged)

    def spans(self) -> tuple[RequestRange, ...]:
        """Wait until all staged batches are on disk at a quorum, and return their ids."""
        self.flush()
        return self.known_spans()

    def known_spans(self) -> tuple[RequestRange, ...]:
        """Return the ids of the batches that have a receipt, without a wait for the others."""
        return joined(self._ranges or ())


def joined(ranges: Iterable[ReceiptPlace]) -> tuple[RequestRange, ...]:
    """Merge receipts into ranges of ids: consecutive ids of one lane become one range."""
    spans: list[RequestRange] = []
    for place in ranges:
        last_id = place.first_id + place.requests - 1
        before = spans[-1] if spans else RequestRange(0, 0, 0)
        if (before.client_id, before.last_id + 1) == (place.client_id, place.first_id):
            spans[-1] = RequestRange(before.client_id, before.first_id, last_id)
        else:
            spans.append(RequestRange(place.client_id, place.first_id, last_id))
    return tuple(spans)


def commit(context: ClientContext, wanted: Commit) -> bool:
    """Commit staged batches. Returns when all their messages can be read at the node that serves this client.

    Returns False if the version was known to be committed before: then nothing was written. A node that lags behind may
    not know it.

    Raises `Unreachable` if the cluster makes no progress for the client's timeout. The batch is committed even then:
    nodes write it as soon as they can.
    """
    before = _ask_paid(context).pledged
    place = _write(context, wanted, COMMIT)
    goal = None if place.base_offset == PLACE_UNKNOWN else place.base_offset
    written = goal is None or goal > before  # each commit has a higher ticket than all before it
    until_s = time.monotonic() + context.timeout_s
    paid = -1
    while True:
        now = _ask_paid(context)
        if now.index >= place.index:
            goal = now.pledged if goal is None else goal
            if now.paid >= goal:
                return written
        if now.paid > paid:
            paid, until_s = now.paid, time.monotonic() + context.timeout_s
        if time.monotonic() > until_s:
            raise Unreachable(f"the batch is committed, and will be written; {NO_ORDER}")
        time.sleep(_LOOK_EVERY_S)


def discard(context: ClientContext, spans: tuple[RequestRange, ...]) -> None:
    """Forget staged batches, so that they do not count against the bounds until they expire. Returns when the cluster
    has agreed on it, and gives up after `_DISCARD_S`. Ranges that are not staged, or no longer, are ignored.
    """
    for start in range(0, len(spans), RANGES_MAX):
        _write(context, Commit("", 0, spans[start : start + RANGES_MAX]), DISCARD, _DISCARD_S)


def _write(context: ClientContext, wanted: Commit, message_type: int, timeout_s: float | None = None) -> ReceiptPlace:
    value = encode(wanted)
    batch = Batch(TRANSACTIONS, [value], size_bytes=len(value), message_type=message_type)
    return context.run(PreparedCall(lambda call, timeout_ns: WriteCommand(call, batch, timeout_ns), _place, timeout_s))


def _ask_paid(context: ClientContext) -> PaidAre:
    return context.run(PreparedCall(lambda call, timeout_ns: AskCommand(call, AskPaid(0), timeout_ns), _paid))


def _place(place: ReceiptPlace) -> ReceiptPlace:
    return place


def _paid(answer: bytes) -> PaidAre:
    message = decode_node(answer)
    assert isinstance(message, PaidAre)
    return message
