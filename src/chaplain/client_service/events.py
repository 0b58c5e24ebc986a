"""Inputs, effects and settings of the client service, and the parts of its node that it may read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from chaplain.client_service.limits import Limits
from chaplain.core import Frozen, Report, Requested, Settled, Withdrawn, Woken
from chaplain.costs import Charge
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


class ClientServiceSettings(Frozen, frozen=True):
    """Limits of the client service."""

    listeners_max: int = 64
    """Pools, event streams and questions that one session may listen to; one more is refused."""
    calls_max: int = 1024
    """Questions and calls to other layers that one session may have open; one more is refused."""
    spread_per_second_max: int = 200
    """Requests per second of one identity that every node has to act on (`messages.is_spread`), with bursts of twice as
    many. One more is refused.
    """
    question_timeout_ns_max: int = 60 * 10**9
    """Longest timeout of a question; longer ones are shortened."""
    unheard_ns_max: int = 5_500_000_000
    """A request with side effects is executed only if its client heard this node within this time; otherwise it is
    refused. A client gives up a node after 6 s of silence, and then reports that the outcome of the request is unknown.
    """


class RotationWanted(Frozen, frozen=True):
    """A client requests a new cluster key; the node creates one. Ends in `Rotated`."""

    call: int


class ForLayer(Frozen, frozen=True):
    """A client's call, or its withdrawal, for a layer above gossip."""

    layer: int
    event: Requested | Withdrawn


class RightsChanged(Frozen, frozen=True):
    """Identities were added, removed or given other rights: subscriptions that are no longer allowed end."""


ClientServiceInput: TypeAlias = (
    RightsChanged
    | Woken
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
ClientServiceEffect: TypeAlias = (
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
    | Charge
    | Report
)


class NodeViews(Frozen, frozen=True):
    """The parts of its node that the client service may read."""

    status: Callable[[], bytes]
    """The node's status as JSON."""
    members: Callable[[], bytes]
    """The membership list as JSON."""
    node_id: Callable[[int], int]
    """The id that people use for a node, from its identifier."""
    identifier: Callable[[int], int]
    """The identifier of a node id. A number that is no configured node's id is an identifier already."""
    layers: frozenset[int] = frozenset()
    """The layers above gossip that answer clients here."""
    required_right: Callable[[int, bytes], RequiredRight | None] = lambda layer, body: None
    """The right that a request to a layer needs; None if it needs none or the layer checks it itself."""
    has_right: Callable[[bytes, RequiredRight], bool] = lambda key, right: True
    """True if the client with this key has the right."""
    is_admin: Callable[[bytes], bool] = lambda key: True
    """True if the client with this key is an admin."""
    unheard_ns: Callable[[bytes], int] = lambda instance: 0
    """Upper bound of the time since the client of this session last heard us when it sent the present request."""
    limits: Limits = Limits()
    """Limits of the layers below."""
