"""One lane: the requests that were signed under it and are not answered yet.

Decides what an answer by lane and id settles, and what is to be sent next. Refuses to know sessions, credit, time and
callers.

Invariants: an id is given once, so no two strings of octets ever carry the same one; packs leave in the order of their
ids; a pack is kept, octet by octet, until it is answered, and is answered once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from chaplain.client.types.journal import PLACE_UNKNOWN
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.journal.messages.client import NotWritten, Run

T = TypeVar("T")

_BOUNDS_MAX = 512
"""Beginnings of packs remembered after they were answered: more than a run of answers can reach back."""


class Packed(Generic[T]):
    """A pack that is on its way, or waits to be. `things` are whatever the owner wants back when it is answered."""

    __slots__ = (
        *("before", "check", "doomed", "first_id", "messages", "raw", "refused", "requests", "sends", "stream"),
        "things",
    )

    def __init__(
        self, first_id: int, *, requests: int, messages: int, stream: str, raw: bytes, things: list[T]
    ) -> None:
        self.first_id = first_id
        self.requests = requests
        self.messages = messages
        self.stream = stream
        self.raw = raw
        self.things = things
        self.before = 0
        """Messages in all packs of the lane before this one."""
        self.sends = 0
        """How many copies of it may be under way in the cluster."""
        self.refused = False
        """A copy of it was turned away, unread."""
        self.check = False
        """Whether its writer wants it tried out before it is ordered."""
        self.doomed: NotWritten | None = None
        """What a node said that tried it out, while other copies may be under way."""

    @property
    def last_id(self) -> int:
        return self.first_id + self.requests - 1


class ProducerLane(Generic[T]):
    def __init__(self, client_id: int, last_id: int = 0) -> None:
        self.client_id = client_id
        self.next_id = last_id + 1
        self.cursor = self.next_id
        """The first id that is to be sent on the present session."""
        self.in_flight: dict[int, Packed[T]] = {}
        """By first id, in order. Those before `cursor` were sent."""
        self.in_flight_bytes = 0
        self._messages = 0
        self._bounds: deque[tuple[int, int]] = deque(maxlen=_BOUNDS_MAX)

    def add(self, packed: Packed[T]) -> None:
        assert packed.first_id == self.next_id, "ids are given in order, each once"
        packed.before = self._messages
        self._messages += packed.messages
        self._bounds.append((packed.first_id, packed.before))
        self.next_id += packed.requests
        self.in_flight[packed.first_id] = packed
        self.in_flight_bytes += len(packed.raw)

    @property
    def oldest_id(self) -> int:
        """The first id without an answer."""
        return next(iter(self.in_flight), self.next_id)

    def unsent(self) -> Iterator[Packed[T]]:
        """What is to be sent, in order, unless `sent` or `go_back` is called in between."""
        return (packed for packed in self.in_flight.values() if packed.first_id >= self.cursor)

    def sent(self, packed: Packed[T]) -> None:
        assert packed.first_id >= self.cursor
        self.cursor = packed.first_id + packed.requests
        packed.sends += 1

    def go_back(self, expected_id: int) -> None:
        """Send again from this id on."""
        self.cursor = max(self.oldest_id, min(self.cursor, expected_id))

    def settle(self, run: Run) -> list[tuple[Packed[T], ReceiptPlace]]:
        """The packs that this receipt answers, with their places; one that was answered before is passed over."""
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
            if packed.stream != run.stream or packed.before + base + packed.messages > run.base_offset + run.messages:
                continue  # not what we asked for: whatever this is about, it settles nothing
            self._remove(packed)
            settled.append((packed, _place(run, packed, base + packed.before)))
        return settled

    def _offset_base(self, run: Run) -> int | None:
        """What is to be added to a pack's `before` to have its offset; None if the run does not begin with a pack."""
        for first_id, before in reversed(self._bounds):
            if first_id == run.first_id:
                return run.base_offset - before
            if first_id < run.first_id:
                return None
        return None

    def settle_through(self, last_id: int) -> list[tuple[Packed[T], ReceiptPlace]]:
        """Everything up to this id is written; nobody can say where."""
        found = [packed for packed in self.in_flight.values() if packed.last_id <= last_id]
        for packed in found:
            self._remove(packed)
        return [(packed, self._somewhere(packed)) for packed in found]

    def _somewhere(self, packed: Packed[T]) -> ReceiptPlace:
        return ReceiptPlace(
            self.client_id, packed.first_id, packed.requests, packed.stream, PLACE_UNKNOWN, packed.messages
        )

    def take_at(self, first_id: int) -> Packed[T] | None:
        """The pack with this first id, which will not be written."""
        packed = self.in_flight.get(first_id)
        if packed is not None:
            self._remove(packed)
        return packed

    def take_after(self, last_id: int) -> list[Packed[T]]:
        """The packs behind this id, which will not be written, in order."""
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
