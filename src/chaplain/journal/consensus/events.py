"""Inputs and effects of the serializer, and the events that report a finished sync to its parts.

Payloads are opaque bytes here: a reference names each of them, and a digest identifies its content. Peers are node ids.
The layers below authenticate them, so no peer can speak for another.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from chaplain.core import Drained, Frozen, Halt, Persist, Persisted, PersistFailed, Report, Stopping, Woken
from chaplain.journal.messages.cluster import Body, Reference
from chaplain.segment.record import Record

# Inputs.


class ConsensusStarted(Frozen, frozen=True):
    """The first input after the core was built."""


class PeerUp(Frozen, frozen=True):
    """The node has a session with this peer."""

    node: int


class PeerDown(Frozen, frozen=True):
    """The connection to this peer is closed. That is reported at once, unlike silence."""

    node: int


class PeerLogRange(Frozen, frozen=True):
    """A connected peer reports the first and the last message of its log."""

    node: int
    first: int
    last: int


class Received(Frozen, frozen=True):
    """An encoded message of another serializer. Its contents are not trusted."""

    node: int
    message: bytes


class PayloadArrived(Frozen, frozen=True):
    """A payload is available. The receiving component has computed the digest from the payload."""

    reference: Reference
    digest: bytes
    payload: bytes


class ConfigOffered(Frozen, frozen=True):
    """A configuration entry to order. A node that is not master refuses it with a report."""

    entry_type: int
    stage: int
    data: bytes


class IngestDrained(Frozen, frozen=True):
    """An ingest node that is being removed (stage Block) reports that none of its payloads waits to be ordered."""

    node: int


class LogRead(Frozen, frozen=True):
    """The records that `ReadLog` asked for. Records that cannot be read are left out."""

    token: int
    records: tuple[Record, ...]


class RecordDamaged(Frozen, frozen=True):
    """The records of this agreed message cannot be read from the log."""

    index: int


class DiskSpace(Frozen, frozen=True):
    """The free space of the disk."""

    free_bytes: int


ConsensusInput: TypeAlias = (
    ConsensusStarted
    | Woken
    | Drained
    | Persisted
    | PersistFailed
    | Stopping
    | PeerUp
    | PeerDown
    | PeerLogRange
    | Received
    | PayloadArrived
    | ConfigOffered
    | IngestDrained
    | LogRead
    | RecordDamaged
    | DiskSpace
)


# Effects.


class SendMessage(Frozen, frozen=True):
    """Send an encoded message to a peer."""

    node: int
    message: bytes


class Resumed(Frozen, frozen=True):
    """The messages up to this index were found on disk as agreed, and are executed. `Agreed` continues with the next
    index.
    """

    index: int
    hash: bytes


class Agreed(Frozen, frozen=True):
    """The message is agreed and executed. Indexes come in order, each once in a run."""

    body: Body
    ballot: int
    hash: bytes
    payloads: tuple[bytes, ...]


class Backfilled(Frozen, frozen=True):
    """These messages are on disk and directly precede the former first message of the log. Each is its records."""

    messages: tuple[list[Record], ...]


class NeedPayload(Frozen, frozen=True):
    """A payload is missing: request it from its ingest node, or from `master`. The digest is empty if no proposal has
    named it.
    """

    reference: Reference
    digest: bytes
    master: int


class Role(StrEnum):
    OUT = "out"
    """The node takes no part in elections: it is recovering its vote, has failed, or is stopping."""
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    MASTER = "master"


class RoleChanged(Frozen, frozen=True):
    """The node's role, or the master that it follows, has changed."""

    role: Role
    regime: int
    master: int
    """0 if no master is known."""


class ReadLog(Frozen, frozen=True):
    """Read these positions of the log and answer with `LogRead`."""

    token: int
    start: int
    end: int


ConsensusEffect: TypeAlias = (
    SendMessage | Persist | Resumed | Agreed | Backfilled | NeedPayload | RoleChanged | ReadLog | Report | Halt
)


# Reports of finished syncs, from the persist barrier to the parts.


class OwnVoteSynced(Frozen, frozen=True):
    """A candidate's vote for itself is on disk."""

    regime: int


class OwnProposalSynced(Frozen, frozen=True):
    """The master's own copy of its proposal is on disk."""

    regime: int
    index: int
    hash: bytes


class LogSynced(Frozen, frozen=True):
    """The log is on disk up to this position, and with it all messages up to `index`."""

    position: int
    index: int


class VoteRegained(Frozen, frozen=True):
    """The hard state that declares this node sound is on disk."""

    incarnation: int


SyncProof: TypeAlias = OwnVoteSynced | OwnProposalSynced | LogSynced | VoteRegained
