"""Inputs and effects of the journal core, and those between ingest and the rest of the journal.

The node passes in sessions (`Entered`, `Exited`), parcels (`JournalParcel`) and the results of host operations. The
journal answers with whispers, which are messages to one session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TypeAlias, final

from chaplain.core import Drained, Frozen, Halt, Persist, Persisted, PersistFailed, Report, Stopping, Woken
from chaplain.costs import Charge
from chaplain.gossip.events import MembersConfigured
from chaplain.journal.consensus.events import (
    ConsensusStarted,
    DiskSpace,
    LogRead,
    NeedPayload,
    PayloadArrived,
    PeerDown,
    PeerUp,
    ReadLog,
    RoleChanged,
)
from chaplain.journal.messages.client import NodeMessage
from chaplain.journal.messages.cluster import Reference
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.peer import Ack, AskPayload, Payload, PeerMessage
from chaplain.journal.messages.signing import ConfigCheck, PackCheck
from chaplain.journal.model.results import AppliedMessage
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited, Expel, Whisper
from chaplain.wire.parcel import Parcel


class Part(IntEnum):
    """The parts of a node's journal that write to disk, read the log or have signatures checked."""

    SERIALIZER = 1
    INGEST = 2
    CHECKPOINTER = 3
    INSTALLER = 4
    LAST_KNOWN_MEMBERS = 5
    CONFIG_REQUESTS = 6
    SUBSCRIPTIONS = 7
    QUERIES = 8
    COMMIT_REPLAY = 9
    TILES = 10
    SIGNER = 11


class JournalParcel(Frozen, frozen=True):
    """A node or client sent a parcel of the journal's layer."""

    peer: Peer
    parcel: Parcel


class Verify(Frozen, frozen=True):
    """Compute `signing.holds` of each item, in any thread. `Verified` answers; answers may come in any order."""

    ticket: int
    items: tuple[PackCheck | ConfigCheck, ...]


class Verified(Frozen, frozen=True):
    """The results of a `Verify`, in the order of its items."""

    ticket: int
    results: tuple[bool, ...]


class DryRun(Frozen, frozen=True):
    """Execute a request that has not been proposed, without effect, to see whether it fails. Answered with
    `DryRunDone`.
    """

    ticket: int
    stream: str
    raw: bytes


class DryRunDone(Frozen, frozen=True):
    """`kind` and `reason` describe the failure. Both are empty if no failure is expected, or if the outcome is not
    known.
    """

    ticket: int
    kind: str = ""
    reason: str = ""


class ReadFile(Frozen, frozen=True):
    """Read a whole file of the data directory, in any thread. Answered with `FileRead`."""

    token: int
    file: str


class FileRead(Frozen, frozen=True):
    """The content of the file; None if it does not exist or cannot be read."""

    token: int
    data: bytes | None


class Admitted(Frozen, frozen=True):
    """The clients that may connect from now on: names by public key."""

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
    | DryRunDone
    | LogRead
    | FileRead
    | DiskSpace
)
JournalEffect: TypeAlias = (
    Whisper
    | MembersConfigured
    | Expel
    | Persist
    | Verify
    | DryRun
    | ReadLog
    | ReadFile
    | Admitted
    | AppliedMessage
    | RoleChanged
    | Charge
    | Report
    | Halt
)


# Inputs and effects of ingest.


class SessionOpened(Frozen, frozen=True):
    """A client has a session and may write."""

    instance: bytes


class SessionClosed(Frozen, frozen=True):
    """A client's session ended."""

    instance: bytes


@final
class PackWritten(Frozen, frozen=True):
    """A client sent a request. `acl` is the ACL id of its identity; the contents are not trusted."""

    instance: bytes
    acl: bytes
    stream: str
    raw: bytes
    check: bool = False
    """As in `Write`: do a dry run first."""


class FromPeer(Frozen, frozen=True):
    """A message of ingest, with the peer that sent it."""

    node: int
    message: Payload | AskPayload | Ack


class IngestRoleDropped(Frozen, frozen=True):
    """The node is no ingest node any more. Its unordered messages will never be ordered."""


class Ordered(Frozen, frozen=True):
    """A cluster message with these references was executed."""

    references: tuple[Reference, ...]
    executed: AppliedMessage


class PacksReplayed(Frozen, frozen=True):
    """Packs of committed two-phase writes: order them again, verbatim and in this order."""

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
    | PacksReplayed
    | FromPeer
    | Ordered
    | IngestRoleDropped
    | Verified
    | DryRunDone
    | NeedPayload
    | DiskSpace
)


class ToPeer(Frozen, frozen=True):
    """Send a message to a peer."""

    node: int
    message: PeerMessage


class ToClient(Frozen, frozen=True):
    """Send a message to a client session."""

    instance: bytes
    message: NodeMessage
    payload: bytes = b""


IngestEffect: TypeAlias = Verify | DryRun | Persist | PayloadArrived | ToPeer | ToClient | Report


Locate: TypeAlias = Callable[[int, int], tuple[int, int] | None]
"""Given an index and a size in bytes: the positions of the log that contain messages from this index on, of about that
size. None if they are not on disk."""
