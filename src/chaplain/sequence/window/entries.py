"""What the log of a sequence holds, and what of it this node has published."""

from __future__ import annotations

from typing import NamedTuple

from chaplain.core import Frozen
from chaplain.sequence.events import Publish
from chaplain.sequence.messages.entry import NO_BALLOT, NO_HASH, Ballot, SequenceEntry


class HeldEntry(Frozen, frozen=True):
    index: int
    entry: SequenceEntry
    hash: bytes


class EntryBase(Frozen, frozen=True):
    """The entry before the first that is held: all that must be known of it."""

    index: int = 0
    hash: bytes = NO_HASH
    ballot: Ballot = NO_BALLOT
    next: int = 0


class PlacedRun(Frozen, frozen=True):
    publish: Publish
    run: int
    offset: int


class LostEntry(NamedTuple):
    at: int
    hash: bytes
    placed: list[PlacedRun]
