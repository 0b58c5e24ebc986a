"""Builds receipts of requests that were applied earlier."""

from __future__ import annotations

from chaplain.journal.messages.client import AlreadyWritten, Receipts, Run
from chaplain.journal.model.records import AppliedRequest
from chaplain.segment.layout import NO_OFFSET


def run_of(client_id: int, applied: AppliedRequest) -> Run:
    """The receipt of an applied request."""
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
        applied.refusal,
    )


def answer_of(client_id: int, applied: AppliedRequest) -> Receipts | AlreadyWritten:
    """The answer to a copy of an applied request. A staged pack has no offset yet, so its copy only gets
    `AlreadyWritten`.
    """
    if applied.base_offset == NO_OFFSET:
        return AlreadyWritten(client_id, applied.last_id)
    return Receipts((run_of(client_id, applied),))
