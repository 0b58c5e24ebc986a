"""Records of the graph's log as values, and their positions."""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.graph.messages.event import SignedEvent


class EventPosition(Frozen, frozen=True):
    """The log position of an event's record, and the index of the event in that record."""

    position: int
    index: int


class StoredEvent(Frozen, frozen=True):
    """An event found in the log."""

    event: SignedEvent
    place: EventPosition
    offset: int


class ReadMark(Frozen, frozen=True):
    """A READ record: these events and their ancestors are read."""

    stream: str
    ids: tuple[tuple[bytes, int], ...]
    """Event ids, each with its number of confirmations."""


class FloorMark(Frozen, frozen=True):
    """A FLOOR record: the stream was pruned below this height."""

    stream: str
    height: int


class TicketContents(Frozen, frozen=True):
    """The part of one write (ticket) that belongs to one stream.

    It has the positions of new events, the numbers of newly read events, and a new floor or 0.
    """

    stream: str
    places: tuple[EventPosition, ...]
    confirmed_enough: tuple[int, ...]
    floor: int
