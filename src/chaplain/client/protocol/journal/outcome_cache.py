"""What became of requests, remembered for a while, and who wants to hear of it as soon as it is known.

A caller may have handed over many requests as one batch: they have one fate, and each of them can be asked about.

Invariants: at most `FATES_MAX` batches are remembered, the oldest are forgotten first; who watches is told once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from chaplain.client.types.journal import PLACE_UNKNOWN, RequestId
from chaplain.client.types.receipts import ReceiptPlace

FATES_MAX = 4096
Told: TypeAlias = Callable[[ReceiptPlace | None], None]
"""Takes where a request is, or None if it is not written and never will be."""


class OutcomeCache:
    def __init__(self) -> None:
        self._known: dict[RequestId, tuple[int, ReceiptPlace | None]] = {}
        """By the first request of a batch: how many it has, and where they are."""
        self._watchers: dict[RequestId, list[tuple[int, RequestId, Told]]] = {}

    def get(self, request: RequestId) -> ReceiptPlace | None:
        """Where it is, or None if it is not and never will be; KeyError if that is not known."""
        if request in self._known:
            return part_of(self._known[request][1], request)
        for first, (requests, place) in self._known.items():
            same = first.client_id == request.client_id
            if same and 0 <= request.client_message_id - first.client_message_id < requests:
                return part_of(place, request)
        raise KeyError(request)

    def watch(self, first: RequestId, request: RequestId, call: int, told: Told) -> None:
        """Tell this call as soon as the fate of the batch that begins with `first`, and so of the request, is known."""
        self._watchers.setdefault(first, []).append((call, request, told))

    def unwatch(self, call: int) -> None:
        for watchers in self._watchers.values():
            watchers[:] = [watcher for watcher in watchers if watcher[0] != call]

    def watchers(self, first: RequestId) -> list[tuple[int, RequestId]]:
        """Take those who will hear of this batch in another way."""
        return [(call, request) for call, request, _ in self._watchers.pop(first, ())]

    def know(self, first: RequestId, requests: int, place: ReceiptPlace | None) -> None:
        self._known[first] = (requests, place)
        if len(self._known) > FATES_MAX:
            del self._known[next(iter(self._known))]
        for _, request, told in self._watchers.pop(first, ()):
            told(part_of(place, request))


def part_of(place: ReceiptPlace | None, request: RequestId) -> ReceiptPlace | None:
    """Where one request of a batch is, given where the batch is."""
    if place is None or place.requests == 1:
        return place
    assert place.messages == place.requests, "a batch of several requests has one message in each"
    number = request.client_message_id - place.first_id
    offset = PLACE_UNKNOWN if place.base_offset == PLACE_UNKNOWN else place.base_offset + number
    moment = (place.index, place.regime, place.timestamp_ns, place.hash)
    return ReceiptPlace(place.client_id, request.client_message_id, 1, place.stream, offset, 1, *moment)
