"""Messages between a client and the journal: bodies of parcels of the JOURNAL layer.

Each body is a MessagePack array whose first element names the message; the decoder builds these types directly. The
parcel's payload contains packs, configuration requests or batches. `call` is a number that the client chooses for a
question; every answer repeats it. A write has no call: nodes answer it by lane and request id, so any node to which the
client is connected can answer.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from chaplain.config import NODE_IDS_MAX
from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.link.auth.identity import KEY_BYTES
from chaplain.link.endpoint import is_endpoint
from chaplain.wire.packed import unpack

CALL_MAX = 2**32 - 1
LATEST = (1 << 64) - 1
"""As an offset: the end of the stream at the time when the request arrives."""
EARLIEST = (1 << 64) - 2
"""As an offset: the first message of the stream that the log still contains."""


class _Message(Frozen, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


# Sent by clients.


class Open(_Message, frozen=True):
    """Begin a session. The node answers with `Opened`: the client's identity and its flow-control credit."""

    call: int


class Write(_Message, frozen=True):
    """Write the pack in the payload to this stream.

    The node answers with `Receipts`, `AlreadyWritten`, `GoBack` or `NotWritten`.
    """

    stream: str
    check: bool = False
    """True for a pack of one request that the node should try out before it is ordered. If the request fails, the
    writer learns this at once, and the request is not ordered.
    """


class SubmitPetition(_Message, frozen=True):
    """Submit a configuration request; the payload is the data of the config entry. The node answers with `Decided`."""

    call: int
    entry_type: int
    stage: int


class AskLane(_Message, frozen=True):
    """Ask for the last request id that this node has executed on a lane. The node answers with `LaneIs`, and sends
    later answers about the lane to this session.
    """

    call: int
    client_id: int
    request: int = 0
    """Also return the receipt of this request; 0 asks for none."""


class Read(_Message, frozen=True):
    """Send this stream from an offset on, as `Chunk`s, until `Ended`. The node sends at most `credit_bytes` before a
    `Grant`.
    """

    call: int
    stream: str
    offset: int
    credit_bytes: int
    end_offset: int | None = None
    """Stop before this offset. None stops at the end of the stream, or never if `follow` is set."""
    follow: bool = False


class Grant(_Message, frozen=True):
    """Add this many octets to the credit of the read with this call."""

    call: int
    credit_bytes: int


class StopReading(_Message, frozen=True):
    """End the read with this call."""

    call: int


class AskProof(_Message, frozen=True):
    """Ask for the evidence that an identity signed two requests for one id. The node answers with `ProofIs`."""

    call: int
    acl: bytes


class WrapSecret(_Message, frozen=True):
    """Encrypt the HMAC secret in the payload for the holder of a public key. The node answers with `Wrapped`. Only
    admins may ask.
    """

    call: int
    key: bytes


class ListStreams(_Message, frozen=True):
    """List streams that the client may read. The node answers with `Listed`, whose payload is a JSON object. Its
    `streams` are the next ones after `after`, ordered by name. Its `after` is the value to send for the next page; it
    is empty on the last page.
    """

    call: int
    after: str = ""


class ListClients(_Message, frozen=True):
    """List all identities. The node answers with `Listed`, whose payload is JSON with one object per identity. Only
    admins may ask.
    """

    call: int


class ListNodes(_Message, frozen=True):
    """List the nodes with their roles, the serializers and the changes of them. The node answers with `Listed`, whose
    payload is JSON.
    """

    call: int


class AskTree(_Message, frozen=True):
    """Ask for a part of the tree over the log: a tile by its name in tlog-tiles, or `checkpoint`. The node answers with
    `TreePart`.
    """

    call: int
    name: str
    index: int = 0
    """For `checkpoint`: answer when a signed checkpoint covers this cluster message."""


class AskConsumers(_Message, frozen=True):
    """Ask for named consumers of streams that the client may read. The node answers with `Listed`, whose payload is a
    JSON object (docs/protocol/consumers.md).
    """

    call: int
    stream: str = ""
    """Only consumers of this stream; empty for all streams."""
    name: str = ""
    """Only the consumer of this name, with its workers, slots and leased messages."""
    token: int = 0
    """Of the leased messages, only those of this worker; 0 for all."""
    after: tuple[str, str] = ("", "")
    """Only consumers after this stream and name. The answer contains the value for the next page."""


class AskPaid(_Message, frozen=True):
    """Ask how many committed packs already have offsets. The node answers with `PaidAre`."""

    call: int


ClientMessage: TypeAlias = (
    Open
    | Write
    | SubmitPetition
    | AskLane
    | Read
    | Grant
    | StopReading
    | AskProof
    | WrapSecret
    | ListStreams
    | ListClients
    | ListNodes
    | AskTree
    | AskConsumers
    | AskPaid
)


# Sent by nodes.


class Opened(_Message, frozen=True):
    """The answer to `Open`."""

    call: int
    node: int
    cluster: str
    acl: bytes
    name: str
    credit_bytes: int
    """Octets that the client may write in this session in total, until a `Credit` raises the limit."""
    pack_bytes_max: int = 0
    """The node refuses a larger pack; 0 if it states no limit."""
    leads: int = 0
    """The regime in which the node is master, or 0, as in `Leads`."""
    reserved: tuple[str, ...] = ()
    """Names of the clients whose packs the node accepts; empty if it accepts packs of all clients."""
    epoch: bytes = b""
    """Token of the current epoch, as far as the node has executed. Clients sign configuration requests with it."""


class Leads(_Message, frozen=True):
    """The node became master in this regime, or is no longer master if `regime` is 0.

    Clients prefer the master, because a write through another node takes one hop more.
    """

    regime: int


class NodeAddress(Frozen, frozen=True, array_like=True):
    """A node's public key and its endpoint."""

    key: bytes
    endpoint: str


class MembersAre(_Message, frozen=True):
    """The members of the cluster, as far as this node has executed. The node sends it when a session begins and after
    every change.

    The key and the endpoint of a node never change, and a removed node never returns. A late or outdated message is
    therefore harmless.
    """

    members: tuple[NodeAddress, ...]
    """Nodes that accept writes or answer reads."""
    gone: tuple[NodeAddress, ...]
    """All nodes that were ever removed."""


class Run(Frozen, frozen=True, array_like=True):
    """A receipt: one cluster message contains these consecutive requests of the lane.

    With a refusal, it is the answer to one conditional request that was not written and will not be.
    """

    client_id: int
    first_id: int
    requests: int
    stream: str
    base_offset: int
    messages: int
    index: int
    regime: int
    timestamp_ns: int
    hash: bytes
    refusal: int = 0
    """A `Reason` of `reason.CONDITIONAL`, or 0. Then `messages` is 0, and `base_offset` violated the condition."""


class Receipts(_Message, frozen=True):
    runs: tuple[Run, ...]


class AlreadyWritten(_Message, frozen=True):
    """All requests up to this id are written. The node no longer has their receipts."""

    client_id: int
    last_id: int


class GoBack(_Message, frozen=True):
    """Requests are missing before the ones that the client sent: send again from `expected_id` on."""

    client_id: int
    expected_id: int


class NotWritten(_Message, frozen=True):
    """The node refuses these requests. `kind` is for programs; `reason` tells a person what to do."""

    client_id: int
    first_id: int
    requests: int
    kind: str
    reason: str
    expected_id: int


class Credit(_Message, frozen=True):
    """The new limit of octets that the client may write in this session in total."""

    credit_bytes: int


class Decided(_Message, frozen=True):
    """The decision on a configuration request; `kind` is `applied`, or names the reason for the refusal."""

    call: int
    kind: str
    reason: str
    client_id: int
    acl: bytes
    last_id: int
    epoch: bytes = b""
    """The current epoch, as in `Opened`. The client signs a request that was refused as `expired` again with it."""


class LaneIs(_Message, frozen=True):
    """State of a lane after cluster message `index`, the last one that this node has executed.

    Later messages may already be agreed and write more on the lane. Only a fence makes the answer final.
    """

    call: int
    client_id: int
    known: bool
    last_id: int
    fenced: bool
    index: int
    run: Run | None = None
    """Receipt of the request that the client asked for, if the request is the client's own and its receipt is still
    stored.
    """


class Chunk(_Message, frozen=True):
    """The payload contains packs of the stream. The reader skips offsets before the one that it asked for."""

    call: int
    first_offset: int
    count: int
    index: int
    regime: int
    timestamp_ns: int
    origin_node: int


class Ended(_Message, frozen=True):
    """The read is over; `kind` is `end`, or names the error."""

    call: int
    kind: str
    reason: str
    next_offset: int


class PaidAre(_Message, frozen=True):
    """Progress of two-phase writes after cluster message `index`, the last one that this node has executed: `pledged`
    packs were committed in total, and `paid` of them have their offsets.
    """

    call: int
    index: int
    pledged: int
    paid: int


class ProofIs(_Message, frozen=True):
    """The payload contains two conflicting packs of one lane, one after the other. Anyone with the public key can
    verify both signatures.
    """

    call: int
    cluster: str
    key: bytes
    first_stream: str
    first_bytes: int
    second_stream: str


class Wrapped(_Message, frozen=True):
    """The payload is the wrapped secret, for the key field of Add Client."""

    call: int


class Listed(_Message, frozen=True):
    """The payload is JSON."""

    call: int


class TreePart(_Message, frozen=True):
    """The payload is the tile, or the newest signed checkpoint."""

    call: int


class Failed(_Message, frozen=True):
    """The call failed; `kind` is for programs, `reason` for people."""

    call: int
    kind: str
    reason: str


NodeMessage: TypeAlias = (
    Opened
    | Leads
    | MembersAre
    | Receipts
    | AlreadyWritten
    | GoBack
    | NotWritten
    | Credit
    | Decided
    | LaneIs
    | Chunk
    | Ended
    | ProofIs
    | Wrapped
    | Listed
    | PaidAre
    | TreePart
    | Failed
)

_client_decoder: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
_node_decoder: msgspec.msgpack.Decoder[NodeMessage] = msgspec.msgpack.Decoder(NodeMessage)
_encoder = msgspec.msgpack.Encoder()


def encode(message: ClientMessage | NodeMessage) -> bytes:
    return _encoder.encode(message)


def decode_client(body: bytes) -> ClientMessage:
    message = unpack(_client_decoder, body, "client message")
    if not isinstance(message, Write) and not 0 <= message.call <= CALL_MAX:
        raise Malformed(f"client message: call {message.call} is not a 32-bit number")
    if isinstance(message, Read) and (message.offset < 0 or (message.end_offset or 0) < 0):
        raise Malformed("client message: offsets count from 0")
    return message


def decode_node(body: bytes) -> NodeMessage:
    message = unpack(_node_decoder, body, "node message")
    if isinstance(message, MembersAre):
        _check_nodes((*message.members, *message.gone))
    return message


def _check_nodes(nodes: tuple[NodeAddress, ...]) -> None:
    if len(nodes) > NODE_IDS_MAX:
        raise Malformed(f"node message: {len(nodes)} nodes, and a cluster has {NODE_IDS_MAX} at most")
    if any(len(node.key) != KEY_BYTES or not is_endpoint(node.endpoint) for node in nodes):
        raise Malformed("node message: a node has a key and an endpoint")
