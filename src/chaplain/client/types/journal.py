"""What the journal gives back to the caller."""

from __future__ import annotations

from typing import NamedTuple

from chaplain.client.types.results import Record

PLACE_UNKNOWN = -1
"""As an offset: it is written, but so long ago that nobody can say where."""


class RequestId(NamedTuple):
    """Names one request for ever: the lane it was written on, and its number there."""

    client_id: int
    client_message_id: int


class Receipt(Record, frozen=True, gc=False):
    """A message is agreed, and on disk at a quorum."""

    stream: str
    offset: int
    regime: int
    index: int
    """The cluster message that it is in."""
    timestamp: int
    """Of the cluster message, in nanoseconds since 1970."""
    hash: bytes
    """Of the cluster chain, up to and with the message."""
    client_id: int
    client_message_id: int

    @property
    def id(self) -> RequestId:
        return RequestId(self.client_id, self.client_message_id)


class Message(Record, frozen=True):
    """One message of a stream."""

    stream: str
    offset: int
    key: bytes | None
    value: bytes
    headers: dict[str, bytes]
    """Octets that are no headers of ours are there under the empty name."""
    timestamp: int
    """Of its cluster message, in nanoseconds since 1970."""
    client_id: int
    client_message_id: int
    message_no: int
    """Which message of its request this is, from 0."""
    regime: int
    index: int
    ingest_node: int

    def __hash__(self) -> int:
        return hash((self.stream, self.offset, self.index))  # a dictionary has no hash, and these name it


class ClientRecord(Record, frozen=True):
    """An identity that the cluster knows, or knew."""

    name: str
    acl: str
    key: str
    status: str
    """`active`, `removed` or `compromised`."""
    admin: bool
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    lanes: int = 0
    signature: str = "ed25519"
    """How it signs what it writes: `ed25519` or `hmac_sha256`."""


class NodeRecord(Record, frozen=True):
    """A node as the configuration stream has it."""

    id: int
    uri: str
    key: str
    roles: tuple[str, ...]
    member: bool
    """Not any more, if it was removed: its id and key are spent."""


class ChangeRecord(Record, frozen=True):
    """A request about nodes, and how far it is."""

    id: str
    change: str
    nodes: tuple[int, ...]
    stage: str
    open: bool
    index: int
    """The cluster message that brought it to this stage."""
    why: str
    """It was refused for this."""


class AssemblyRecord(Record, frozen=True):
    nodes: tuple[NodeRecord, ...]
    serializers: tuple[int, ...]
    changes: tuple[ChangeRecord, ...]


class StreamRecord(Record, frozen=True):
    stream: str
    next_offset: int
    chain: str
    first_offset: int = 0
    """The first that the node that was asked has kept."""


class StreamPage(Record, frozen=True):
    """A part of the list of streams."""

    streams: list[StreamRecord]
    after: str
    """The name behind which the next page begins; empty after the last one."""
