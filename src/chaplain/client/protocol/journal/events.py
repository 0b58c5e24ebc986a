"""Inputs and effects of the client's journal.

Each command has the number of a call. It ends in exactly one of `WritesAcknowledged`, `Returned` and `Raised`, or is
cancelled. A read emits any number of `ReadChunk`s before it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from chaplain.client.protocol.call_events import Cancelled, Raised, Returned
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.core import Drained, Frozen, Report, Stopping, Woken
from chaplain.journal.messages.client import (
    AskConsumers,
    AskPaid,
    AskProof,
    AskTree,
    ClientMessage,
    ListClients,
    ListNodes,
    ListStreams,
    NodeMessage,
    WrapSecret,
)
from chaplain.journal.messages.config import ConfigMessage


class Batch(Frozen, frozen=True):
    """Requests of one caller to one stream, in order."""

    stream: str
    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[bytes | None] | None = None
    transaction: bool = False
    """True if all messages form one request; otherwise each message is its own request."""
    size_bytes: int = 0
    """Total size of values, keys and headers."""
    message_type: int = 0
    """The type of the values; 0 is data, other types belong to executors."""
    check: bool = False
    """Ask for a dry run before ordering, so that a request that fails is refused at once. Only for one request."""
    isolated: bool = False
    """Make every message a group of its own, so that the proof of one shows no other."""
    conditional: bool = False
    """The headers of the first message contain conditions: the batch is one request, alone in its pack."""

    @property
    def pack_kind(self) -> tuple[str, int, bool, bool]:
        """Only batches of one kind can share a pack."""
        return self.stream, self.message_type, self.isolated, self.conditional

    @property
    def requests(self) -> int:
        """Number of requests."""
        return 1 if self.transaction else len(self.values)


# Commands.


class WriteCommand(Frozen, frozen=True):
    """Write a batch."""

    call: int
    batch: Batch
    timeout_ns: int
    group: int = 0
    """Writes of one group (other than 0) are written in order up to the first refusal, and none after it."""


class ReadCommand(Frozen, frozen=True):
    """Read a stream."""

    call: int
    stream: str
    start: int
    stop: int | None
    follow: bool
    timeout_ns: int
    """How long the read may make no progress while messages are available."""


class TakenCommand(Frozen, frozen=True):
    """The reader has consumed this many bytes of a read."""

    call: int
    size_bytes: int


class ResolveCommand(Frozen, frozen=True):
    """Find out what became of a request.

    Ends in `WritesAcknowledged` if the request is written, in `Returned` if it is not and never will be.
    """

    call: int
    client_id: int
    request: int
    timeout_ns: int


class RetryCommand(Frozen, frozen=True):
    """Write this request, unless the original request or an earlier retry of it is written.

    In that case it ends with the place of that request.
    """

    call: int
    batch: Batch
    client_id: int
    request: int
    timeout_ns: int


class AskCommand(Frozen, frozen=True):
    """Ask a node a question."""

    call: int
    question: ListStreams | ListClients | ListNodes | AskProof | WrapSecret | AskTree | AskPaid | AskConsumers
    """Its call number is filled in when it is sent."""
    timeout_ns: int
    payload: bytes = b""


class ConfigRequestCommand(Frozen, frozen=True):
    """Submit a configuration request."""

    call: int
    message: ConfigMessage
    timeout_ns: int


JournalCommand: TypeAlias = (
    WriteCommand | RetryCommand | ReadCommand | ResolveCommand | AskCommand | ConfigRequestCommand
)


# Sessions.


class SessionUp(Frozen, frozen=True):
    """A session is up."""

    instance: bytes


class SessionDown(Frozen, frozen=True):
    """A session has ended."""

    instance: bytes
    reason: str


class SessionHurt(Frozen, frozen=True):
    """Messages on this session were lost, in either direction."""

    instance: bytes


class NoNodeAccepts(Frozen, frozen=True):
    """Every node refuses this client, and will continue to."""

    reason: str


class NodeSpoke(Frozen, frozen=True):
    """A node sent a message of the journal."""

    instance: bytes
    message: NodeMessage
    payload: bytes


JournalInput: TypeAlias = (
    JournalCommand
    | TakenCommand
    | Cancelled
    | SessionUp
    | SessionDown
    | SessionHurt
    | NoNodeAccepts
    | NodeSpoke
    | Woken
    | Drained
    | Stopping
)


# Effects.


class SendToNode(Frozen, frozen=True):
    """Send this message to the journal of the node at the other end of the session."""

    instance: bytes
    message: ClientMessage
    payload: bytes = b""


class WritesAcknowledged(Frozen, frozen=True):
    """The writes of a call are committed."""

    call: int
    place: ReceiptPlace


class ReadChunk(Frozen, frozen=True):
    """Packs of a stream. The caller gets the offsets from `start` up to, but excluding, `stop`."""

    call: int
    start: int
    stop: int
    first_offset: int
    index: int
    regime: int
    timestamp_ns: int
    ingest_node: int
    packs: bytes


JournalOutcome: TypeAlias = WritesAcknowledged | ReadChunk
JournalEffect: TypeAlias = SendToNode | WritesAcknowledged | ReadChunk | Returned | Raised | Report
