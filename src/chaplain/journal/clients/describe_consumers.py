"""Describes named consumers for clients: the JSON of the answer to `AskConsumers` (docs/protocol/consumers.md).

A page examines at most `PAGE_CONSUMERS_MAX` consumers, readable for the client or not, and ends after the consumer with
which their slots and spans are more than `PAGE_PARTS_MAX`. So no page takes longer than some 2 ms.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from typing import Any, TypedDict

from chaplain.journal.execution.state import ExecutionState
from chaplain.journal.messages.client import AskConsumers
from chaplain.journal.messages.consumer import Mode
from chaplain.journal.model.consumers import Consumer, ConsumerKey
from chaplain.journal.model.records import ClientIdentity
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.rights import may_read
from chaplain.units import MILLISECOND_NS

PAGE_CONSUMERS_MAX = 256
PAGE_PARTS_MAX = 4096
"""Slots and spans that are examined for one page. The bound of one consumer is 1,024."""


def describe_consumers(
    state: ExecutionState, streams: StreamIndex, client: ClientIdentity, ask: AskConsumers
) -> dict[str, Any]:
    """The page that the client asks for."""
    keys, after = _page(state, ask)
    found = [state.consumers.consumers[key] for key in keys if may_read(client, key[0])]
    listed = [
        {**describe_consumer(state, streams, one), **(_details(state, one, ask.token) if ask.name else {})}
        for one in found
    ]
    position = state.position
    return {"index": position.index, "timestamp": position.timestamp_ns, "consumers": listed, "after": after}


def _page(state: ExecutionState, ask: AskConsumers) -> tuple[list[ConsumerKey], ConsumerKey]:
    if ask.name:
        key = (ask.stream, ask.name)
        return [key] if key in state.consumers.consumers else [], ("", "")
    keys = state.consumers.keys
    first = max(bisect_right(keys, ask.after), bisect_left(keys, (ask.stream, "")))
    end = bisect_right(keys, ask.stream, key=lambda key: key[0]) if ask.stream else len(keys)
    page: list[ConsumerKey] = []
    parts = 0
    for key in keys[first : min(end, first + PAGE_CONSUMERS_MAX)]:
        if parts > PAGE_PARTS_MAX:
            break
        one = state.consumers.consumers[key]
        parts += len(one.slots) + len(one.spans)
        page.append(key)
    return page, page[-1] if first + len(page) < end else ("", "")


class ConsumerSummary(TypedDict):
    """A consumer without its workers and leases."""

    stream: str
    name: str
    mode: str
    position: int
    head: int
    lag: int
    workers: int
    leased: int
    waiting: int
    dropped: int


def describe_consumer(state: ExecutionState, streams: StreamIndex, one: Consumer) -> ConsumerSummary:
    stream = state.streams.get(one.stream)
    head = stream.next_offset if stream is not None else 0
    return {
        "stream": one.stream,
        "name": one.name,
        "mode": Mode(one.mode).name.lower(),
        "position": one.position,
        "head": head,
        "lag": lag_of(one, head, streams.first_offset(one.stream)),
        "workers": len(one.workers),
        "leased": sum(span.last - span.first + 1 for span in one.spans if span.token),
        "waiting": sum(span.last - span.first + 1 for span in one.spans if not span.token),
        "dropped": one.dropped,
    }


def lag_of(one: Consumer, head: int, first_offset: int) -> int:
    """The number of messages that are not processed. For slots, it is counted from the lowest position."""
    if one.slots:
        return max(head - max(one.position, first_offset), 0)
    in_hand = sum(span.last - max(span.first, first_offset) + 1 for span in one.spans if span.last >= first_offset)
    return in_hand + max(head - max(one.next_offset, first_offset), 0)


def _details(state: ExecutionState, one: Consumer, token: int) -> dict[str, Any]:
    clients = state.clients
    spans = [span for span in one.spans if token in (0, span.token)]
    waits = [span.due_ns for span in one.spans if span.token != token]
    held = Counter(slot.holder for slot in one.slots)
    return {
        "members": [
            {
                "token": worker.token,
                "client": clients[worker.acl].name if worker.acl in clients else worker.acl.hex(),
                "nonce": worker.nonce.hex(),
                "active": worker.active_ns,
                "challenged": bool(worker.challenged_until_ns),
                "slots": held[worker.token],
            }
            for worker in one.workers
        ],
        "owner": clients[one.owner].name if one.owner in clients else one.owner.hex(),
        "lease_ms": one.lease_ns // MILLISECOND_NS,
        "max_deliveries": one.max_deliveries,
        "dead_letter": one.dead_letter,
        "next_offset": one.next_offset,
        "epoch": one.epoch,
        "slots": [[slot.position, slot.holder, slot.target, slot.since] for slot in one.slots],
        "spans": [[span.first, span.last, span.token, span.due_ns, span.deliveries] for span in spans],
        "due": min(waits, default=0),
    }
