"""Inputs and effects between the link and the layer above it, beside the host's own.

A *session* is an authenticated, sealed connection with one instance of a node or client. The layer above identifies
sessions by the peer's instance and never sees a key, a counter or a socket.
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
    """The other side of a session; the greeting proved every field."""

    instance: bytes
    """128 random bits, new at every process start."""
    identifier: int
    """The 32-bit name in parcels, derived from the key."""
    key: bytes
    """Ed25519 public key."""
    endpoint: str = ""
    """The endpoint at which a node accepts connections; empty for a client."""
    client: str = ""
    """The registered name of a client; empty for a node."""


# Inputs from above.


class Meet(Frozen, frozen=True):
    """Keep a session with the node at this endpoint: dial, greet, and redial after a loss."""

    endpoint: str


class Forget(Frozen, frozen=True):
    """Stop keeping a session with this endpoint, and end the current one."""

    endpoint: str


class Dismiss(Frozen, frozen=True):
    """End the session with a client and greet it.

    A client that is still there starts a new session and learns of the end.
    """

    instance: bytes


class Introduce(Frozen, frozen=True):
    """The content of our greetings from now on, beside the link's own headers.

    A session may be based on an earlier greeting, so the layer above also announces each change in every session.
    """

    pools: tuple[str, ...]
    status: int
    headers: dict[str, str]


class Say(Frozen, frozen=True):
    """Seal one encoded command and send it, at the latest with the next `Drained` or `Woken`.

    An ordinary command that would exceed the byte budget is dropped and reported.
    """

    instance: bytes
    command: bytes
    urgent: bool = False
    """May use the reserve above the budget: heartbeats, pings, membership."""


class InstallKey(Frozen, frozen=True):
    """Accept this cluster key from now on, beside the others."""

    key: bytes


class UseKey(Frozen, frozen=True):
    """Authenticate with this installed key from now on."""

    key_id: bytes


class RemoveKey(Frozen, frozen=True):
    """No longer accept this key."""

    key_id: bytes


class Register(Frozen, frozen=True):
    """The clients that may connect: names by public key. Sessions of all other clients end."""

    clients: dict[bytes, str]


class PinNodeKeys(Frozen, frozen=True):
    """A client accepts greetings of nodes with these keys, too, and no longer those of nodes with the `gone` keys.

    The layer that sends it ends the existing sessions with those nodes.
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
    | PinNodeKeys
)


# Effects for the layer above.


class Met(Frozen, frozen=True):
    """A session is up. It replaces an earlier session with the same instance."""

    peer: Peer
    hello: Hello


class Said(Frozen, frozen=True):
    """The commands of one frame, decrypted: each is exactly the bytes of the peer's `Say`."""

    instance: bytes
    commands: tuple[bytes, ...]


class Missed(Frozen, frozen=True):
    """`count` commands were sealed for us in this session and never arrived."""

    instance: bytes
    count: int


class CommandDropped(Frozen, frozen=True):
    """A command was not sent: the queue to this peer is at its budget, or there is no session."""

    instance: bytes
    command: bytes
    reason: str


class Parted(Frozen, frozen=True):
    """The session has ended. `unconfirmed` commands were sent and may or may not have arrived."""

    peer: Peer
    reason: str
    unconfirmed: int


LinkEffect: TypeAlias = Admit | Refuse | Dial | HangUp | Send | Report | Met | Said | Missed | CommandDropped | Parted
