"""What passes between the serializer and the rest of the journal, and the execution it asks for verdicts.

Payloads are opaque here: bytes found by reference and pinned by a digest. Peers are node ids; who they are, and that
nobody speaks for another, is the business of the layers below.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from chaplain.core import Drained, Frozen, Halt, Persist, Persisted, PersistFailed, Report, Stopping, Woken
from chaplain.journal.messages.cluster import Body, Reference
from chaplain.segment.record import Record

# Inputs.


class ConsensusStarted(Frozen, frozen=True):
    """The first input of a run."""


class PeerUp(Frozen, frozen=True):
    node: int


class PeerDown(Frozen, frozen=True):
    """The connection is closed: news, not silence."""

    node: int


class Received(Frozen, frozen=True):
    """A message of a serializer, hostile until decoded."""

    node: int
    message: bytes


class PayloadArrived(Frozen, frozen=True):
    """The digest has been computed from the payload by whoever received it."""

    reference: Reference
    digest: bytes
    payload: bytes


class ConfigOffered(Frozen, frozen=True):
    """Order this configuration entry if we are master; otherwise it is refused with a report."""

    entry_type: int
    stage: int
    data: bytes


class IngestDrained(Frozen, frozen=True):
    """A blocked ingest node says that nothing of it waits to be ordered."""

    node: int


class LogRead(Frozen, frozen=True):
    """The records that `ReadLog` asked for, as far as they are whole."""

    token: int
    records: tuple[Record, ...]


class RecordDamaged(Frozen, frozen=True):
    """The records of this agreed message could not be read back from the log."""

    index: int


class SpaceTold(Frozen, frozen=True):
    """How much room the disk has."""

    free_bytes: int


OrderInput: TypeAlias = (
    ConsensusStarted
    | Woken
    | Drained
    | Persisted
    | PersistFailed
    | Stopping
    | PeerUp
    | PeerDown
    | Received
    | PayloadArrived
    | ConfigOffered
    | IngestDrained
    | LogRead
    | RecordDamaged
    | SpaceTold
)


# Effects.


class Tell(Frozen, frozen=True):
    node: int
    message: bytes


class Resumed(Frozen, frozen=True):
    """The agreed prefix that was found on disk has been settled up to here; `Agreed` goes on from the next index."""

    index: int
    hash: bytes


class Agreed(Frozen, frozen=True):
    """The message is agreed, and execution has settled it. In order, each index once in a run."""

    body: Body
    ballot: int
    hash: bytes
    payloads: tuple[bytes, ...]


class NeedPayload(Frozen, frozen=True):
    """A payload is missing: get it from its ingest node, or from `master`. The digest is empty if nobody has told
    us.
    """

    reference: Reference
    digest: bytes
    master: int


class Role(StrEnum):
    OUT = "out"
    """Has no vote: in doubt, wiped, failed or leaving."""
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    MASTER = "master"


class RoleChanged(Frozen, frozen=True):
    role: Role
    regime: int
    master: int
    """0 if nobody is known to be."""


class ReadLog(Frozen, frozen=True):
    """Read these positions of the log and answer with `LogRead`; `log.records_between` does it, given the files."""

    token: int
    start: int
    end: int


OrderEffect: TypeAlias = Tell | Persist | Resumed | Agreed | NeedPayload | RoleChanged | ReadLog | Report | Halt


# Proofs: what is on disk now, so that a promise may follow.


class Stood(Frozen, frozen=True):
    """Our own vote for ourselves is on disk."""

    regime: int


class ProposalHeld(Frozen, frozen=True):
    """Our own copy of a proposal is on disk."""

    regime: int
    index: int
    hash: bytes


class LogWritten(Frozen, frozen=True):
    """The log is on disk up to this position."""

    position: int
    index: int


class Regained(Frozen, frozen=True):
    """The standing that says we are sound again is on disk."""

    life: int


SyncProof: TypeAlias = Stood | ProposalHeld | LogWritten | Regained
