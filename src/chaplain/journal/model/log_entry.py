"""A cluster message as consensus stores and executes it, and the interface of the state machine that executes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from chaplain.core import Frozen
from chaplain.journal.messages.cluster import Body, DataEntry, Reference
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.segment.record import Record


class AgreedEntry(Frozen, frozen=True):
    """One agreed message, as the state machine applies it."""

    body: Body
    hash: bytes
    """Hash of the cluster chain up to and including this message."""
    payloads: tuple[bytes, ...]


class Preview(Frozen, frozen=True):
    """What execution will decide about a message, to be stored with it in the log."""

    verdict: bytes
    parts: tuple[Record, ...]
    """The payloads as records for readers, with kind, body, stream, first offset, count and origin. The log sets all
    other fields.
    """


class Execution(Protocol):
    """The replicated state machine: a pure function of the agreed prefix.

    Consensus calls it in order: `preview(i)` only after `apply(i - 1)`.
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
        """A payload of the last applied message, or of any message that was previewed or read back after it."""
        ...

    def preview(self, body: Body, payloads: Sequence[bytes], digest: bytes = b"", /) -> Preview:
        """Compute what the message will do if it is agreed. Changes nothing; the caller may preview another body at the
        same index later. A caller that has the hash of the body passes it, to save its computation.
        """
        ...

    def apply(self, message: AgreedEntry, /) -> None:
        """Apply an agreed message."""
        ...

    def observe_stored(self, records: Sequence[Record], /) -> None:
        """At start: report the records of an agreed message that the snapshot covers and the log still contains."""
        ...

    @property
    def verdict_hash(self) -> bytes:
        """Hash of the verdict on the last applied message; see `verdict_chain`."""
        ...

    def rebuild_records(self, body: Body, payloads: Sequence[bytes], verdict: bytes, expected: bytes, /) -> Preview:
        """The preview of an old agreed message, rebuilt from the verdict that another node stored. Raises `Malformed`
        if the verdict does not have the expected hash, or does not match these payloads.
        """
        ...

    def payloads(self, body: Body, parts: Sequence[Record], /) -> tuple[bytes, ...]:
        """The payloads of a message, decoded from the records that `preview` made of them."""
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
