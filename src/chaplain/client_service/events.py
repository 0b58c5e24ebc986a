"""What passes between the desk and its node, what the desk may read of it, and its bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from chaplain.client_service.limits import Limits
from chaplain.core import Frozen, Report, Requested, Settled, Withdrawn
from chaplain.gossip.events import (
    Acknowledged,
    AskQuery,
    EventSeen,
    Fire,
    GiveAnswer,
    MemberChanged,
    QueryDecided,
    Questioned,
    RegisterQuestion,
    Rotated,
    UnregisterQuestion,
)
from chaplain.mesh.events import (
    Entered,
    Exited,
    Gapped,
    Joined,
    JoinPool,
    LeavePool,
    Left,
    Shout,
    Shouted,
    Whisper,
    Whispered,
)
from chaplain.rights import RequiredRight


class DeskSettings(Frozen, frozen=True):
    listeners_max: int = 64
    """Pools, event streams and questions one session may listen to; one more is refused."""
    calls_max: int = 1024
    """Questions and calls to other layers one session may have open; one more is refused."""
    spread_per_second_max: int = 200
    """Requests of one identity in one second that every node has to act on (`messages.is_spread`), twice as many at
    once; one more is refused.
    """
    question_timeout_ns_max: int = 60 * 10**9
    unheard_ns_max: int = 5_500_000_000
    """What would make something happen is done only for who has heard this node that lately: later it is refused. A
    client that hears nothing for 6 s gives a node up, and is told that it may or may not have happened.
    """


class RotationWanted(Frozen, frozen=True):
    """A client asks for a new cluster key; the node makes one. Ends in `Rotated`."""

    call: int


class ForLayer(Frozen, frozen=True):
    """A client's call, or its end, for a layer above gossip."""

    layer: int
    event: Requested | Withdrawn


class RightsChanged(Frozen, frozen=True):
    """Identities were added, removed or given other rights: whoever may not go on listening is told so."""


DeskInput: TypeAlias = (
    RightsChanged
    | Entered
    | Exited
    | Whispered
    | Shouted
    | Gapped
    | Joined
    | Left
    | MemberChanged
    | EventSeen
    | Questioned
    | QueryDecided
    | Acknowledged
    | Rotated
    | Settled
)
DeskEffect: TypeAlias = (
    Whisper
    | Fire
    | AskQuery
    | GiveAnswer
    | RegisterQuestion
    | UnregisterQuestion
    | JoinPool
    | LeavePool
    | Shout
    | RotationWanted
    | ForLayer
    | Report
)


class NodeViews(Frozen, frozen=True):
    """What the desk may read of its node when a client asks."""

    status: Callable[[], bytes]
    """As JSON."""
    members: Callable[[], bytes]
    """Likewise."""
    node_id: Callable[[int], int]
    """The name people know a node by, from its identifier."""
    identifier: Callable[[int], int]
    """The other way round; a number that names no configured node is an identifier already."""
    layers: frozenset[int] = frozenset()
    """The layers above gossip that answer clients here."""
    wants: Callable[[int, bytes], RequiredRight | None] = lambda layer, body: None
    """The right that a request to a layer takes; none if it is none, or the layer asks for itself."""
    may: Callable[[bytes, RequiredRight], bool] = lambda key, want: True
    """Whether the client of this key has a right."""
    is_admin: Callable[[bytes], bool] = lambda key: True
    """Whether the client of this key may change the cluster itself."""
    unheard_ns: Callable[[bytes], int] = lambda instance: 0
    """How long ago it may be that the client of this session heard us, before it made the request at hand."""
    limits: Limits = Limits()
    """What the layers below take."""
