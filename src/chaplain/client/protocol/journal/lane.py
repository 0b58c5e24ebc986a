"""One lane (a producer session): the packs that were signed under it and are not answered yet.

Decides which packs an answer by lane and id settles, and which pack is sent next. Knows nothing of sessions, flow
control, time and callers.

Invariants:
- an id is used once, so no two different byte strings ever carry the same id;
- packs are sent in the order of their ids;
- a pack is retained byte for byte until it is answered, and it is answered once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from chaplain.client.types.journal import PLACE_UNKNOWN
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.journal.messages.client import NotWritten, Run

T = TypeVar("T")

_BOUNDS_MAX = 512
"""First ids of answered packs that are remembered. No receipt covers as many packs."""


class Packed(Generic[T]):
    """A signed pack. `items` are the owner's objects, returned when the pack is answered."""

    __slots__ = (
        "check",
        "first_id",
        "items",
        "messages",
        "messages_before",
        "raw",
        "refused",
        "rejected",
        "requests",
        "sends",
        "stream",
    )

    def __init__(self, first_id: int, *, requests: int, messages: int, stream: str, raw: bytes, items: list[T]) -> None:
        self.first_id = first_id
        self.requests = requests
        self.messages = messages
        self.stream = stream
        self.raw = raw
        self.items = items
        self.messages_before = 0
        """Messages in all earlier packs of the lane."""
        self.sends = 0
        """Upper bound of the copies of it that may exist in the cluster."""
        self.refused = False
        """True if a copy of it was refused unread."""
        self.check = False
        """True if its writer wants a dry run before it is ordered."""
        self.rejected: NotWritten | None = None
        """The refusal of a node whose dry run failed, while other copies may be in flight."""

    @property
    def last_id(self) -> int:
        """The id of its last request."""
        return self.first_id + self.requests - 1


class ProducerLane(Generic[T]):
    """The unanswered packs of one lane, in the order of their ids."""

    def __init__(self, client_id: int, last_id: int = 0) -> None:
        self.client_id = client_id
        self.next_id = last_id + 1
        self.cursor = self.next_id
        """The next id to send on the present session."""
        self.in_flight: dict[int, Packed[T]] = {}
        """Unanswered packs by first id, in order. Those before `cursor` were sent on the present session."""
        self.in_flight_bytes = 0
        self._messages = 0
        self._bounds: deque[tuple[int, int]] = deque(maxlen=_BOUNDS_MAX)
        """First id and `messages_before` of the last packs, answered or not."""

    def add(self, packed: Packed[T]) -> None:
        """Append a new pack."""
        assert packed.first_id == self.next_id, "ids are given in order, each once"
        packed.messages_before = self._messages
        self._messages += packed.messages
        self._bounds.append((packed.first_id, packed.messages_before))
        self.next_id += packed.requests
        self.in_flight[packed.first_id] = packed
        self.in_flight_bytes += len(packed.raw)

    @property
    def oldest_id(self) -> int:
        """The first id without an answer."""
        return next(iter(self.in_flight), self.next_id)

    def unsent(self) -> Iterator[Packed[T]]:
        """The packs to send, in order. Do not call `sent` or `rewind` while iterating."""
        return (packed for packed in self.in_flight.values() if packed.first_id >= self.cursor)

    def sent(self, packed: Packed[T]) -> None:
        """Note that a pack was sent."""
        assert packed.first_id >= self.cursor
        self.cursor = packed.first_id + packed.requests
        packed.sends += 1

    def rewind(self, expected_id: int) -> None:
        """Send again from this id on."""
        # Never before the oldest unanswered pack, and never forward: that would skip packs.
        self.cursor = max(self.oldest_id, min(self.cursor, expected_id))

    def settle(self, run: Run) -> list[tuple[Packed[T], ReceiptPlace]]:
        """Remove the packs that this receipt answers, and return them with their places."""
        if run.refusal:
            return self._settle_refused(run)
        base = self._offset_base(run)
        if base is None:
            return []
        found = [
            packed
            for packed in self.in_flight.values()
            if run.first_id <= packed.first_id and packed.last_id < run.first_id + run.requests
        ]
        settled = []
        for packed in found:
            end_offset = base + packed.messages_before + packed.messages
            if packed.stream != run.stream or end_offset > run.base_offset + run.messages:
                continue  # the receipt contradicts what was sent: it settles nothing
            self._remove(packed)
            settled.append((packed, _place(run, packed, base + packed.messages_before)))
        return settled

    def _settle_refused(self, run: Run) -> list[tuple[Packed[T], ReceiptPlace]]:
        """The conditions of one pack did not hold."""
        packed = self.in_flight.get(run.first_id)
        if packed is None or (packed.requests, packed.stream) != (run.requests, run.stream):
            return []
        self._remove(packed)
        return [(packed, ReceiptPlace(*msgspec.structs.astuple(run)))]

    def _offset_base(self, run: Run) -> int | None:
        """The number to add to a pack's `messages_before` to get its offset.

        None if the receipt does not begin at a pack of ours.
        """
        for first_id, messages_before in reversed(self._bounds):
            if first_id == run.first_id:
                return run.base_offset - messages_before
            if first_id < run.first_id:
                return None
        return None

    def settle_through(self, last_id: int) -> list[tuple[Packed[T], ReceiptPlace]]:
        """Everything up to this id is written, at an unknown offset."""
        found = [packed for packed in self.in_flight.values() if packed.last_id <= last_id]
        for packed in found:
            self._remove(packed)
        return [(packed, self._unknown_place(packed)) for packed in found]

    def _unknown_place(self, packed: Packed[T]) -> ReceiptPlace:
        return ReceiptPlace(
            self.client_id, packed.first_id, packed.requests, packed.stream, PLACE_UNKNOWN, packed.messages
        )

    def take_at(self, first_id: int) -> Packed[T] | None:
        """Remove the pack with this first id, which will not be written."""
        packed = self.in_flight.get(first_id)
        if packed is not None:
            self._remove(packed)
        return packed

    def take_after(self, last_id: int) -> list[Packed[T]]:
        """Remove the packs after this id, which will not be written, and return them in order."""
        found = [packed for packed in self.in_flight.values() if packed.first_id > last_id]
        for packed in found:
            self._remove(packed)
        return found

    def _remove(self, packed: Packed[T]) -> None:
        del self.in_flight[packed.first_id]
        self.in_flight_bytes -= len(packed.raw)


def _place(run: Run, packed: Packed[T], offset: int) -> ReceiptPlace:
    return ReceiptPlace(
        run.client_id,
        packed.first_id,
        packed.requests,
        packed.stream,
        offset,
        packed.messages,
        run.index,
        run.regime,
        run.timestamp_ns,
        run.hash,
    )
