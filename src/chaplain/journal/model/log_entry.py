"""A cluster message as consensus stores and executes it, and the interface of the state machine that executes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from chaplain.core import Frozen
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
    def applied_index(self) -> int:
        """The last index whose message was settled; at start, what a snapshot covers."""
        ...

    @property
    def cluster_config(self) -> ClusterConfig:
        """The nodes of the cluster after the last message that was settled."""
        ...

    @property
    def copies(self) -> int:
        """How many nodes hold a payload before it is ordered, where serializers are index-only; else 0."""
        ...

    def cached_payload(self, reference: Reference, digest: bytes, /) -> bytes | None:
        """A payload of a message behind the agreed prefix, or of its last: whatever was ever held there."""
        ...

    def preview(self, body: Body, payloads: Sequence[bytes], digest: bytes = b"", /) -> Preview:
        """What the message will do if it is agreed. Changes nothing; may be called again with another body. Whoever has
        the hash of the body gives it.
        """
        ...

    def apply(self, message: AgreedEntry, /) -> None:
        """The message is agreed: apply it."""
        ...

    def observe_stored(self, records: Sequence[Record], /) -> None:
        """At start: these records of an agreed message are in the log, though a snapshot covers it."""
        ...

    @property
    def verdict_hash(self) -> bytes:
        """Hash of the verdict on the last message that was settled, see `verdict_chain`."""
        ...

    def rebuild_records(self, body: Body, payloads: Sequence[bytes], verdict: bytes, expected: bytes, /) -> Preview:
        """What `preview` made of an agreed message at its time, given the verdict that it gave. Raises `Malformed` if
        the verdict does not have the expected hash, or is no verdict on these payloads.
        """
        ...

    def payloads(self, body: Body, parts: Sequence[Record], /) -> tuple[bytes, ...]:
        """The payloads again, from the parts that `preview` made of them."""
        ...


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
    def lacks_payloads(self) -> bool:
        """Its payloads are not here."""
        return not self.payloads and bool(self.body.data_entries)

    @property
    def size_bytes(self) -> int:
        return len(self.raw) + sum(map(len, self.payloads))
