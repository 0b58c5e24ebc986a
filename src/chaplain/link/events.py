"""What passes between the link and the layer above it, beside the host's own inputs and effects.

A *session* is an authenticated, sealed conversation with one instance of a node or client. The layer above names
sessions by the other side's instance and never sees a key, a counter or a socket.
"""

from __future__ import annotations

from typing import TypeAlias

from chaplain.core import (
    Admit,
    Arrived,
    Connected,
    Dial,
    Disconnected,
    Drained,
    Flushed,
    Frozen,
    HangUp,
    Knocked,
    Refuse,
    Report,
    Send,
    Woken,
)
from chaplain.wire.command import Hello


class Peer(Frozen, frozen=True):
    """Who is at the other end of a session; every field was proven by the greeting."""

    instance: bytes
    """Random 128 bits per process start."""
    identifier: int
    """32 bits, the name in parcels; stays with the key."""
    key: bytes
    """Ed25519 public key."""
    endpoint: str = ""
    """Where a node accepts connections; empty for a client."""
    client: str = ""
    """The registered name of a client; empty for a node."""


# Inputs from above.


class Meet(Frozen, frozen=True):
    """Keep a session with whoever is at this endpoint: dial, greet, and dial again after a loss."""

    endpoint: str


class Forget(Frozen, frozen=True):
    """Stop wanting a session with this endpoint, and end the one there is."""

    endpoint: str


class Dismiss(Frozen, frozen=True):
    """End the session with a client, and greet it: if it is there after all, it begins another and knows of the end."""

    instance: bytes


class Introduce(Frozen, frozen=True):
    """What our greetings say of us from now on, beside what the link puts in itself.

    A session may still rest on a greeting that was written before: who changes its words says so in each session, too.
    """

    pools: tuple[str, ...]
    status: int
    headers: dict[str, str]


class Say(Frozen, frozen=True):
    """Seal one encoded command and send it, at the latest with the next `Drained` or `Woken`.

    Ordinary traffic that would pass the byte budget is dropped and told.
    """

    instance: bytes
    command: bytes
    urgent: bool = False
    """May use the reserve above the budget: heartbeats, pings, membership."""


class InstallKey(Frozen, frozen=True):
    """Accept this cluster key from now on, beside the others."""

    key: bytes


class UseKey(Frozen, frozen=True):
    """Prove ourselves with this installed key from now on."""

    key_id: bytes


class RemoveKey(Frozen, frozen=True):
    """Accept this key no longer."""

    key_id: bytes


class Register(Frozen, frozen=True):
    """The clients that may connect, by public key, with their names. Sessions of others end."""

    clients: dict[bytes, str]


class Pin(Frozen, frozen=True):
    """A client believes these nodes' greetings, too, by their public keys, and those of the ones that are gone no more.

    Whoever says so ends the sessions that there are with them.
    """

    keys: frozenset[bytes]
    gone: frozenset[bytes]


LinkInput: TypeAlias = (
    Woken
    | Drained
    | Knocked
    | Connected
    | Disconnected
    | Arrived
    | Flushed
    | Meet
    | Forget
    | Dismiss
    | Introduce
    | Say
    | InstallKey
    | UseKey
    | RemoveKey
    | Register
    | Pin
)


# Effects for the layer above.


class Met(Frozen, frozen=True):
    """A session is up. If one with the same instance was up before, this one replaces it."""

    peer: Peer
    hello: Hello


class Said(Frozen, frozen=True):
    """The commands of one frame, opened: each is exactly the bytes that the other side was given to say."""

    instance: bytes
    commands: tuple[bytes, ...]


class Missed(Frozen, frozen=True):
    """So many commands were sealed for us on this session and never arrived."""

    instance: bytes
    count: int


class CommandDropped(Frozen, frozen=True):
    """A command was not sent: the queue to this peer is at its budget, or there is no session."""

    instance: bytes
    command: bytes
    reason: str


class Parted(Frozen, frozen=True):
    """The session is over. `unconfirmed` commands were sent and may or may not have arrived."""

    peer: Peer
    reason: str
    unconfirmed: int


LinkEffect: TypeAlias = Admit | Refuse | Dial | HangUp | Send | Report | Met | Said | Missed | CommandDropped | Parted
