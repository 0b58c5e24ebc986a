"""What a client and the journal say to each other: bodies of parcels of the JOURNAL layer.

Each body is a MessagePack array whose first element names the message, decoded straight into these types; packs,
petitions and batches are the parcel's payload. `call` is the client's own number for a question and comes back in
every answer. What is written is not answered by call but by lane and id, from whatever node the client is connected to
by then.
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
EARLIEST = (1 << 64) - 2
"""As an offset: where the stream ends when the question arrives."""


class _Message(Frozen, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


# Of a client.


class Open(_Message, frozen=True):
    """Who am I here, and how much may I send? Answered with `Opened`."""

    call: int


class Write(_Message, frozen=True):
    """The payload is a pack for this stream. Answered with `Receipts`, `AlreadyWritten`, `GoBack` or `NotWritten`."""

    stream: str
    check: bool = False
    """It is one request, whose writer would rather hear at once that it fails than have it ordered."""


class SubmitPetition(_Message, frozen=True):
    """The payload is the data of a config entry. Answered with `Decided`."""

    call: int
    entry_type: int
    stage: int


class AskLane(_Message, frozen=True):
    """How far is this lane, as far as this node knows? Answers about it go here from now on. Answered with `LaneIs`."""

    call: int
    client_id: int
    request: int = 0
    """And where is this request of it? 0: none is meant."""


class Read(_Message, frozen=True):
    """Send this stream from an offset on, as `Chunk`s, until `Ended`; at most `credit_bytes` before `Grant`."""

    call: int
    stream: str
    offset: int
    credit_bytes: int
    end_offset: int | None = None
    """Stop before this one; None: at the end, or never, if `follow`."""
    follow: bool = False


class Grant(_Message, frozen=True):
    """So many octets more may be sent for the read of this call."""

    call: int
    credit_bytes: int


class StopReading(_Message, frozen=True):
    call: int


class AskProof(_Message, frozen=True):
    """What proves that this identity is compromised? Answered with `ProofIs`."""

    call: int
    acl: bytes


class WrapSecret(_Message, frozen=True):
    """The payload is an HMAC secret for the holder of a public key. Answered with `Wrapped`. Admins only."""

    call: int
    key: bytes


class ListStreams(_Message, frozen=True):
    """Answered with `Listed`: JSON, an object whose `streams` are those behind `after`, in order of their names, that
    the client may read. Its `after` is empty if these were the last; otherwise it is what to ask with for the next.
    """

    call: int
    after: str = ""


class ListClients(_Message, frozen=True):
    """Answered with `Listed`: JSON, one object an identity. Admins only."""

    call: int


class ListNodes(_Message, frozen=True):
    """Answered with `Listed`: JSON, the nodes with their roles, the serializers, and the changes of them."""

    call: int


class AskPaid(_Message, frozen=True):
    """How much of what was committed has its offsets? Answered with `PaidAre`."""

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
    | AskPaid
)


# Of a node.


class Opened(_Message, frozen=True):
    call: int
    node: int
    cluster: str
    acl: bytes
    name: str
    credit_bytes: int
    """In all: how much may be written in this session until `Credit` says more."""
    pack_bytes_max: int = 0
    """A larger pack is refused here; 0 if the node does not say."""
    leads: int = 0
    """The regime in which the node is master, as in `Leads`."""
    reserved: tuple[str, ...] = ()
    """The names of those whose packs the node takes; empty: everybody's."""
    epoch: bytes = b""
    """Token of the current epoch, as far as the node has executed: configuration requests are signed with it."""


class Leads(_Message, frozen=True):
    """The node has become master in this regime; or, if it is 0, is master no more. What it takes is ordered sooner."""

    regime: int


class Whereabouts(Frozen, frozen=True, array_like=True):
    """A node by its public key, and where it was placed."""

    key: bytes
    endpoint: str


class MembersAre(_Message, frozen=True):
    """Who belongs to the cluster, as far as it is executed here. Comes when a session begins, and at every change.

    A node's key and place never change, and who is gone stays so: a word that is late, or of one behind, does no harm.
    """

    members: tuple[Whereabouts, ...]
    """Those that take writes or answer reads."""
    gone: tuple[Whereabouts, ...]
    """All that were ever removed."""


class Run(Frozen, frozen=True, array_like=True):
    """A receipt: these requests of the lane are written, one after the other, in one cluster message."""

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


class Receipts(_Message, frozen=True):
    runs: tuple[Run, ...]


class AlreadyWritten(_Message, frozen=True):
    """Everything up to this id was written, too long ago to say where."""

    client_id: int
    last_id: int


class GoBack(_Message, frozen=True):
    """Something before what you sent is missing: send from this id on again."""

    client_id: int
    expected_id: int


class NotWritten(_Message, frozen=True):
    """These requests are refused; `kind` is for programs, `reason` says what to do."""

    client_id: int
    first_id: int
    requests: int
    kind: str
    reason: str
    expected_id: int


class Credit(_Message, frozen=True):
    """So many octets in all may have been written in this session."""

    credit_bytes: int


class Decided(_Message, frozen=True):
    """What became of a petition; `kind` is `applied`, or why it was refused."""

    call: int
    kind: str
    reason: str
    client_id: int
    acl: bytes
    last_id: int
    epoch: bytes = b""
    """As in `Opened`. A request that was refused as `expired` is signed again with it."""


class LaneIs(_Message, frozen=True):
    """Executed here up to cluster message `index`: more may be agreed. Only a fence is definite."""

    call: int
    client_id: int
    known: bool
    last_id: int
    fenced: bool
    index: int
    run: Run | None = None
    """The receipt of what was asked for, if it is the asker's own and not too long ago."""


class Chunk(_Message, frozen=True):
    """The payload is packs of the stream; offsets before the one that was asked for are to be passed over."""

    call: int
    first_offset: int
    count: int
    index: int
    regime: int
    timestamp_ns: int
    origin_node: int


class Ended(_Message, frozen=True):
    """The read is over; `kind` is `end`, or what went wrong."""

    call: int
    kind: str
    reason: str
    next_offset: int


class PaidAre(_Message, frozen=True):
    """Executed here up to cluster message `index`: how many packs in all were committed, and have their offsets."""

    call: int
    index: int
    pledged: int
    paid: int


class ProofIs(_Message, frozen=True):
    """The payload is the first request's pack, then the second's. Whoever has the key can check both."""

    call: int
    cluster: str
    key: bytes
    first_stream: str
    first_bytes: int
    second_stream: str


class Wrapped(_Message, frozen=True):
    """The payload is the wrapped secret, for Add Client."""

    call: int


class Listed(_Message, frozen=True):
    """The payload is JSON."""

    call: int


class Failed(_Message, frozen=True):
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
    | Failed
)

_of_client: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
_of_node: msgspec.msgpack.Decoder[NodeMessage] = msgspec.msgpack.Decoder(NodeMessage)
_encoder = msgspec.msgpack.Encoder()


def encode(message: ClientMessage | NodeMessage) -> bytes:
    return _encoder.encode(message)


def decode_client(body: bytes) -> ClientMessage:
    message = unpack(_of_client, body, "client message")
    if not isinstance(message, Write) and not 0 <= message.call <= CALL_MAX:
        raise Malformed(f"client message: call {message.call} is not a 32-bit number")
    if isinstance(message, Read) and (message.offset < 0 or (message.end_offset or 0) < 0):
        raise Malformed("client message: offsets count from 0")
    return message


def decode_node(body: bytes) -> NodeMessage:
    message = unpack(_of_node, body, "node message")
    if isinstance(message, MembersAre):
        _check_nodes((*message.members, *message.gone))
    return message


def _check_nodes(nodes: tuple[Whereabouts, ...]) -> None:
    if len(nodes) > NODE_IDS_MAX:
        raise Malformed(f"node message: {len(nodes)} nodes, and a cluster has {NODE_IDS_MAX} at most")
    if any(len(node.key) != KEY_BYTES or not is_endpoint(node.endpoint) for node in nodes):
        raise Malformed("node message: a node has a key and an endpoint")
