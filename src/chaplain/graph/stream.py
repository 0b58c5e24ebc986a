"""One stream of a node's graph: its Model, who confirmed what, and what of it is on disk.

Decides nothing of its own; it keeps the parts in step. Invariants: numbers below `durable` are on disk, and only they
are shown, told or confirmed; `leaves` are the leaves of just these.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from chaplain.graph.messages.event import Event
from chaplain.graph.model import Model
from chaplain.graph.storage.stored import EventPosition, StoredEvent
from chaplain.graph.unread import UnreadMessages


class Here(NamedTuple):
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
        self.leaves: dict[int, None] = {}
        self.offset = 0
        """Of the next event on disk."""
        self.fresh: list[Event] = []
        """Added, and not yet given to the disk."""
        self.enough: dict[int, None] = {}
        """Confirmed often enough; read when that is on disk."""
        self.floor_wanted = 0
        """A floor that is to be written."""
        self.held_by: list[bytes] = []
        """Members that keep the floor below where it could be: they lack something there, or have not told."""
        self.confirmed: dict[int, None] = {}
        """Leaves that we gave our word for already."""
        self.quiet_ns = 0
        """When an event was last added here."""
        self._positions = array("Q")
        self._indexes = array("H")
        self.sizes = array("I")

    def add(self, event: Event) -> int:
        number = self.model.add(event)
        self.unread.watch(number)
        self.sizes.append(len(event.raw))
        self.fresh.append(event)
        return number

    def load(self, kept: StoredEvent) -> None:
        """Add what the disk holds already."""
        number = self.model.add(kept.event)
        self.unread.watch(number)
        self.sizes.append(len(kept.event.raw))
        self.persisted(1, [kept.place])

    def persisted(self, count: int, places: list[EventPosition]) -> range:
        """The next so many events are on disk, there."""
        assert count == len(places)
        assert self.durable + count <= len(self.model)
        self._positions.extend([place.position for place in places])
        self._indexes.extend([place.index for place in places])
        new = range(self.durable, self.durable + count)
        for number in new:
            for parent in self.model.parents_of(number):
                self.leaves.pop(parent, None)
                self.confirmed.pop(parent, None)
            self.leaves[number] = None
        self.durable = new.stop
        return new

    def place_of(self, number: int) -> EventPosition:
        return EventPosition(self._positions[number], self._indexes[number])

    def first_position(self) -> int:
        """Where the oldest event lies that was not pruned."""
        kept = (number for number in range(self.durable) if self.model.height_of(number) >= self.model.floor)
        return self._positions[next(kept, 0)] if self.durable else 1 << 62

    def leaf_ids(self) -> list[bytes]:
        return [self.model.id_of(number) for number in self.leaves]

    def find_durable(self, event_id: bytes) -> int:
        number = self.model.find(event_id)
        return number if number < self.durable else -1
