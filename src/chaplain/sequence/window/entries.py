"""What the log of a sequence holds, and what of it this node has published."""

from __future__ import annotations

from typing import NamedTuple

from chaplain.core import Frozen
from chaplain.sequence.events import Publish
from chaplain.sequence.messages.entry import NO_BALLOT, NO_HASH, Ballot, Entry


class Held(Frozen, frozen=True):
    index: int
    entry: Entry
    hash: bytes


class Base(Frozen, frozen=True):
    """The entry before the first that is held: all that must be known of it."""

    index: int = 0
    hash: bytes = NO_HASH
    ballot: Ballot = NO_BALLOT
    next: int = 0


class Placed(Frozen, frozen=True):
    publish: Publish
    run: int
    offset: int


class Lost(NamedTuple):
    at: int
    hash: bytes
    placed: list[Placed]
