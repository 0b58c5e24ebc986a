"""Results of execution: the decision on each entry of a message. `storage.verdict` and `storage.record_layout` encode
them.
"""

from __future__ import annotations

from typing import TypeAlias

from chaplain.core import Frozen
from chaplain.journal.messages.cluster import Reference
from chaplain.journal.messages.config import NO_ACL
from chaplain.journal.messages.ingest import IngestMessage
from chaplain.journal.model.reason import Reason
from chaplain.journal.model.records import AppliedRequest, LogPosition
from chaplain.journal.model.verdict_chain import NO_VERDICT
from chaplain.segment.layout import NO_OFFSET
from chaplain.segment.record import Record


class PackVerdict(Frozen, frozen=True):
    """The decision on one pack."""

    client_id: int
    first_id: int
    requests: int
    messages: int
    stream: str
    reason: Reason
    base_offset: int = NO_OFFSET
    """Offset of the first message if the pack was applied; the ticket if it is a commit."""
    original: AppliedRequest | None = None
    """DUPLICATE: the request that was applied earlier. Not on disk."""
    expected_id: int = 0
    """The next request id of the lane. Not on disk."""


class DataVerdict(Frozen, frozen=True):
    """The decisions on one data entry. A malformed ingest message has no packs."""

    packs: tuple[PackVerdict, ...]
    malformed: bool = False


class ConfigVerdict(Frozen, frozen=True):
    """The decision on one config entry."""

    entry_type: int
    reason: Reason
    client_id: int = 0
    """The lane that was leased, released or fenced."""
    acl: bytes = NO_ACL
    """The identity that was added or removed, or that owns the lane."""
    last_id: int = 0
    """The last request that was applied on the lane."""
    request_digest: bytes = b""
    """SHA-256 of the entry's data, by which the node that submitted the request recognizes it. Not on disk."""


EntryVerdict: TypeAlias = DataVerdict | ConfigVerdict


class StreamVerdict(Frozen, frozen=True):
    """The offsets that the message wrote to one stream, and the hash of the stream's chain after them."""

    stream: str
    first_offset: int
    count: int
    chain: bytes


class ExecutionVerdict(Frozen, frozen=True):
    """The decisions on one message."""

    entries: tuple[EntryVerdict, ...]
    streams: tuple[StreamVerdict, ...]
    previous: bytes = NO_VERDICT
    """Hash of the verdict on the previous message; see `verdict_chain`."""


class AppliedMessage(Frozen, frozen=True):
    """One applied message, for the parts of the journal that answer clients and readers."""

    position: LogPosition
    verdict: ExecutionVerdict
    batches: tuple[Record, ...]
    """The records that it wrote: one for each ingest message and stream."""
    clients_changed: bool
    nodes_changed: bool = False
    checkpoint: bool = False
    """True if every node makes a checkpoint after this message."""


class ExecutedIngest(Frozen, frozen=True):
    """One ingest message and the decision on it; `message` is None if it cannot be decoded."""

    reference: Reference
    payload: bytes
    message: IngestMessage | None
    verdict: DataVerdict
