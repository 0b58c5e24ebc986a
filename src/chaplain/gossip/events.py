"""Inputs and effects between gossip and the layers next to it: the mesh below, layers and applications above.

The caller chooses the number of each call. Exactly one effect with that number ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

from chaplain.core import Frozen, Report, Stopping, Woken
from chaplain.link.events import Forget, InstallKey, Meet, Peer, RemoveKey, UseKey
from chaplain.mesh.events import Entered, Exited, Expel, Whisper
from chaplain.wire.parcel import Parcel

ALL = 0
"""The target of a message for all nodes; no node has this identifier."""


BUILT_IN = ("version", "uptime", "members")
"""Questions that every node answers by itself; no application can register them."""


class MemberState(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    """Not heard for T, or its connection broke; still a member."""
    LEFT = "left"


class MemberView(Frozen, frozen=True):
    """One entry of the membership list, as this node sees it."""

    identifier: int
    uri: str
    key: bytes
    """Ed25519 public key."""
    incarnation: int
    state: MemberState
    graceful: bool = False
    """True if the member announced its own leave."""
    heard_ns: int | None = None
    """When this node last knew it to be alive, on gossip's own monotonic clock; None if it is not watched."""
    version: tuple[int, int] = (0, 0)
    failed: bool = False
    """True if it has left because it was silent: it neither announced its leave nor was removed from the cluster."""


class EventId(Frozen, frozen=True, order=True):
    """Identifies a message for ever: its origin, the run of the origin, and a counter within the run."""

    origin: int
    epoch: int
    counter: int


class FiredEvent(Frozen, frozen=True):
    """An application's event."""

    id: EventId
    type: str
    content: bytes
    target: int = ALL


class QueryAnswer(Frozen, frozen=True):
    """The outcome of a question."""

    question: str
    value: bytes | None
    """The answer of at least half of the members; None if undecided."""
    votes: int
    """The number of members that gave `value`; if undecided, the highest number of votes of any answer."""
    members: int
    """The number of members at the decision."""
    decided: bool
    voters: tuple[int, ...]
    """Members that gave any answer."""
    missing: tuple[int, ...]
    """Members that gave no answer."""
    declined: tuple[int, ...] = ()
    """Members that do not know the question."""
    tally: tuple[tuple[bytes, int], ...] = ()
    """Each answer and its votes, most first."""
    reason: str = ""
    """Undecided: `tie`, `split`, `unknown`, `timeout`, or `refused` (too many open questions)."""


class KeyStep(StrEnum):
    INSTALL = "install"
    USE = "use"
    REMOVE = "remove"


# Inputs from the mesh. `Entered` and `Exited` are the mesh's own effects; `Expel` is an input of the mesh, too.


class GossipParcel(Frozen, frozen=True):
    """A parcel of the gossip layer arrived from this peer."""

    peer: Peer
    parcel: Parcel


class HeardFrom(Frozen, frozen=True):
    """Any command arrived from this node on its own session; sent at most once a second for each node."""

    identifier: int


# Inputs from above.


class JoinThrough(Frozen, frozen=True):
    """Become a member through the node at this URI, which becomes a seed. Repeats until a member acknowledges."""

    uri: str


class MembersConfigured(Frozen, frozen=True):
    """The nodes that belong to the cluster now, present or not. Their URIs are seeds; the `gone` ones no longer are."""

    nodes: Mapping[int, str]
    """Their URIs by identifier."""
    gone: tuple[str, ...]
    """URIs of nodes that were removed from the cluster, unless a node of the cluster is there now."""


class LeaveCluster(Frozen, frozen=True):
    """Say good-bye. The core continues to run without peers; `JoinThrough` joins again."""


class Fire(Frozen, frozen=True):
    """Send an application's event to all nodes, including this one, or to one node."""

    type: str
    content: bytes
    target: int = ALL
    call: int | None = None
    """If set, every node that sees the event acknowledges it, and the call ends in `Acknowledged`."""
    timeout_ns: int = 0
    """How long to wait for acknowledgements."""


class AskQuery(Frozen, frozen=True):
    """Ask the cluster a question; ends in `QueryDecided`."""

    call: int
    question: str
    timeout_ns: int
    content: bytes = b""


class RegisterQuestion(Frozen, frozen=True):
    """From now on a `Questioned` is emitted when a node asks this. Built-in questions cannot be registered."""

    question: str


class UnregisterQuestion(Frozen, frozen=True):
    """No application of this node answers this question any more. Nodes that wait for an answer are informed at
    once.
    """

    question: str


class GiveAnswer(Frozen, frozen=True):
    """The application's answer to a `Questioned`. It may answer again: the newest counts while the question is open."""

    query: EventId
    value: bytes


class RotateKey(Frozen, frozen=True):
    """Install a new cluster key on every member, use it, and retire the old one; ends in `Rotated`.

    After a failure it may be requested again, at any node: completed steps are confirmed, not repeated.
    """

    call: int
    key: bytes
    key_id: bytes
    retire_key_id: bytes
    """The key to retire; empty if no key is to be retired."""
    timeout_ns: int
    required: tuple[int, ...] = ()
    """Further members that must confirm, present or not: the configured ones."""


class KeyConfirmed(Frozen, frozen=True):
    """The change that `InstallKey`, `UseKey` or `RemoveKey` requested is done here, and survives a restart."""

    step: KeyStep
    key_id: bytes


GossipInput: TypeAlias = (
    Woken
    | Stopping
    | Entered
    | Exited
    | Expel
    | GossipParcel
    | HeardFrom
    | JoinThrough
    | MembersConfigured
    | LeaveCluster
    | Fire
    | AskQuery
    | RegisterQuestion
    | UnregisterQuestion
    | GiveAnswer
    | RotateKey
    | KeyConfirmed
)


# Effects for those above.


class MemberChanged(Frozen, frozen=True):
    """The list changed. `old` is None for a new member; equal states mean a newer incarnation or URI."""

    member: MemberView
    old: MemberState | None


class EventSeen(Frozen, frozen=True):
    """An application's event reached this node. Emitted once for each event."""

    event: FiredEvent


class Questioned(Frozen, frozen=True):
    """A node asks a registered question; the application answers with `GiveAnswer`."""

    query: EventId
    question: str
    content: bytes
    asker: int


class QueryDecided(Frozen, frozen=True):
    call: int
    answer: QueryAnswer


class Acknowledged(Frozen, frozen=True):
    """The nodes that have seen an event of ours, and the expected ones that have not acknowledged."""

    call: int
    seen_by: tuple[int, ...]
    missing: tuple[int, ...]
    fired: bool = True
    """False if the event was not fired, because too many events already wait for acknowledgements."""


class Rotated(Frozen, frozen=True):
    """The rotation is done, or stopped at a step that the `missing` members have not confirmed."""

    call: int
    done: bool
    step: KeyStep
    missing: tuple[int, ...]
    reason: str = ""


GossipEffect: TypeAlias = (
    Whisper
    | Meet
    | Forget
    | InstallKey
    | UseKey
    | RemoveKey
    | Report
    | MemberChanged
    | EventSeen
    | Questioned
    | QueryDecided
    | Acknowledged
    | Rotated
)
