"""The SQL requests of a cluster message, and the runs in which their outcomes are stored. The same for every engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, repeat

import msgspec

from chaplain.executor.events import Work
from chaplain.executor.statement import SQL_TYPE, OutcomeRun, RequestOutcome, encode_any
from chaplain.segment.pack import Pack, decode_pack, heads_of

RUN_BYTES_MAX = 128 * 1024
"""Size of one run: outcomes that are stored and sent to clients together."""


class DatabaseRequest(msgspec.Struct, gc=False):
    client_id: int
    id: int
    offset: int
    values: Sequence[bytes]
    acl: bytes = b""


def requests_of(work: Work) -> Iterator[DatabaseRequest]:
    """The SQL requests of the message, in order."""
    owners = dict(work.owners)
    for first_offset, body in work.batches:
        offset = first_offset
        view = memoryview(body)
        for head in heads_of(body):
            if head.message_type == SQL_TYPE:
                pack = decode_pack(view[head.start : head.end])
                acl = owners.get(head.client_id, b"")
                yield from map(
                    DatabaseRequest,
                    repeat(head.client_id),
                    range(head.first_id, head.first_id + head.requests),
                    accumulate(pack.request_counts or repeat(1), initial=offset),
                    _cut(pack),
                    repeat(acl),
                )
            offset += head.count


def _cut(pack: Pack) -> Iterator[Sequence[bytes]]:
    """The values of each request."""
    if pack.request_counts is None:
        return zip(pack.values, strict=True)
    values = iter(pack.values)
    return (tuple(islice(values, messages)) for messages in pack.request_counts)


def runs_of(
    work: Work, requests: list[DatabaseRequest], outcomes: list[RequestOutcome]
) -> Iterator[tuple[bytes, OutcomeRun]]:
    """Group consecutive requests of one lane into runs of at most `RUN_BYTES_MAX`."""
    start = size = lane = next_id = 0
    for place, (request, outcome) in enumerate(zip(requests, outcomes, strict=True)):
        own = _size(outcome)
        size += own
        if request.id != next_id or request.client_id != lane or size > RUN_BYTES_MAX:
            if place > start:
                yield requests[start].acl, _run(work, requests[start], outcomes[start:place])
            start, size, lane, next_id = place, own, request.client_id, request.id
        next_id += 1
    if requests:
        yield requests[start].acl, _run(work, requests[start], outcomes[start:])


def _run(work: Work, first: DatabaseRequest, outcomes: list[RequestOutcome]) -> OutcomeRun:
    return OutcomeRun(first.client_id, first.id, work.index, work.timestamp_ns, tuple(outcomes))


def _size(outcome: RequestOutcome) -> int:
    """The approximate encoded size."""
    if outcome.error is None and len(outcome.answers) == 1 and not outcome.answers[0].rows:
        return 24
    return len(encode_any(outcome))
