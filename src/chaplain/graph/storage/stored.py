"""What the graph has on disk, and where."""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.graph.messages.event import Event


class EventPosition(Frozen, frozen=True):
    """Where an event lies: the position of its record in the log, and which of its messages it is."""

    position: int
    index: int


class StoredEvent(Frozen, frozen=True):
    """An event found on disk."""

    event: Event
    place: EventPosition
    offset: int


class ReadMark(Frozen, frozen=True):
    stream: str
    ids: tuple[tuple[bytes, int], ...]
    """Events, and how many had confirmed each."""


class FloorMark(Frozen, frozen=True):
    stream: str
    height: int


class TicketContents(Frozen, frozen=True):
    """What a ticket puts on disk of one stream."""

    stream: str
    places: tuple[EventPosition, ...]
    enough: tuple[int, ...]
    floor: int
