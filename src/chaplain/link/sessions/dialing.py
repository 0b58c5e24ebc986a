"""The ways out: calls to endpoints, the lines they open, and clients' routes.

Decides when a lost call is dialled again. Holds state that `handshake.py` and `core.py` change; sends nothing itself.

A *call* is the wish to talk to an endpoint; each attempt opens a new *line*. A client's route is a line without a call.
Invariants: a line has at most one live offer; a line that was never greeted on has carried nothing.
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


class SpeakingChannel:
    """One channel we may speak on: a dial, or a client's route."""

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
        """The peer's nonce that our next greeting is to echo."""
        self.to = b""
        self.echoed = b""
        """The peer's nonce that the last greeting of the live offer echoed."""
        self.queued_bytes = 0
        self.session: LinkSession | None = None
        self.due_ns = 0
        self.key = b""
        """On a client's route: the client's key."""


class DialAttempt:
    """The wish to have a session with whoever is at an endpoint."""

    __slots__ = ("advertised", "attempt", "due_ns", "endpoint", "give_up_ns", "line", "state", "wanted")

    def __init__(self, endpoint: str, wanted: bool) -> None:
        self.endpoint = endpoint
        self.wanted = wanted
        self.advertised = ""
        """The endpoint the peer itself gave, if it is another."""
        self.state = DialState.WAITING
        self.attempt = 0
        self.line: SpeakingChannel | None = None
        self.due_ns = 0
        self.give_up_ns = 0
        """When a call that only answers somebody else's is dropped, unless a session comes of it."""

    def backoff_ns(self, settings: LinkSettings, rng: Random) -> int:
        """Longer with each attempt, and jittered so that many who lost one peer do not all come back at once."""
        longest_ns = min(settings.redial_max_ns, settings.redial_min_ns << min(self.attempt, 32))
        self.attempt += 1
        return longest_ns // 2 + int(rng.random() * longest_ns / 2)
