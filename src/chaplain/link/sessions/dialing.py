"""Calls to endpoints, and the channels on which this process sends.

A *call* keeps a session with an endpoint: it dials, and redials after a loss. Each dial opens a new outgoing channel.
The route of a client that dialled us is an outgoing channel without a call. This module decides the back-off between
two dials. `handshake.py` and `core.py` change the rest of its state; it sends nothing itself.

Invariants: a channel has at most one current offer; the greeting is the first message on a channel.
"""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from chaplain.core import Channel
from chaplain.link.auth.key_exchange import KeyOffer
from chaplain.link.settings import LinkSettings

if TYPE_CHECKING:
    from chaplain.link.sessions.session import LinkSession


class DialState(Enum):
    WAITING = "waiting to dial"
    DIALLING = "dialling"
    CONNECTED = "connected"


class OutgoingChannel:
    """One channel on which we may send: a connection that we dialled, or the route of a client."""

    __slots__ = (
        "call",
        "channel",
        "due_ns",
        "echo",
        "echoed",
        "key",
        "offer",
        "queued_bytes",
        "session",
        "to",
    )

    def __init__(self, channel: Channel, call: DialAttempt | None = None) -> None:
        self.channel = channel
        self.call = call
        self.offer: KeyOffer | None = None
        self.echo = b""
        """The peer's nonce that our next greeting must echo."""
        self.to = b""
        """The peer's instance that our next greeting is addressed to."""
        self.echoed = b""
        """The peer's nonce that the last greeting of the current offer echoed."""
        self.queued_bytes = 0
        self.session: LinkSession | None = None
        self.due_ns = 0
        self.key = b""
        """The client's public key, on the route of a client."""


class DialAttempt:
    """A call: the intention to keep a session with the node at an endpoint."""

    __slots__ = ("advertised", "attempt", "due_ns", "endpoint", "give_up_ns", "outgoing", "state", "wanted")

    def __init__(self, endpoint: str, wanted: bool) -> None:
        self.endpoint = endpoint
        self.wanted = wanted
        """True if the layer above requested the call with `Meet`. Otherwise the call only answers a greeting of the
        peer.
        """
        self.advertised = ""
        """The endpoint that the peer itself advertises, if it differs."""
        self.state = DialState.WAITING
        self.attempt = 0
        self.outgoing: OutgoingChannel | None = None
        self.due_ns = 0
        self.give_up_ns = 0
        """The time at which a call that only answers a greeting is dropped, unless it has a session by then."""

    def backoff_ns(self, settings: LinkSettings, rng: Random) -> int:
        """Exponential back-off with jitter, so that many nodes that lost one peer do not all reconnect at once."""
        # The wait is between half and all of a bound that doubles with each attempt up to `redial_max_ns`.
        longest_ns = min(settings.redial_max_ns, settings.redial_min_ns << min(self.attempt, 32))
        self.attempt += 1
        return longest_ns // 2 + int(rng.random() * longest_ns / 2)
