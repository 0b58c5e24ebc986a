"""A cluster message as consensus stores and executes it, and the interface of the state machine that executes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from chaplain.core import Frozen
from chaplain.journal.messages.cluster import Body, DataEntry, Reference
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.segment.record import Record
from chaplain.segment.verdicts import AppliedBatch


class AgreedEntry(Frozen, frozen=True):
    """One agreed message, as the state machine applies it."""

    body: Body
    hash: bytes
    """Hash of the cluster chain up to and including this message."""
    payloads: tuple[bytes, ...]


class Decision(Frozen, frozen=True):
    """The decisions of execution about an agreed message: the content of its VERDICT record."""

    verdict: bytes
    batches: tuple[AppliedBatch, ...]
    """The applied part of each BATCH record of the message, by its number in `storage.record_layout`."""


class Execution(Protocol):
    """The replicated state machine: a pure function of the agreed prefix.

    Consensus applies messages in order, each once, and only after it was agreed. While the node waits for other nodes,
    consensus may have a message prepared that is on disk but not agreed yet.
    """

    @property
    def applied_index(self) -> int:
        """Index of the last applied message; at start, the last message that the snapshot covers."""
        ...

    @property
    def cluster_config(self) -> ClusterConfig:
        """The cluster configuration after the last applied message."""
        ...

    @property
    def copies(self) -> int:
        """Where serializers are index-only, the number of nodes that store a payload before it is
        ordered; otherwise 0.
        """
        ...

    def cached_payload(self, reference: Reference, digest: bytes, /) -> bytes | None:
        """A payload of the last applied message, or of any message that was stored or read back after it."""
        ...

    def cache_stored(self, body: Body, payloads: Sequence[bytes], verdict: bytes = b"", /) -> None:
        """The log contains this message, which is not applied yet: keep its payloads until another message is applied.
        After a restart the caller passes the verdict that this node itself stored with the message, if there is one:
        signatures that were checked for it need no second check.
        """
        ...

    def prepare(self, message: AgreedEntry, /) -> None:
        """Compute the effects of the next message in advance, so that `apply` is short. Changes nothing that others
        see, because another message may be applied in its place.
        """
        ...

    def apply(self, message: AgreedEntry, /) -> Decision:
        """Apply an agreed message. Return the decisions, which the caller stores in the log."""
        ...

    def observe_stored(self, records: Sequence[Record], /) -> None:
        """At start: report the records of an agreed message that the snapshot covers and the log still contains, joined
        with its verdict (`segment.verdicts`).
        """
        ...

    @property
    def verdict_hash(self) -> bytes:
        """Hash of the verdict on the last applied message; see `verdict_chain`."""
        ...

    def decision_of(self, body: Body, payloads: Sequence[bytes], verdict: bytes, expected: bytes, /) -> Decision:
        """The decision about an old agreed message, from the verdict that another node sent. Raises `Malformed` if the
        verdict does not have the expected hash, or does not match these payloads.
        """
        ...


class LogEntry(Frozen, frozen=True):
    """One cluster message in memory: the body, which is the same on all nodes, and the ballot under which this node
    stores it.
    """

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
    def lacks_payloads(self) -> bool:
        """True if the body refers to payloads and they are not in memory."""
        return not self.payloads and bool(self.body.data_entries)

    @property
    def size_bytes(self) -> int:
        return len(self.raw) + sum(map(len, self.payloads))
