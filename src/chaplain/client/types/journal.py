"""The values that journal methods return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, cast

from msgspec.structs import astuple

from chaplain.client.types.codecs import Codec, V
from chaplain.client.types.results import ResultRecord, brief
from chaplain.errors import Misused, Undecodable

PLACE_UNKNOWN = -1
"""As an offset: the message is in the log, but so old that no node remembers its offset."""


class RequestId(NamedTuple):
    """Identifies one request forever: its lane and its number on that lane."""

    client_id: int
    client_message_id: int


class ReceiptOrigin:
    """How to reach the client that received a receipt. It is no part of the receipt's value: all origins are equal."""

    __slots__ = ("prove",)

    def __init__(self, prove: Callable[[str, int], Any] | None = None) -> None:
        self.prove = prove

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReceiptOrigin)

    def __hash__(self) -> int:
        return 0


NO_ORIGIN = ReceiptOrigin()


class Receipt(ResultRecord, frozen=True, gc=False):
    """Confirms that a message is committed: its place in the order is agreed, and it is on disk at a quorum."""

    stream: str
    offset: int
    """The message's offset in the stream; -1 if it is so old that no node remembers it."""
    regime: int
    """The regime (term) of the master that ordered it."""
    index: int
    """Index of the cluster message that contains it."""
    timestamp: int
    """Time of the cluster message, in nanoseconds since 1970."""
    hash: bytes
    """Hash of the cluster chain up to and including the cluster message."""
    client_id: int
    """The lane on which it was written."""
    client_message_id: int
    """The number of its request on the lane."""
    origin: ReceiptOrigin = NO_ORIGIN

    @property
    def id(self) -> RequestId:
        """The id of its request."""
        return RequestId(self.client_id, self.client_message_id)

    def prove(self) -> Any:
        """Return a proof of the message, as `Client.prove` does; with `AsyncClient`, await it."""
        if self.origin.prove is None or self.offset == PLACE_UNKNOWN:
            raise Misused("this receipt does not know its client: use client.prove(stream, offset)")
        return self.origin.prove(self.stream, self.offset)

    def keys(self) -> tuple[str, ...]:
        return _RECEIPT_FIELDS

    def __iter__(self) -> Iterator[str]:
        return iter(_RECEIPT_FIELDS)

    def __repr__(self) -> str:
        return f"Receipt({', '.join(f'{name}={self[name]!r}' for name in _RECEIPT_FIELDS)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Receipt, tuple(self[name] for name in _RECEIPT_FIELDS)


_RECEIPT_FIELDS = tuple(name for name in Receipt.__struct_fields__ if name != "origin")


class Message(ResultRecord, Generic[V], frozen=True):
    """One message of a stream."""

    stream: str
    offset: int
    key: bytes | None
    value: V
    """Its bytes; with the journal's codec, what that decodes. Then it raises `Undecodable` if there is no value."""
    headers: dict[str, bytes]
    """Headers by name. Bytes that do not follow the header format are under the empty name."""
    timestamp: int
    """Time of its cluster message, in nanoseconds since 1970."""
    client_id: int
    """The lane on which it was written."""
    client_message_id: int
    """The number of its request on the lane."""
    message_no: int
    """Its position within its request, from 0."""
    regime: int
    index: int
    """Index of the cluster message that contains it."""
    ingest_node: int
    """The node that received it from the client."""
    type: int = 0
    """The type that its writer gave it. 0 is data, 1 a statement for the stream's database."""

    @property
    def raw(self) -> bytes:
        """Its bytes, also with a codec."""
        return cast("bytes", self.value)

    def __hash__(self) -> int:
        return hash((self.stream, self.offset, self.index))  # a dict is not hashable; these fields identify the message


class Decoding:
    """The codec of a message, and the value once it was decoded. No part of the message's value: all are equal."""

    __slots__ = ("codec", "decoded")

    def __init__(self, codec: Codec[Any]) -> None:
        self.codec = codec
        self.decoded: tuple[Any, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decoding)

    def __hash__(self) -> int:
        return 0


NOT_DECODED = Decoding(cast("Codec[Any]", None))


class DecodedMessage(Message[V], frozen=True):
    """A message whose `value` is decoded when it is first used, so that an undecodable message ends no reader."""

    decoding: Decoding = NOT_DECODED

    @property
    def raw(self) -> bytes:
        return cast("bytes", _bytes_of(self))

    if not TYPE_CHECKING:  # for type checkers it is the field

        @property
        def value(self) -> V:
            decoding = self.decoding
            if not decoding.decoded:
                try:
                    decoding.decoded = (decoding.codec.decode(self.raw),)
                except Exception as error:
                    where = f"message {self.offset} of stream {self.stream!r}"
                    raise Undecodable(f"{where} is not {decoding.codec!r}: {error}; `raw` has its bytes") from error
            return decoding.decoded[0]

    def keys(self) -> tuple[str, ...]:
        return Message.__struct_fields__

    def __iter__(self) -> Iterator[str]:
        return iter(Message.__struct_fields__)

    def __repr__(self) -> str:
        shown = {name: self.raw if name == "value" else getattr(self, name) for name in Message.__struct_fields__}
        return f"Message({', '.join(f'{name}={brief(value)}' for name, value in shown.items())})"

    def __hash__(self) -> int:
        return Message.__hash__(self)


_bytes_of: Callable[[object], Any] = Message.__dict__["value"].__get__
"""Reads the field `value`, which the property of the subclass hides."""


def decoded(messages: Iterable[Message], codec: Codec[V]) -> list[Message[V]]:
    """The messages with a codec."""
    make: Any = DecodedMessage
    return [make(*astuple(message), Decoding(codec)) for message in messages]


class ClientRecord(ResultRecord, frozen=True):
    """A client identity that is, or was, registered at the cluster."""

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
    """How it signs its writes: `ed25519` or `hmac_sha256`."""


class NodeRecord(ResultRecord, frozen=True):
    """A node as recorded in the configuration stream."""

    id: int
    uri: str
    key: str
    roles: tuple[str, ...]
    member: bool
    """False if it was removed: its id and key cannot be used again."""


class ChangeRecord(ResultRecord, frozen=True):
    """A reconfiguration and its stage."""

    id: str
    change: str
    nodes: tuple[int, ...]
    stage: str
    open: bool
    """True while it is in progress."""
    index: int
    """Index of the cluster message that brought it to this stage."""
    why: str
    """Why it was refused; empty otherwise."""


class ClusterConfigRecord(ResultRecord, frozen=True):
    """The nodes, the serializers and the reconfigurations of a cluster."""

    nodes: tuple[NodeRecord, ...]
    serializers: tuple[int, ...]
    changes: tuple[ChangeRecord, ...]


class StreamRecord(ResultRecord, frozen=True):
    """A stream of the journal."""

    stream: str
    next_offset: int
    """The head: the offset of the next message."""
    chain: str
    first_offset: int = 0
    """The first offset that the queried node retains."""


class StreamPage(ResultRecord, frozen=True):
    """One page of the list of streams."""

    streams: list[StreamRecord]
    after: str
    """The last name of this page, from which the next page continues; empty on the last page."""
