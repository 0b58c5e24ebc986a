"""What passes between gossip and its neighbours: the mesh below, the layers and applications above.

Calls carry a number chosen by the caller, and exactly one effect with that number ends each of them.
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
"""The target of a message for everybody; no node has this identifier."""


BUILT_IN = ("version", "uptime", "members")
"""Questions that every node answers by itself; no application can take them over."""


class MemberState(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    """Not heard for T, or its connection broke; still a member."""
    LEFT = "left"


class MemberView(Frozen, frozen=True):
    """One line of the membership list, as this node sees it."""

    identifier: int
    uri: str
    key: bytes
    """Ed25519 public key."""
    incarnation: int
    state: MemberState
    graceful: bool = False
    """It left by its own word."""
    heard_ns: int | None = None
    """When this node last knew it to be there, on gossip's own clock, which never goes back; None: not watched."""
    version: tuple[int, int] = (0, 0)


class EventId(Frozen, frozen=True, order=True):
    """Names a message for ever: who sent it, in which run, and the how-manieth it was."""

    origin: int
    epoch: int
    counter: int


class FiredEvent(Frozen, frozen=True):
    """An application's event, as it was fired."""

    id: EventId
    type: str
    content: bytes
    target: int = ALL


class QueryAnswer(Frozen, frozen=True):
    """What became of a question."""

    question: str
    value: bytes | None
    """The answer given by half or more; None if undecided."""
    votes: int
    """How many members gave it; undecided: the most that any answer got."""
    members: int
    """How many were members when it was decided."""
    decided: bool
    voters: tuple[int, ...]
    """Members that gave an answer, whichever."""
    missing: tuple[int, ...]
    """Members that gave none."""
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


# Inputs from the mesh. `Entered` and `Exited` come as the mesh made them; `Expel` is for the mesh and for us.


class GossipParcel(Frozen, frozen=True):
    """A parcel of the gossip layer came from this peer."""

    peer: Peer
    parcel: Parcel


class HeardFrom(Frozen, frozen=True):
    """Anything at all came from this node over a session of its own; said at most once a second per node."""

    identifier: int


# Inputs from above.


class JoinThrough(Frozen, frozen=True):
    """Become a member through the node at this URI, a door from now on; repeat until someone acknowledges."""

    uri: str


class Assembled(Frozen, frozen=True):
    """Which nodes belong to the cluster now, present or not: where they are is a door, where others were no longer."""

    nodes: Mapping[int, str]
    """Their URIs by identifier."""
    gone: tuple[str, ...]
    """Where nodes were that were removed from the cluster, and none is that belongs to it."""


class LeaveCluster(Frozen, frozen=True):
    """Say good-bye. The core goes on to run, alone; `JoinThrough` brings it back."""


class Fire(Frozen, frozen=True):
    """Send an application's event to everybody, ourselves included, or to one node."""

    type: str
    content: bytes
    target: int = ALL
    call: int | None = None
    """Whoever sees it is to acknowledge it, and the call ends in `Acknowledged`."""
    timeout_ns: int = 0
    """How long to wait for that."""


class AskQuery(Frozen, frozen=True):
    """Put a question to the cluster; ends in `QueryDecided`."""

    call: int
    question: str
    timeout_ns: int
    content: bytes = b""


class RegisterQuestion(Frozen, frozen=True):
    """From now on `Questioned` is said when someone asks this; a built-in question cannot be taken over."""

    question: str


class UnregisterQuestion(Frozen, frozen=True):
    """Nobody here answers this any more. Whoever waits for such an answer is told so at once."""

    question: str


class GiveAnswer(Frozen, frozen=True):
    """The application's answer to a `Questioned`. May be given again: the newest counts while the question is open."""

    query: EventId
    value: bytes


class RotateKey(Frozen, frozen=True):
    """Bring a new cluster key to every member, use it, and retire the old one; ends in `Rotated`.

    May be asked again, here or at another node, after a failure: steps already taken are confirmed, not repeated.
    """

    call: int
    key: bytes
    key_id: bytes
    retire_key_id: bytes
    """Empty: retire nothing."""
    timeout_ns: int
    required: tuple[int, ...] = ()
    """Further members that must confirm, present or not: the configured ones."""


class KeyConfirmed(Frozen, frozen=True):
    """The step asked for by `InstallKey`, `UseKey` or `RemoveKey` has been taken here, and outlives a restart."""

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
    | Assembled
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
    """The list changed. `old` is None for a member that was not on it; equal states mean a newer incarnation or URI."""

    member: MemberView
    old: MemberState | None


class EventSeen(Frozen, frozen=True):
    """An application's event reached this node. Said once for each event."""

    event: FiredEvent


class Questioned(Frozen, frozen=True):
    """Someone asks what an application registered for; answer with `GiveAnswer`."""

    query: EventId
    question: str
    content: bytes
    asker: int


class QueryDecided(Frozen, frozen=True):
    call: int
    answer: QueryAnswer


class Acknowledged(Frozen, frozen=True):
    """Which nodes have seen an event of ours, and which of those it was for have not said so."""

    call: int
    seen_by: tuple[int, ...]
    missing: tuple[int, ...]
    fired: bool = True
    """False: too many are waited for already, so it was not fired."""


class Rotated(Frozen, frozen=True):
    """The rotation is done, or stuck at a step that `missing` have not confirmed."""

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
