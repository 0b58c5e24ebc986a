"""Messages between the journals of two nodes: bodies of parcels of the JOURNAL layer.

    body = protocol 1 | kind 1 | fields of the kind

Decides which octets are which message. Layers below the journal do not inspect the parcel's payload. Byte tables and
hex examples: docs/protocol/journal-requests.md.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.cluster import DIGEST_BYTES, PROTOCOL, Reference
from chaplain.journal.messages.ingest import put_reference, take_reached, take_reference
from chaplain.link.auth.identity import SIGNATURE_BYTES
from chaplain.wire.primitives import ByteReader, put_number

_NO_DIGEST = bytes(DIGEST_BYTES)
VIEW_NODES_MAX = 255
"""Nodes in the view of one acknowledgement."""


class ConsensusFrame(Frozen, frozen=True):
    """An encoded message of `messages.consensus`."""

    message: bytes


class Payload(Frozen, frozen=True):
    """An ingest message. Its ingest node broadcasts it; other nodes send it to a node that asked for it."""

    message: bytes


class AskPayload(Frozen, frozen=True):
    """Request for an ingest message."""

    reference: Reference
    digest: bytes
    """Digest of the wanted message; empty accepts any message with the reference."""


class NodeReached(Frozen, frozen=True):
    """For each ingest node, the index up to which one node has received all messages of its journal."""

    node: int
    reached: tuple[Reference, ...]


class Ack(Frozen, frozen=True):
    """Ingest Journal Message Ack: for each ingest node, the index up to which the sender has received all messages of
    its journal.
    """

    reached: tuple[Reference, ...]
    view: tuple[NodeReached, ...] = ()
    """Of a serializer: what it knows of the other nodes."""


class ForwardConfigRequest(Frozen, frozen=True):
    """A configuration entry that the sender forwards to the master, which should order it."""

    entry_type: int
    stage: int
    data: bytes


class IngestDrainedNotice(Frozen, frozen=True):
    """Notice to the master: the sender is blocked as an ingest node, and none of its messages waits to be ordered."""


class Removed(Frozen, frozen=True):
    """Notice to a removed node: a message up to this index removed it from the cluster."""

    index: int


class SnapshotOffer(Frozen, frozen=True):
    """Snapshot offer: the sender's latest checkpoint, and the range of its log."""

    index: int
    """The last message that the checkpoint covers; 0 if the sender has no checkpoint on disk."""
    digest: bytes
    """SHA-256 of the checkpoint's state."""
    size_bytes: int
    first: int
    """The first message in the sender's log."""
    agreed: int
    """The sender's log reaches at least to this agreed message."""
    confirmed: bool
    """True if a quorum reported the same checkpoint, or a later one, to the sender."""


class AskState(Frozen, frozen=True):
    """Request for the state of the checkpoint at this index, from this octet on."""

    index: int
    position: int


class StatePiece(Frozen, frozen=True):
    """A piece of a checkpoint's state, from octet `position` on."""

    index: int
    position: int
    data: bytes


class TreeSignature(Frozen, frozen=True):
    """The sender has signed this checkpoint of the tree over the log."""

    size: int
    root: bytes
    time_s: int
    """The time that the cosignature states."""
    as_log: bytes
    """Its signature as the log."""
    as_cosigner: bytes
    """Its cosignature."""
    ask: bool = False
    """True if the receiver should send its own signature of the same checkpoint, if it has one."""


PeerMessage: TypeAlias = (
    ConsensusFrame
    | Payload
    | AskPayload
    | Ack
    | ForwardConfigRequest
    | IngestDrainedNotice
    | Removed
    | SnapshotOffer
    | AskState
    | StatePiece
    | TreeSignature
)
_ORDER, _PAYLOAD, _ASK, _ACK, _PETITION, _DRAINED, _REMOVED, _COVERED, _ASK_STATE, _STATE, _SIGNED = range(1, 12)
CONSENSUS_BODY, _PAYLOAD_BODY = bytes((PROTOCOL, _ORDER)), bytes((PROTOCOL, _PAYLOAD))
"""Every write uses both kinds, and they have no fields. `decode` therefore compares the whole body first."""


def encode(message: PeerMessage) -> tuple[bytes, bytes]:
    """Body and payload of the parcel."""
    match message:
        case ConsensusFrame():
            return CONSENSUS_BODY, message.message
        case Payload():
            return _PAYLOAD_BODY, message.message
        case AskPayload():
            return _body(_ASK, put_reference(message.reference), message.digest or _NO_DIGEST), b""
        case Ack():
            return _body(_ACK, _put_reached(message.reached)), _put_view(message.view)
        case ForwardConfigRequest():
            return _body(_PETITION, put_number(message.entry_type, 1), put_number(message.stage, 1)), message.data
        case IngestDrainedNotice():
            return _body(_DRAINED), b""
        case Removed():
            return _body(_REMOVED, put_number(message.index, 8)), b""
        case SnapshotOffer():
            numbers = (message.size_bytes, message.first, message.agreed)
            fields = (put_number(message.index, 8), message.digest, *(put_number(number, 8) for number in numbers))
            return _body(_COVERED, *fields, put_number(message.confirmed, 1)), b""
        case AskState():
            return _body(_ASK_STATE, put_number(message.index, 8), put_number(message.position, 8)), b""
        case StatePiece():
            return _body(_STATE, put_number(message.index, 8), put_number(message.position, 8)), message.data
        case TreeSignature():
            fields = (put_number(message.size, 8), message.root, put_number(message.time_s, 8))
            return _body(_SIGNED, *fields, message.as_log, message.as_cosigner, put_number(message.ask, 1)), b""
        case _:
            assert_never(message)


def _put_reached(reached: tuple[Reference, ...]) -> bytes:
    return put_number(len(reached), 1) + b"".join(map(put_reference, reached))


def _put_view(view: tuple[NodeReached, ...]) -> bytes:
    """In the parcel's payload: with many nodes it may be too large for a body."""
    return b"".join(put_number(one.node, 1) + _put_reached(one.reached) for one in view)


def _take_view(payload: bytes) -> tuple[NodeReached, ...]:
    cursor = ByteReader(payload)
    found: list[NodeReached] = []
    while cursor.position < len(payload):
        if len(found) == VIEW_NODES_MAX:
            raise Malformed(f"acknowledgement: a view has at most {VIEW_NODES_MAX} nodes")
        found.append(NodeReached(cursor.number(1, "node"), take_reached(cursor)))
    return tuple(found)


def _body(kind: int, *fields: bytes) -> bytes:
    return b"%c%c%b" % (PROTOCOL, kind, b"".join(fields))


def decode(body: bytes, payload: bytes) -> PeerMessage:
    if body == CONSENSUS_BODY:
        return ConsensusFrame(payload)
    if body == _PAYLOAD_BODY:
        return Payload(payload)
    cursor = ByteReader(body)
    if cursor.number(1, "protocol") != PROTOCOL:
        raise Malformed(f"peer message: this program speaks protocol {PROTOCOL}")
    message = _fields(cursor, cursor.number(1, "kind"), payload)
    cursor.end("peer message")
    if payload and isinstance(
        message, AskPayload | IngestDrainedNotice | Removed | SnapshotOffer | AskState | TreeSignature
    ):
        raise Malformed("peer message: a payload where none belongs")
    return message


def _fields(cursor: ByteReader, kind: int, payload: bytes) -> PeerMessage:
    match kind:
        case 1 | 2:
            raise Malformed("peer message: fields where none belong")
        case 3:
            reference, digest = take_reference(cursor), cursor.take(DIGEST_BYTES, "digest")
            return AskPayload(reference, b"" if digest == _NO_DIGEST else digest)
        case 4:
            return Ack(take_reached(cursor), _take_view(payload))
        case 5:
            return ForwardConfigRequest(cursor.number(1, "entry type"), cursor.number(1, "stage"), payload)
        case 6:
            return IngestDrainedNotice()
        case 7:
            return Removed(cursor.number(8, "index"))
        case 8:
            return _covered(cursor)
        case 9:
            return AskState(cursor.number(8, "index"), cursor.number(8, "position"))
        case 10:
            return StatePiece(cursor.number(8, "index"), cursor.number(8, "position"), payload)
        case 11:
            size, root, time_s = cursor.number(8, "size"), cursor.take(DIGEST_BYTES, "root"), cursor.number(8, "time")
            signatures = (cursor.take(SIGNATURE_BYTES, "signature"), cursor.take(SIGNATURE_BYTES, "cosignature"))
            return TreeSignature(size, root, time_s, *signatures, ask=bool(cursor.number(1, "ask")))
        case _:
            raise Malformed(f"peer message: kind {kind} is not one of 1 to 11")


def _covered(cursor: ByteReader) -> SnapshotOffer:
    index, digest = cursor.number(8, "index"), cursor.take(DIGEST_BYTES, "digest")
    size_bytes, first, agreed = (cursor.number(8, name) for name in ("size", "first", "agreed"))
    return SnapshotOffer(index, digest, size_bytes, first, agreed, bool(cursor.number(1, "confirmed")))
