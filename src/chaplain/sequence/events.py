"""What passes between the sequence and the layer around it, beside sessions, parcels and time."""

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
    """Number these events, one behind the other. Ends in `Published` or `Unpublished` of the same token."""

    token: int
    stream: str
    publisher: str
    values: tuple[bytes, ...]


SequenceInput: TypeAlias = Woken | Drained | Stopping | Entered | Exited | MemberChanged | GossipParcel | Publish


# Effects.


class Published(Frozen, frozen=True):
    """Agreed: the first event has this number, the others follow it."""

    token: int
    first: int


class Unpublished(Frozen, frozen=True):
    """`refused` and `busy`: none of it was published, nor will be. `unknown`: it may have been, or may yet be."""

    token: int
    kind: str
    reason: str


class Delivered(Frozen, frozen=True):
    """These events are agreed, and so is everything before them."""

    history: int
    index: int
    first: int
    run: EventRun
    before: bytes
    """The stream's hash before the first of them."""
    learned: bool = False
    """Taken over from others on joining: it was agreed before this node had a seat."""


class HistoryBegan(Frozen, frozen=True):
    """From now on deliveries are of this history, behind these numbers; what was delivered before is of another."""

    history: int
    index: int
    hash: bytes
    streams: dict[str, tuple[int, bytes]]


class Forgot(Frozen, frozen=True):
    """Everything up to this entry has left the window."""

    index: int


class Became(Frozen, frozen=True):
    state: SequenceState
    reason: str


SequenceEffect: TypeAlias = (
    Whisper | Meet | Report | Published | Unpublished | Delivered | HistoryBegan | Forgot | Became
)
