"""One stream of a node's graph: its Model, its confirmations, and the part of it that is on disk.

Takes no decisions; it keeps these parts consistent. Invariants: exactly the events with numbers below `durable` are on
disk, and only they are shown to readers, sent to peers or confirmed; `leaves` are the leaves of this durable part.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from chaplain.graph.messages.event import SignedEvent
from chaplain.graph.model import Model
from chaplain.graph.storage.stored import EventPosition, StoredEvent
from chaplain.graph.unread import UnreadMessages


class EventRef(NamedTuple):
    """An event that this node has."""

    stream: Stream
    number: int

    @property
    def id(self) -> bytes:
        return self.stream.model.id_of(self.number)


class Stream:
    def __init__(self, name: str, bits: dict[bytes, int], watched_max: int) -> None:
        self.name = name
        self.model = Model()
        self.unread = UnreadMessages(self.model, bits, watched_max)
        self.durable = 0
        """Number of events on disk."""
        self.changed_ns = 0
        """When the newest event was on disk."""
        self.leaves: dict[int, None] = {}
        self.offset = 0
        """Offset of the next event in the log."""
        self.unwritten: list[SignedEvent] = []
        """Added events that are not part of a write yet."""
        self.confirmed_enough: dict[int, None] = {}
        """Events with enough confirmations. They become read when the READ mark is on disk."""
        self.floor_wanted = 0
        """A new floor to write with the next batch; 0: none."""
        self.floor_blockers: list[bytes] = []
        """Members that keep the floor low: they lack events below the wanted floor, or have not sent their leaves."""
        self.confirmed_leaves: dict[int, None] = {}
        """Leaves for which this node has sent its confirmation."""

        self._positions = array("Q")
        self._indexes = array("H")
        self.sizes = array("I")

    def add(self, event: SignedEvent) -> int:
        number = self.model.add(event)
        self.unread.watch(number)
        self.sizes.append(len(event.raw))
        self.unwritten.append(event)
        return number

    def load(self, kept: StoredEvent) -> None:
        """Add an event that recovery found on disk."""
        number = self.model.add(kept.event)
        self.unread.watch(number)
        self.sizes.append(len(kept.event.raw))
        self.persisted(1, [kept.place])

    def persisted(self, count: int, places: list[EventPosition]) -> range:
        """Record that the next `count` events are on disk at these positions. Return their numbers."""
        assert count == len(places)
        assert self.durable + count <= len(self.model)
        self._positions.extend([place.position for place in places])
        self._indexes.extend([place.index for place in places])
        new = range(self.durable, self.durable + count)
        for number in new:
            for parent in self.model.parents_of(number):
                self.leaves.pop(parent, None)
                self.confirmed_leaves.pop(parent, None)
            self.leaves[number] = None
        self.durable = new.stop
        return new

    def place_of(self, number: int) -> EventPosition:
        return EventPosition(self._positions[number], self._indexes[number])

    def first_position(self) -> int:
        """Log position of the oldest event that is not pruned."""
        kept = (number for number in range(self.durable) if self.model.height_of(number) >= self.model.floor)
        return self._positions[next(kept, 0)] if self.durable else 1 << 62

    def leaf_ids(self) -> list[bytes]:
        return [self.model.id_of(number) for number in self.leaves]

    def find_durable(self, event_id: bytes) -> int:
        number = self.model.find(event_id)
        return number if number < self.durable else -1
