"""Builds receipts of requests that were applied before."""

from __future__ import annotations

from chaplain.journal.messages.client import AlreadyWritten, Receipts, Run
from chaplain.journal.model.records import AppliedRequest
from chaplain.segment.layout import NO_OFFSET


def run_of(client_id: int, applied: AppliedRequest) -> Run:
    """The receipt of something that was applied before."""
    position = applied.position
    return Run(
        client_id,
        applied.first_id,
        applied.requests,
        applied.stream,
        applied.base_offset,
        applied.messages,
        position.index,
        position.regime,
        position.timestamp_ns,
        position.hash,
    )


def answer_of(client_id: int, applied: AppliedRequest) -> Receipts | AlreadyWritten:
    """What to say again about something that was taken before; what is staged lies nowhere yet."""
    if applied.base_offset == NO_OFFSET:
        return AlreadyWritten(client_id, applied.last_id)
    return Receipts((run_of(client_id, applied),))
