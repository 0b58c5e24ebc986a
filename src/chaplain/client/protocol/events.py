"""Inputs and effects of the client core, in addition to those of every core (`HostInput`, `HostEffect`).

A call is one request of the program. Its number stays the same when the call moves to another node. A call ends in
exactly one of `Returned` and `Raised`. A subscription is a call that listens: it emits `ListeningBegan` once and any
number of `Yielded`, and ends without an effect after `Cancelled`.
"""

from __future__ import annotations

from typing import TypeAlias

from chaplain.client.protocol.call_events import Cancelled, Failure, Raised, Returned
from chaplain.client.protocol.journal.events import JournalCommand, JournalOutcome, TakenCommand
from chaplain.client_service.messages import ClientRequest, EventItem, MessageItem, NewsItem, PoolItem, QuestionItem
from chaplain.core import Frozen, HostEffect, HostInput

TRY_AGAIN = "try again, or a longer timeout"
"""Default advice in the error of a call that got no answer."""


class Settings(Frozen, frozen=True):
    """Limits and timeouts of one client."""

    sessions_warm: int = 3
    """Sessions kept open: one serves, the others are ready to take over."""
    sessions_max: int = 16
    """Upper limit of sessions. A session with a node that accepts none of our writes or queries does not count as
    ready.
    """
    calls_max: int = 10_000
    """Pending calls, including subscriptions. One more fails with `BUSY`."""
    ping_after_ns: int = 2_000_000_000
    """A node that was silent for this long is sent a PING."""
    answer_within_ns: int = 4_000_000_000
    """A node that leaves a PING unanswered for this long, and sends nothing else, is given up. The sum of this time and
    `ping_after_ns` must exceed `ClientServiceSettings.unheard_ns_max`: after that time nodes refuse requests with side
    effects. A request that the client has given up is therefore never executed later.
    """
    greet_within_ns: int = 3_000_000_000
    """A node that has not completed the handshake this long after dialling is given up for now."""
    refusals_max: int = 3
    """Consecutive refusals after which an endpoint's refusal is believed: a node that starts may not know its clients
    yet.
    """
    retry_first_ns: int = 50_000_000
    """Back-off before a failed endpoint is tried again; doubled with each consecutive failure."""
    retry_most_ns: int = 2_000_000_000
    """Upper limit of the back-off."""


# Inputs.


class Connect(Frozen, frozen=True):
    """Return when a first session is up, or fail with the reason why none is."""

    call: int
    timeout_ns: int


class Measure(Frozen, frozen=True):
    """Send a PING. The payload of `Returned` is the round trip in nanoseconds, as 8 octets."""

    call: int
    timeout_ns: int


class ClientCall(Frozen, frozen=True):
    """Send a request to the cluster. The timeout of a subscription applies only until it has started."""

    request: ClientRequest
    payload: bytes
    timeout_ns: int
    advice: str = TRY_AGAIN
    """The advice of the error if a node is connected but does not answer in time."""


ClientInput: TypeAlias = HostInput | Connect | Measure | ClientCall | Cancelled | JournalCommand | TakenCommand


# Effects.

Item: TypeAlias = EventItem | NewsItem | PoolItem | MessageItem | QuestionItem


class ListeningBegan(Frozen, frozen=True):
    """The subscription has started at a node: items from now on are yielded."""

    call: int


class Yielded(Frozen, frozen=True):
    """One item of a subscription."""

    call: int
    item: Item
    payload: bytes
    missed: int
    """Items lost since the previous one, as far as they could be counted."""
    moved: bool
    """True if the subscription moved to another node since the previous item: items in between are lost uncounted."""


Outcome: TypeAlias = Returned | Raised | ListeningBegan | Yielded | JournalOutcome
ClientEffect: TypeAlias = HostEffect | Outcome


# Session events, from the connection manager to the core.


class SessionReady(Frozen, frozen=True):
    """A session is up."""

    instance: bytes


class SessionLost(Frozen, frozen=True):
    """A session has ended."""

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
