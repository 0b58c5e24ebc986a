"""What passes between the mesh and the layers above it."""

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
    """The nodes with these keys were removed from the cluster, for ever: they have no part in anything any more."""

    keys: frozenset[bytes]
    """All of them so far."""


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
    """A peer greeted us."""

    peer: Peer
    headers: dict[str, str]


class Exited(Frozen, frozen=True):
    """A peer is gone: it hung up, or was silent too long."""

    peer: Peer
    reason: str


class Joined(Frozen, frozen=True):
    peer: Peer
    pool: str


class Left(Frozen, frozen=True):
    peer: Peer
    pool: str


class Whispered(Frozen, frozen=True):
    """Content for us alone."""

    peer: Peer
    content: bytes


class Shouted(Frozen, frozen=True):
    """Content for a pool that we are in."""

    peer: Peer
    pool: str
    content: bytes


class Gapped(Frozen, frozen=True):
    """So many commands of this peer never reached us, or of ours never reached it."""

    peer: Peer
    count: int
    outgoing: bool
    """True: ours to them (dropped at the budget, or unconfirmed when the session ended)."""


class Answered(Frozen, frozen=True):
    """A peer answered our PING: the round trip it took."""

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
