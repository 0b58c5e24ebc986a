"""What the journal's state is made of: values that never change, each in the one form that `export` gives it.

Decides nothing. The state itself is in `state`, what is staged and committed in `holding`.
"""

from __future__ import annotations

from enum import IntEnum

from chaplain.core import Frozen
from chaplain.journal.model import epochs
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.model.verdict_chain import NO_VERDICT

Key = tuple[int, int]
"""A lane and the first id of a pack: what names a pack for ever."""


class LogPosition(Frozen, frozen=True, array_like=True):
    """When something was decided: the cluster message that decided it."""

    index: int
    regime: int
    timestamp_ns: int
    hash: bytes
    """The cluster chain up to and with the message."""


class AppliedRequest(Frozen, frozen=True, array_like=True):
    """A pack that was applied: enough to give its receipt again, to know it again, and to find it in the log."""

    first_id: int
    requests: int
    digest: bytes
    """What names the request: see `request.request_digest`."""
    stream: str
    base_offset: int
    messages: int
    position: LogPosition
    entry: int
    pack: int

    @property
    def last_id(self) -> int:
        return self.first_id + self.requests - 1


class LaneState(Frozen, frozen=True, array_like=True):
    client_id: int
    acl: bytes
    nonce: bytes
    """Of its lease; empty once it was given back."""
    active_ns: int
    """Cluster time of the lease or of the last pack that was applied."""
    last_id: int = 0
    fenced: bool = False
    recent: tuple[AppliedRequest, ...] = ()


class LaneStatus(IntEnum):
    ACTIVE = 1
    REMOVED = 2
    COMPROMISED = 3


class ClientIdentity(Frozen, frozen=True, array_like=True):
    """An identity that may write or read. Lanes are leased under it."""

    acl: bytes
    name: str
    key: bytes
    signature_type: int
    secret: bytes
    """Wrapped; empty unless it signs with HMAC."""
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    admin: bool
    nonce: bytes
    status: int = LaneStatus.ACTIVE


class StreamHead(Frozen, frozen=True, array_like=True):
    """Where a stream goes on."""

    next_offset: int
    chain: bytes


class RequestPosition(Frozen, frozen=True, array_like=True):
    """Where the log has a request: the message, its entry, the pack in it."""

    index: int
    entry: int
    pack: int
    stream: str
    digest: bytes


class EquivocationEvidence(Frozen, frozen=True, array_like=True):
    """Two requests for one id, both validly signed, not the same."""

    client_id: int
    acl: bytes
    first: RequestPosition
    second: RequestPosition


class Past(Frozen, frozen=True, array_like=True):
    """What matters of messages that may be in the log no more."""

    weight_bytes: int = 0
    """Of ingest messages since the last checkpoint."""
    released: int = 0
    """An admin said that up to this message nobody needs the log."""
    databases: tuple[tuple[str, int], ...] = ()
    """Streams with statements, in the order of their first ones: the last message that had any."""
    verdict: bytes = NO_VERDICT
    """Hash of the verdict on the last message, see `verdict_chain`."""


class Staged(Frozen, frozen=True, array_like=True):
    """A pack that was taken and waits: enough to find it in the log, and to know it again."""

    client_id: int
    first_id: int
    requests: int
    messages: int
    stream: str
    digest: bytes
    acl: bytes
    timestamp_ns: int
    index: int
    entry: int
    pack: int

    @property
    def key(self) -> Key:
        return self.client_id, self.first_id

    @property
    def last_id(self) -> int:
        return self.first_id + self.requests - 1


class Transaction(Frozen, frozen=True, array_like=True):
    """How far a writer of batches has come."""

    acl: bytes
    app: str
    version: int
    ticket: int
    """All of it has its offsets once so many packs in all were paid."""
    timestamp_ns: int


class StagedPacksRecord(Frozen, frozen=True, array_like=True):
    """The one form of a `Holding`."""

    staged: tuple[Staged, ...] = ()
    committed: tuple[Staged, ...] = ()
    transactions: tuple[Transaction, ...] = ()
    replayed: int = 0


class Export(Frozen, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    bootstrap: bytes
    position: LogPosition
    next_client: int
    clients: tuple[ClientIdentity, ...]
    lanes: tuple[LaneState, ...]
    streams: tuple[tuple[str, StreamHead], ...]
    proofs: tuple[EquivocationEvidence, ...]
    journals: tuple[tuple[int, int, int], ...]
    cluster_config: ClusterConfig
    staged_packs: StagedPacksRecord
    past: Past
    epochs: epochs.Exported
