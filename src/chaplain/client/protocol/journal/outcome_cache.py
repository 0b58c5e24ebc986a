"""The recent outcomes of requests, and callbacks for outcomes that are not known yet.

A caller may have submitted many requests as one batch: the batch has one outcome, and each of its requests can be
looked up.

Invariants: at most `OUTCOMES_MAX` batches are cached, the oldest are evicted first; each callback is called once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from chaplain.client.types.journal import PLACE_UNKNOWN, RequestId
from chaplain.client.types.receipts import ReceiptPlace

OUTCOMES_MAX = 4096
"""Batches whose outcomes are cached."""
OutcomeCallback: TypeAlias = Callable[[ReceiptPlace | None], None]
"""Takes the place of a request, or None if the request is not and never will be written."""


class OutcomeCache:
    """Recent outcomes by request."""

    def __init__(self) -> None:
        self._known: dict[RequestId, tuple[int, ReceiptPlace | None]] = {}
        """By the first request of a batch: the number of its requests, and their place."""
        self._watchers: dict[RequestId, list[tuple[int, RequestId, OutcomeCallback]]] = {}

    def get(self, request: RequestId) -> ReceiptPlace | None:
        """The place of a request; None if it is not and never will be written. Raises `KeyError` if not cached."""
        if request in self._known:
            return part_of(self._known[request][1], request)
        for first, (requests, place) in self._known.items():
            same = first.client_id == request.client_id
            if same and 0 <= request.client_message_id - first.client_message_id < requests:
                return part_of(place, request)
        raise KeyError(request)

    def watch(self, first: RequestId, request: RequestId, call: int, callback: OutcomeCallback) -> None:
        """Call back with the outcome of `request` when the outcome of its batch is known. The batch begins with
        `first`.
        """
        self._watchers.setdefault(first, []).append((call, request, callback))

    def unwatch(self, call: int) -> None:
        """Remove the callbacks of a call."""
        for watchers in self._watchers.values():
            watchers[:] = [watcher for watcher in watchers if watcher[0] != call]

    def take_watchers(self, first: RequestId) -> list[tuple[int, RequestId]]:
        """Remove and return the calls that wait for this batch; the caller reports to them."""
        return [(call, request) for call, request, _ in self._watchers.pop(first, ())]

    def record(self, first: RequestId, requests: int, place: ReceiptPlace | None) -> None:
        """Record the outcome of a batch and call the callbacks that wait for it."""
        self._known[first] = (requests, place)
        if len(self._known) > OUTCOMES_MAX:
            del self._known[next(iter(self._known))]
        for _, request, callback in self._watchers.pop(first, ()):
            callback(part_of(place, request))


def part_of(place: ReceiptPlace | None, request: RequestId) -> ReceiptPlace | None:
    """The place of one request of a batch, given the place of the batch."""
    if place is None or place.requests == 1:
        return place
    assert place.messages == place.requests, "a batch of several requests has one message in each"
    number = request.client_message_id - place.first_id
    offset = PLACE_UNKNOWN if place.base_offset == PLACE_UNKNOWN else place.base_offset + number
    position = (place.index, place.regime, place.timestamp_ns, place.hash)
    return ReceiptPlace(place.client_id, request.client_message_id, 1, place.stream, offset, 1, *position)
