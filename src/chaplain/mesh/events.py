"""Inputs and effects between the mesh and the layers above it."""

from __future__ import annotations

from typing import TypeAlias

from chaplain.core import Cast, Frozen, Heard, Report, Stopping, Woken
from chaplain.link.events import CommandDropped, Dismiss, Forget, Introduce, Meet, Met, Missed, Parted, Peer, Said, Say

# Inputs from above.


class JoinPool(Frozen, frozen=True):
    pool: str


class LeavePool(Frozen, frozen=True):
    pool: str


class Whisper(Frozen, frozen=True):
    """Send content to one peer (ALIVE)."""

    instance: bytes
    content: bytes
    urgent: bool = False


class Shout(Frozen, frozen=True):
    """Send content to every peer in the pool (BROADCAST)."""

    pool: str
    content: bytes


class Expel(Frozen, frozen=True):
    """The cluster permanently removed the nodes with these keys. They leave all pools and never return to one."""

    keys: frozenset[bytes]
    """All removed nodes so far."""


MeshInput: TypeAlias = (
    Woken
    | Stopping
    | Heard
    | Met
    | Said
    | Missed
    | CommandDropped
    | Parted
    | Meet
    | Forget
    | JoinPool
    | LeavePool
    | Whisper
    | Shout
    | Expel
)


# Effects for the layers above.


class Entered(Frozen, frozen=True):
    """A peer completed its greeting."""

    peer: Peer
    headers: dict[str, str]


class Exited(Frozen, frozen=True):
    """A peer is gone: its connection ended, or it was silent for too long."""

    peer: Peer
    reason: str


class Joined(Frozen, frozen=True):
    peer: Peer
    pool: str


class Left(Frozen, frozen=True):
    peer: Peer
    pool: str


class Whispered(Frozen, frozen=True):
    """Content that a peer sent to this node alone."""

    peer: Peer
    content: bytes


class Shouted(Frozen, frozen=True):
    """Content that a peer sent to a pool that this node is in."""

    peer: Peer
    pool: str
    content: bytes


class Gapped(Frozen, frozen=True):
    """`count` commands were lost, in the direction that `outgoing` states."""

    peer: Peer
    count: int
    outgoing: bool
    """True: commands from us to the peer (dropped at the budget, or unconfirmed when the session ended)."""


class Answered(Frozen, frozen=True):
    """A peer answered our PING after `round_trip_ns`."""

    peer: Peer
    round_trip_ns: int


MeshEffect: TypeAlias = (
    Say
    | Meet
    | Forget
    | Dismiss
    | Introduce
    | Cast
    | Report
    | Entered
    | Exited
    | Joined
    | Left
    | Whispered
    | Shouted
    | Gapped
    | Answered
)
