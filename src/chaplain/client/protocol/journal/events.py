"""What passes between the program and the client's journal, and between that and the sessions.

Each command has the number of a call. It ends in exactly one of `WritesAcknowledged`, `Returned` and `Raised`, or is
cancelled. A read also emits any number of `ReadChunk`s before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from chaplain.client.protocol.call_events import Cancelled, Raised, Returned
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.core import Drained, Frozen, Report, Stopping, Woken
from chaplain.journal.messages.client import (
    AskPaid,
    AskProof,
    ClientMessage,
    ListClients,
    ListNodes,
    ListStreams,
    NodeMessage,
    WrapSecret,
)
from chaplain.journal.messages.config import ConfigMessage


class Batch(Frozen, frozen=True):
    """Requests of one caller for one stream, in order."""

    stream: str
    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[bytes | None] | None = None
    transaction: bool = False
    """All messages are one request; else each is its own."""
    size_bytes: int = 0
    """Of values, keys and headers together."""
    message_type: int = 0
    """What the values are: data, unless an executor says otherwise."""
    check: bool = False
    """One request, whose caller would rather hear at once that it fails than have it ordered."""

    @property
    def requests(self) -> int:
        return 1 if self.transaction else len(self.values)


# Wishes.


class WriteCommand(Frozen, frozen=True):
    call: int
    batch: Batch
    timeout_ns: int
    group: int = 0
    """Wishes of one group, other than 0, are written in order up to the first that is refused, and none after it."""


class ReadCommand(Frozen, frozen=True):
    call: int
    stream: str
    start: int
    stop: int | None
    follow: bool
    timeout_ns: int
    """How long nothing may come while there is something to come."""


class TakenCommand(Frozen, frozen=True):
    """So many octets of a read were used up."""

    call: int
    size_bytes: int


class ResolveCommand(Frozen, frozen=True):
    """What became of this request? `Returned` if it never was and never will be written, else `WritesAcknowledged`."""

    call: int
    client_id: int
    request: int
    timeout_ns: int


class RetryCommand(Frozen, frozen=True):
    """Write this request unless that one is written, or was written since in another one's place: then its place."""

    call: int
    batch: Batch
    client_id: int
    request: int
    timeout_ns: int


class AskCommand(Frozen, frozen=True):
    call: int
    question: ListStreams | ListClients | ListNodes | AskProof | WrapSecret | AskPaid
    """Its number is given when it is asked."""
    timeout_ns: int
    payload: bytes = b""


class ConfigRequestCommand(Frozen, frozen=True):
    call: int
    message: ConfigMessage
    timeout_ns: int


Wish: TypeAlias = WriteCommand | RetryCommand | ReadCommand | ResolveCommand | AskCommand | ConfigRequestCommand


# Sessions.


class SessionUp(Frozen, frozen=True):
    instance: bytes


class SessionDown(Frozen, frozen=True):
    instance: bytes
    reason: str


class SessionHurt(Frozen, frozen=True):
    """Something that was sent on this session, or for us, was lost."""

    instance: bytes


class NoNodeAccepts(Frozen, frozen=True):
    """No node lets us in, and none will."""

    reason: str


class NodeSpoke(Frozen, frozen=True):
    """A node said something about the journal."""

    instance: bytes
    message: NodeMessage
    payload: bytes


JournalInput: TypeAlias = (
    Wish
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
    """Say this to the journal at the other end of the session."""

    instance: bytes
    message: ClientMessage
    payload: bytes = b""


class WritesAcknowledged(Frozen, frozen=True):
    call: int
    place: ReceiptPlace


class ReadChunk(Frozen, frozen=True):
    """Packs of a stream; only offsets from `start` up to, not with, `stop` are to be given."""

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
