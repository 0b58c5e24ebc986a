"""Inputs and effects of the sequence core, in addition to sessions, parcels and time."""

from __future__ import annotations

from typing import TypeAlias

from chaplain.core import Drained, Frozen, Report, Stopping, Woken
from chaplain.gossip.events import GossipParcel, MemberChanged
from chaplain.link.events import Meet
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.sequence.messages.entry import EventRun
from chaplain.sequence.messages.peer import SequenceState

# Inputs.


class Publish(Frozen, frozen=True):
    """Number these events consecutively. Ends with `Published` or `Unpublished` of the same token."""

    token: int
    stream: str
    publisher: str
    values: tuple[bytes, ...]


class Confirm(Frozen, frozen=True):
    """Deliver everything that is decided now, at any node. Ends with `Confirmed` or `Unpublished` of the same token."""

    token: int


SequenceInput: TypeAlias = (
    Woken | Drained | Stopping | Entered | Exited | MemberChanged | GossipParcel | Publish | Confirm
)


# Effects.


class Published(Frozen, frozen=True):
    """The events are decided: the first has this number, the others follow."""

    token: int
    first: int


class Confirmed(Frozen, frozen=True):
    """Everything that was decided when the node was asked is delivered."""

    token: int


class Unpublished(Frozen, frozen=True):
    """`refused` and `busy`: no event was or will be published. `unknown`: they may have been published, or may still
    be.
    """

    token: int
    kind: str
    reason: str


class Delivered(Frozen, frozen=True):
    """These events are decided, and so is everything before them."""

    history: int
    index: int
    first: int
    run: EventRun
    before: bytes
    """The stream's hash before the first event."""
    learned: bool = False
    """Copied from another member during catch-up: decided before this node had a seat."""


class HistoryBegan(Frozen, frozen=True):
    """Later deliveries belong to this history and continue these numbers. Earlier deliveries belonged to another."""

    history: int
    index: int
    hash: bytes
    streams: dict[str, tuple[int, bytes]]


class Forgot(Frozen, frozen=True):
    """All entries up to this one have left the window."""

    index: int


class Became(Frozen, frozen=True):
    """The node's state or its reason changed."""

    state: SequenceState
    reason: str


SequenceEffect: TypeAlias = (
    Whisper | Meet | Report | Published | Confirmed | Unpublished | Delivered | HistoryBegan | Forgot | Became
)
