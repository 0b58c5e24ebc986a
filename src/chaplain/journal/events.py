"""What passes between the journal and its node, and between ingest and the rest of the journal.

The node passes in sessions (`Entered`, `Exited`), parcels (`JournalParcel`) and results of host operations; the journal
answers with whispers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from chaplain.core import Drained, Frozen, Halt, Persist, Persisted, PersistFailed, Report, Stopping, Woken
from chaplain.gossip.events import Assembled
from chaplain.journal.consensus.events import (
    ConsensusStarted,
    LogRead,
    NeedPayload,
    PayloadArrived,
    PeerDown,
    PeerUp,
    ReadLog,
    RoleChanged,
    SpaceTold,
)
from chaplain.journal.messages.client import NodeMessage
from chaplain.journal.messages.cluster import Reference
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.peer import PeerMessage
from chaplain.journal.messages.signing import ConfigCheck, PackCheck
from chaplain.journal.model.results import AppliedMessage
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited, Expel, Whisper
from chaplain.wire.parcel import Parcel


class JournalParcel(Frozen, frozen=True):
    """A parcel of the journal's layer came from this node or client."""

    peer: Peer
    parcel: Parcel


class Verify(Frozen, frozen=True):
    """Compute `signing.holds` of each item, anywhere, and answer with `Verified`. Answers may come in any order."""

    ticket: int
    items: tuple[PackCheck | ConfigCheck, ...]


class Verified(Frozen, frozen=True):
    ticket: int
    results: tuple[bool, ...]


class Rehearse(Frozen, frozen=True):
    """Find out whether this request, which is on nobody's way yet, would fail. Answered with `Rehearsed`."""

    ticket: int
    stream: str
    raw: bytes


class Rehearsed(Frozen, frozen=True):
    """`kind` and `reason` say why it would fail; both empty: it would not, or that cannot be told."""

    ticket: int
    kind: str = ""
    reason: str = ""


class Admitted(Frozen, frozen=True):
    """The clients that may connect from now on: their names by public key."""

    clients: Mapping[bytes, str]


JournalInput: TypeAlias = (
    ConsensusStarted
    | Woken
    | Drained
    | Persisted
    | PersistFailed
    | Stopping
    | Entered
    | Exited
    | JournalParcel
    | Verified
    | Rehearsed
    | LogRead
    | SpaceTold
)
JournalEffect: TypeAlias = (
    Whisper | Assembled | Expel | Persist | Verify | Rehearse | ReadLog | Admitted | RoleChanged | Report | Halt
)


# Between ingest and the core around it.


class SessionOpened(Frozen, frozen=True):
    """A client may write from now on."""

    instance: bytes


class SessionClosed(Frozen, frozen=True):
    instance: bytes


class PackWritten(Frozen, frozen=True):
    """A client whose identity has this ACL id sent a request, hostile until checked."""

    instance: bytes
    acl: bytes
    stream: str
    raw: bytes
    check: bool = False
    """As in `Write`."""


class PayloadCame(Frozen, frozen=True):
    """An ingest message came from a peer."""

    node: int
    payload: bytes


class PayloadWanted(Frozen, frozen=True):
    """A peer lacks an ingest message. An empty digest asks for whatever has the reference."""

    node: int
    reference: Reference
    digest: bytes


class AckCame(Frozen, frozen=True):
    """How far a peer has received the journals of all ingest nodes."""

    node: int
    reached: tuple[Reference, ...]


class IngestDropped(Frozen, frozen=True):
    """We are no ingest node: what waits here will never be ordered as ours."""


class Ordered(Frozen, frozen=True):
    """A cluster message with these references was executed."""

    references: tuple[Reference, ...]
    executed: AppliedMessage


class PacksPromoted(Frozen, frozen=True):
    """Packs that were committed: to be ordered again, verbatim, in this order."""

    entries: tuple[IngestEntry, ...]


IngestInput: TypeAlias = (
    ConsensusStarted
    | Woken
    | Drained
    | Persisted
    | Stopping
    | PeerUp
    | PeerDown
    | SessionOpened
    | SessionClosed
    | PackWritten
    | PacksPromoted
    | PayloadCame
    | PayloadWanted
    | AckCame
    | Ordered
    | IngestDropped
    | Verified
    | Rehearsed
    | NeedPayload
    | SpaceTold
)


class ToPeer(Frozen, frozen=True):
    node: int
    message: PeerMessage


class ToClient(Frozen, frozen=True):
    instance: bytes
    message: NodeMessage
    payload: bytes = b""


IngestEffect: TypeAlias = Verify | Rehearse | Persist | PayloadArrived | ToPeer | ToClient | Report


Locate: TypeAlias = Callable[[int, int], tuple[int, int] | None]
"""Positions of the log that hold messages from an index on, in about so many octets; None if they are not on disk."""
