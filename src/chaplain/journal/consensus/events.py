"""What passes between the serializer and the rest of the journal, and the execution it asks for verdicts.

Payloads are opaque here: bytes found by reference and pinned by a digest. Peers are node ids; who they are, and that
nobody speaks for another, is the business of the layers below.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol, TypeAlias

from chaplain.core import Drained, Frozen, Halt, Persist, Persisted, PersistFailed, Report, Stopping, Woken
from chaplain.journal.messages.cluster import Body, DataEntry, Reference
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.segment.record import Record


class AgreedEntry(Frozen, frozen=True):
    """One agreed message as execution sees it."""

    body: Body
    hash: bytes
    """The cluster chain up to and with this message."""
    payloads: tuple[bytes, ...]


class Preview(Frozen, frozen=True):
    """What execution will make of a message, to be stored with it."""

    verdict: bytes
    parts: tuple[Record, ...]
    """How the payloads lie on disk for readers: kind, body, stream, first offset, count, origin. The log fills in the
    rest."""


class Execution(Protocol):
    """A pure function of the agreed prefix. Called in order: `preview(i)` only after `settle(i - 1)`."""

    @property
    def settled(self) -> int:
        """The last index whose message was settled; at start, what a snapshot covers."""
        ...

    @property
    def assembly(self) -> ClusterConfig:
        """The nodes of the cluster after the last message that was settled."""
        ...

    @property
    def copies(self) -> int:
        """How many nodes hold a payload before it is ordered, where serializers are index-only; else 0."""
        ...

    def held(self, reference: Reference, digest: bytes, /) -> bytes | None:
        """A payload of a message behind the agreed prefix, or of its last: whatever was ever held there."""
        ...

    def preview(self, body: Body, payloads: Sequence[bytes], digest: bytes = b"", /) -> Preview:
        """What the message will do if it is agreed. Changes nothing; may be called again with another body. Whoever has
        the hash of the body gives it.
        """
        ...

    def settle(self, message: AgreedEntry, /) -> None:
        """The message is agreed: apply it."""
        ...

    def look_back(self, records: Sequence[Record], /) -> None:
        """At start: these records of an agreed message are in the log, though a snapshot covers it."""
        ...

    @property
    def verdict_hash(self) -> bytes:
        """Hash of the verdict on the last message that was settled, see `verdict_chain`."""
        ...

    def refile(self, body: Body, payloads: Sequence[bytes], verdict: bytes, expected: bytes, /) -> Preview:
        """What `preview` made of an agreed message at its time, given the verdict that it gave. Raises `Malformed` if
        the verdict does not have the expected hash, or is no verdict on these payloads.
        """
        ...

    def payloads(self, body: Body, parts: Sequence[Record], /) -> tuple[bytes, ...]:
        """The payloads again, from the parts that `preview` made of them."""
        ...


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


class LogEntry(Frozen, frozen=True):
    """One cluster message in hand: what everybody agrees on, and the regime under which we hold it."""

    body: Body
    raw: bytes
    hash: bytes
    ballot: int
    payloads: tuple[bytes, ...]

    @property
    def index(self) -> int:
        return self.body.index

    @property
    def entries(self) -> tuple[DataEntry, ...]:
        return self.body.data_entries

    @property
    def bare(self) -> bool:
        """Its payloads are not here."""
        return not self.payloads and bool(self.body.data_entries)

    @property
    def size_bytes(self) -> int:
        return len(self.raw) + sum(map(len, self.payloads))


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
