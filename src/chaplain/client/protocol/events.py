"""What passes between the client core and the program that uses it, beside the host's own inputs and effects.

A call is one thing the program wants, named by a number that stays the same when the call moves to another node.
It ends in exactly one of `Returned` and `Raised`. A listener also emits `ListeningBegan` once and any number of
`Yielded` before that, and ends without a further event after `Cancelled`.
"""

from __future__ import annotations

from typing import TypeAlias

from chaplain.client.protocol.call_events import Cancelled, Failure, Raised, Returned
from chaplain.client.protocol.journal.events import JournalOutcome, TakenCommand
from chaplain.client.protocol.journal.events import Wish as JournalWish
from chaplain.client_service.messages import ClientRequest, EventItem, NewsItem, PoolItem, QuestionItem
from chaplain.core import Frozen, HostEffect, HostInput

TRY_AGAIN = "try again, or a longer timeout"


class Settings(Frozen, frozen=True):
    """Bounds and times of one client."""

    sessions_warm: int = 3
    """Sessions kept up at once: one that serves, the others ready to take over."""
    sessions_max: int = 16
    """Sessions in all: one with a node that takes nothing of ours does not count as ready to take over."""
    calls_max: int = 10_000
    """Calls under way, listenings included. One more is refused with `BUSY`."""
    ping_after_ns: int = 2_000_000_000
    """A node not heard for this long is sent a PING."""
    answer_within_ns: int = 4_000_000_000
    """A node that lets a PING wait for this long, and says nothing else, is given up. Together with the time before the
    PING it is longer than nodes take what makes something happen (`DeskSettings.unheard_ns_max`).
    """
    greet_within_ns: int = 3_000_000_000
    """A node that has not greeted us this long after we dialled is given up for now."""
    refusals_max: int = 3
    """Refusals in a row after which an endpoint's no is believed: a node that starts may not know its clients yet."""
    retry_first_ns: int = 50_000_000
    """The pause before an endpoint that failed is tried again; doubled with each failure in a row."""
    retry_most_ns: int = 2_000_000_000


# Inputs.


class Connect(Frozen, frozen=True):
    """Tell when a first session is up, or why none is."""

    call: int
    timeout_ns: int


class Measure(Frozen, frozen=True):
    """Send a PING; the payload of `Returned` is the round trip in nanoseconds, 8 octets."""

    call: int
    timeout_ns: int


class ClientCall(Frozen, frozen=True):
    """Ask something of the cluster. For a listening the timeout bounds its beginning only."""

    request: ClientRequest
    payload: bytes
    timeout_ns: int
    advice: str = TRY_AGAIN
    """What a person is told when a node is there and gives no answer in time."""


ClientInput: TypeAlias = HostInput | Connect | Measure | ClientCall | Cancelled | JournalWish | TakenCommand


# Effects.

Item: TypeAlias = EventItem | NewsItem | PoolItem | QuestionItem


class ListeningBegan(Frozen, frozen=True):
    """The listening has begun at some node: what happens from now on is yielded."""

    call: int


class Yielded(Frozen, frozen=True):
    """One item of a listening."""

    call: int
    item: Item
    payload: bytes
    missed: int
    """Messages lost on the way since the item before, as far as they could be counted."""
    moved: bool
    """The listening moved to another node since the item before: what happened between is lost uncounted."""


Outcome: TypeAlias = Returned | Raised | ListeningBegan | Yielded | JournalOutcome
ClientEffect: TypeAlias = HostEffect | Outcome


# News of sessions, from their keeper to the core.


class SessionReady(Frozen, frozen=True):
    instance: bytes


class SessionLost(Frozen, frozen=True):
    instance: bytes
    endpoint: str
    reason: str


__all__ = [
    "TRY_AGAIN",
    "Cancelled",
    "ClientCall",
    "ClientEffect",
    "ClientInput",
    "Connect",
    "Failure",
    "Item",
    "ListeningBegan",
    "Measure",
    "Outcome",
    "Raised",
    "Returned",
    "SessionLost",
    "SessionReady",
    "Settings",
    "Yielded",
]
