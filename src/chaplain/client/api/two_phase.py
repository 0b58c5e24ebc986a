"""Two-phase writes: a `TwoPhaseWriter` stages batches in the log without offsets, and `commit` gives them offsets.

For writers of many that must become visible together or not at all, and only once however often they are tried, such as
the tasks of a Spark batch. What is staged and never committed is forgotten. See docs/decisions/0050.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from chaplain.client.api.calls import PreparedCall
from chaplain.client.api.journal_calls import WRITER_BYTES_MAX
from chaplain.client.api.journal_sync import JournalClientContext, Writer
from chaplain.client.protocol.journal.events import AskCommand, Batch, WriteCommand
from chaplain.client.types.journal import PLACE_UNKNOWN
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.errors import Unreachable
from chaplain.journal.execution.two_phase import COMMIT, STAGED, TRANSACTIONS, Commit, RequestRange, encode
from chaplain.journal.messages.client import AskPaid, PaidAre, decode_node

_LOOK_EVERY_S = 0.01


class TwoPhaseWriter(Writer):
    """Hands over whole batches, of any streams, and knows afterwards what to commit."""

    def __init__(self, line: JournalClientContext) -> None:
        super().__init__(line, TRANSACTIONS, receipts=True)

    def stage(self, batch: Batch) -> None:
        """Waits only while too much has no answer."""
        assert batch.message_type == STAGED, "anything else would be written at once"
        with self._lock, self._line.engine.shielded:
            self._complain()
            self._hand_over(batch)
        if self._unanswered_bytes > WRITER_BYTES_MAX:
            self._wait(lambda: self._unanswered_bytes <= WRITER_BYTES_MAX)

    def spans(self) -> tuple[RequestRange, ...]:
        """Everything that was staged, once all of it is on disk at a quorum."""
        self.flush()
        return joined(self._places or ())


def joined(places: Iterable[ReceiptPlace]) -> tuple[RequestRange, ...]:
    """Places as spans of ids: those that follow one another on a lane are one."""
    spans: list[RequestRange] = []
    for place in places:
        last_id = place.first_id + place.requests - 1
        before = spans[-1] if spans else RequestRange(0, 0, 0)
        if (before.client_id, before.last_id + 1) == (place.client_id, place.first_id):
            spans[-1] = RequestRange(before.client_id, before.first_id, last_id)
        else:
            spans.append(RequestRange(place.client_id, place.first_id, last_id))
    return tuple(spans)


def commit(line: JournalClientContext, wanted: Commit) -> None:
    """Returns when everything that is named can be read at the node that serves this client."""
    value = encode(wanted)
    batch = Batch(TRANSACTIONS, [value], size_bytes=len(value), message_type=COMMIT)
    place = line.run(PreparedCall(lambda call, timeout_ns: WriteCommand(call, batch, timeout_ns), _place))
    goal = None if place.base_offset == PLACE_UNKNOWN else place.base_offset
    until_s = time.monotonic() + line.timeout_s
    paid = -1
    while True:
        now = line.run(PreparedCall(lambda call, timeout_ns: AskCommand(call, AskPaid(0), timeout_ns), _paid))
        if now.index >= place.index:
            goal = now.pledged if goal is None else goal
            if now.paid >= goal:
                return
        if now.paid > paid:
            paid, until_s = now.paid, time.monotonic() + line.timeout_s
        if time.monotonic() > until_s:
            raise Unreachable("the batch is committed, and will be written; the cluster is slow, or has no master")
        time.sleep(_LOOK_EVERY_S)


def _place(place: ReceiptPlace) -> ReceiptPlace:
    return place


def _paid(answer: bytes) -> PaidAre:
    message = decode_node(answer)
    assert isinstance(message, PaidAre)
    return message
