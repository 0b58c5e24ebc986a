"""Builds receipts of requests that were applied before."""

from __future__ import annotations

from chaplain.journal.messages.client import AlreadyWritten, Receipts, Run
from chaplain.journal.model.records import AppliedRequest
from chaplain.segment.layout import NO_OFFSET


def run_of(client_id: int, remembered: AppliedRequest) -> Run:
    """The receipt of something that was applied before."""
    moment = remembered.moment
    return Run(
        client_id,
        remembered.first_id,
        remembered.requests,
        remembered.stream,
        remembered.base_offset,
        remembered.messages,
        moment.index,
        moment.regime,
        moment.timestamp_ns,
        moment.hash,
    )


def answer_of(client_id: int, remembered: AppliedRequest) -> Receipts | AlreadyWritten:
    """What to say again about something that was taken before; what is staged lies nowhere yet."""
    if remembered.base_offset == NO_OFFSET:
        return AlreadyWritten(client_id, remembered.last_id)
    return Receipts((run_of(client_id, remembered),))
