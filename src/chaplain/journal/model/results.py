"""What execution decided about each entry of a message. How it is written down is in `verdict` and `filing`."""

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
    client_id: int
    first_id: int
    requests: int
    messages: int
    stream: str
    reason: Reason
    base_offset: int = NO_OFFSET
    """Of the first message, if it was applied; of a commit, its ticket."""
    original: AppliedRequest | None = None
    """DUPLICATE: what was applied before. Not on disk."""
    expected_id: int = 0
    """The id that the lane waits for. Not on disk."""


class DataVerdict(Frozen, frozen=True):
    """One data entry. An ingest message that is malformed has no packs."""

    packs: tuple[PackVerdict, ...]
    malformed: bool = False


class ConfigVerdict(Frozen, frozen=True):
    entry_type: int
    reason: Reason
    client_id: int = 0
    """The lane that was leased, released or fenced."""
    acl: bytes = NO_ACL
    """The identity that was added or removed, or whose lane it is."""
    last_id: int = 0
    """The last request that was applied on the lane."""
    request_digest: bytes = b""
    """SHA-256 of the entry's data, by which who asked knows it again. Not on disk."""


EntryVerdict: TypeAlias = DataVerdict | ConfigVerdict


class StreamVerdict(Frozen, frozen=True):
    """What the message wrote to one stream, and the stream's chain after it."""

    stream: str
    first_offset: int
    count: int
    chain: bytes


class ExecutionVerdict(Frozen, frozen=True):
    entries: tuple[EntryVerdict, ...]
    streams: tuple[StreamVerdict, ...]
    previous: bytes = NO_VERDICT
    """Hash of the verdict on the message before, see `verdict_chain`."""


class AppliedMessage(Frozen, frozen=True):
    """One agreed message, carried out: for those who answer clients and readers."""

    position: LogPosition
    verdict: ExecutionVerdict
    batches: tuple[Record, ...]
    """What it wrote, one record for each ingest message and stream."""
    clients_changed: bool
    nodes_changed: bool = False
    checkpoint: bool = False
    """The state behind it is to be written down."""


class ExecutedIngest(Frozen, frozen=True):
    """One ingest message and what was decided about it; `message` is None if it is malformed."""

    reference: Reference
    payload: bytes
    message: IngestMessage | None
    verdict: DataVerdict


class DecodedIngest(Frozen, frozen=True):
    payload: bytes
    reasons: tuple[Reason, ...]
