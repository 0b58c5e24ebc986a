"""Records that make up the execution state: immutable values in the form in which `export` encodes them.

Decides nothing. `execution.state` contains the state itself, `execution.staged_packs` the staged and committed packs.
"""

from __future__ import annotations

from enum import IntEnum

from chaplain.core import Frozen
from chaplain.journal.model import epochs, log_tree
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.model.conditions import ConditionsRecord
from chaplain.journal.model.consumers import ConsumersRecord
from chaplain.journal.model.reason import Reason
from chaplain.journal.model.verdict_chain import NO_VERDICT

PackKey = tuple[int, int]
"""A lane and the first request id of a pack: a permanent name of the pack."""


class LogPosition(Frozen, frozen=True, array_like=True):
    """The cluster message that decided something."""

    index: int
    regime: int
    timestamp_ns: int
    hash: bytes
    """Hash of the cluster chain up to and including the message."""


class AppliedRequest(Frozen, frozen=True, array_like=True):
    """An applied pack: enough to repeat its receipt, to recognize a copy of it, and to find it in the log."""

    first_id: int
    requests: int
    digest: bytes
    """Names the request; see `messages.write_request.request_digest`."""
    stream: str
    base_offset: int
    messages: int
    position: LogPosition
    entry: int
    """Number of the entry in the cluster message."""
    pack: int
    """Number of the pack in the entry's ingest message."""
    refusal: Reason = Reason.APPLIED
    """Why nothing was written although the ids are used up: one of `reason.CONDITIONAL`. Then `messages` is 0, and
    `base_offset` is the offset that violated a condition.
    """

    @property
    def last_id(self) -> int:
        return self.first_id + self.requests - 1


class LaneState(Frozen, frozen=True, array_like=True):
    """A lane and the last requests that were applied on it."""

    client_id: int
    acl: bytes
    nonce: bytes
    """Nonce of the lease; empty after the lane was retired."""
    active_ns: int
    """Cluster time of the lease, or of the last pack that was applied."""
    last_id: int = 0
    fenced: bool = False
    recent: tuple[AppliedRequest, ...] = ()


class IdentityStatus(IntEnum):
    ACTIVE = 1
    REMOVED = 2
    COMPROMISED = 3


class ClientIdentity(Frozen, frozen=True, array_like=True):
    """An identity that may write or read. Lanes are leased to it."""

    acl: bytes
    name: str
    key: bytes
    signature_type: int
    secret: bytes
    """The wrapped HMAC secret; empty unless the identity signs with HMAC."""
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    admin: bool
    nonce: bytes
    status: int = IdentityStatus.ACTIVE


class StreamHead(Frozen, frozen=True, array_like=True):
    """The next offset of a stream, and the hash of its chain so far."""

    next_offset: int
    chain: bytes


class RequestPosition(Frozen, frozen=True, array_like=True):
    """Position of a request in the log: cluster message, entry, and pack within the entry."""

    index: int
    entry: int
    pack: int
    stream: str
    digest: bytes


class EquivocationEvidence(Frozen, frozen=True, array_like=True):
    """Two different requests for one id, both with valid signatures."""

    client_id: int
    acl: bytes
    first: RequestPosition
    second: RequestPosition


class RetainedFacts(Frozen, frozen=True, array_like=True):
    """The part of the state that describes messages which may no longer be in the log."""

    weight_bytes: int = 0
    """Octets of ingest messages since the last checkpoint."""
    released: int = 0
    """An admin allowed nodes to drop the log up to this message."""
    databases: tuple[tuple[str, int], ...] = ()
    """Streams with statements, in the order of their first statement, each with the last message that had any."""
    verdict: bytes = NO_VERDICT
    """Hash of the verdict on the last message; see `verdict_chain`."""


class Staged(Frozen, frozen=True, array_like=True):
    """A pack that was staged: enough to find it in the log and to recognize a copy of it."""

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
    def key(self) -> PackKey:
        return self.client_id, self.first_id

    @property
    def last_id(self) -> int:
        return self.first_id + self.requests - 1


class Transaction(Frozen, frozen=True, array_like=True):
    """The last version that a writer of batches has committed."""

    acl: bytes
    app: str
    version: int
    ticket: int
    """All packs of the version have their offsets once the number of replayed packs reaches this value."""
    timestamp_ns: int


class StagedPacksRecord(Frozen, frozen=True, array_like=True):
    """The serialized form of `StagedPacks`."""

    staged: tuple[Staged, ...] = ()
    committed: tuple[Staged, ...] = ()
    """Committed packs that have no offsets yet, in the order in which they get them."""
    transactions: tuple[Transaction, ...] = ()
    replayed: int = 0
    """Number of committed packs that were ordered a second time and have their offsets."""


class StateRecord(Frozen, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The serialized execution state."""

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
    past: RetainedFacts
    epochs: epochs.EpochsRecord
    tree: log_tree.LogTreeRecord
    consumers: ConsumersRecord
    conditions: ConditionsRecord
