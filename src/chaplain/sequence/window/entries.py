"""Entries of the log, and the publishes of this node that they contain."""

from __future__ import annotations

from typing import NamedTuple

from chaplain.core import Frozen
from chaplain.sequence.events import Publish
from chaplain.sequence.messages.entry import NO_BALLOT, NO_HASH, Ballot, SequenceEntry


class HeldEntry(Frozen, frozen=True):
    """An entry with its index and hash."""

    index: int
    entry: SequenceEntry
    hash: bytes


class EntryBase(Frozen, frozen=True):
    """The facts that must be known of the last entry before the window."""

    index: int = 0
    hash: bytes = NO_HASH
    ballot: Ballot = NO_BALLOT
    next: int = 0


class PlacedRun(Frozen, frozen=True):
    """Where a publish of this node is in an entry: the index of the run, and the offset of its first event in
    that run.
    """

    publish: Publish
    run: int
    offset: int


class LostEntry(NamedTuple):
    """An entry that was displaced from the log before it was decided."""

    at: int
    hash: bytes
    placed: list[PlacedRun]
