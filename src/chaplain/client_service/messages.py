"""What a client and a node say to each other: requests, answers, and items of what the client listens to.

Each message is the body of a parcel of the CLIENT layer; bytes of the user's (a value, an event's content) are the
parcel's payload and never looked at. Bodies are MessagePack arrays whose first element names the message, decoded
straight into these types, so that a field too many, too few or of another type is `Malformed`.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.wire import parcel
from chaplain.wire.packed import unpack
from chaplain.wire.parcel import Layer, Parcel

CALL_MAX = 2**32 - 1
NAME_BYTES_MAX = 255
ROTATION_NS = 30 * 10**9
"""How long a node goes on with a rotation of keys before it says who holds it up."""


class Request(Frozen, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Asked by a client. `call` is the client's own number for it, and comes back in every answer."""

    call: int


class GetStatus(Request, frozen=True):
    """How this node sees itself and its cluster."""


class GetMembers(Request, frozen=True):
    """The membership list of this node."""


class AskQuestion(Request, frozen=True):
    """A question to the whole cluster, answered when half or more agree."""

    question: str
    timeout_ns: int


class FireEvent(Request, frozen=True):
    """An event for everyone, or for one node; its content is the payload."""

    event: str
    target: int | None = None


class FireAndWait(Request, frozen=True):
    """Likewise, and whoever sees it says so: answered when all have whom it was for, or when the time is up."""

    event: str
    timeout_ns: int
    target: int | None = None


class ListenEvents(Request, frozen=True):
    """Every event seen from now on, as items, until `Cancel`."""


class ListenNews(Request, frozen=True):
    """Likewise, and which nodes come and go, and which pools they are in."""


class JoinAPool(Request, frozen=True):
    """Every message to the pool from now on, as items, until `Cancel`."""

    pool: str


class ShoutToPool(Request, frozen=True):
    """The payload, for everyone who has joined the pool."""

    pool: str


class AnswerQuestions(Request, frozen=True):
    """From now on this client answers the question for this node: asked as items, until `Cancel`."""

    question: str


class GiveAnAnswer(Request, frozen=True):
    """The payload answers the question that came as an item with this query."""

    query: str


class RotateKeys(Request, frozen=True):
    """Give every member a new cluster key and retire the old one; answered at the latest after `ROTATION_NS`."""


class LookUp(Request, frozen=True):
    """Read something of a layer above gossip. Body and payload are that layer's; asking twice does no harm."""

    layer: int
    body: bytes


class Instruct(Request, frozen=True):
    """Have a layer above gossip do something, which may happen twice if it is asked twice."""

    layer: int
    body: bytes


class Cancel(Request, frozen=True):
    """End what was asked for under this call: a listening, or the wait for a layer's answer."""


ClientRequest: TypeAlias = (
    GetStatus
    | GetMembers
    | AskQuestion
    | FireEvent
    | FireAndWait
    | ListenEvents
    | ListenNews
    | JoinAPool
    | ShoutToPool
    | AnswerQuestions
    | GiveAnAnswer
    | RotateKeys
    | LookUp
    | Instruct
    | Cancel
)


def is_repeatable(request: ClientRequest) -> bool:
    """Whether asking twice, or late, does no harm: it only reads or listens. All else makes something happen."""
    match request:
        case GetStatus() | GetMembers() | AskQuestion() | Cancel() | LookUp():
            return True
        case ListenEvents() | ListenNews() | JoinAPool() | AnswerQuestions():
            return True
        case FireEvent() | FireAndWait() | ShoutToPool() | GiveAnAnswer() | RotateKeys() | Instruct():
            return False
        case _:
            assert_never(request)


def is_spread(request: ClientRequest) -> bool:
    """Whether every node of the cluster has to act on it: then it costs more than the asked node can tell."""
    return isinstance(request, AskQuestion | FireEvent | FireAndWait | JoinAPool | AnswerQuestions)


class Reply(Frozen, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    call: int


class Done(Reply, frozen=True):
    """The call is answered; the payload is JSON, empty if there is nothing to say."""


class Failed(Reply, frozen=True):
    """The call was refused or went wrong; `kind` is for programs, `reason` for people."""

    kind: str
    reason: str


class Started(Reply, frozen=True):
    """The listening has begun: whatever happens after this comes as items."""


class EventItem(Reply, frozen=True):
    """An event was seen; its content is the payload."""

    id: str
    event: str
    sender: int


class NewsItem(Reply, frozen=True):
    """Something changed about a node, as the one that tells it sees it."""

    kind: str
    """`enter` and `exit`: its connection. `join` and `leave`: a pool. `member`: its entry in the membership list."""
    node: int
    pool: str = ""
    state: str = ""
    """Of a member: `alive`, `suspect` or `left`."""
    was: str = ""
    """The state before; empty if it was not on the list."""
    reason: str = ""
    """Why a connection ended."""


class PoolItem(Reply, frozen=True):
    """Someone broadcast to the pool; the value is the payload."""

    pool: str
    sender: int
    client: str
    missed: int
    """Messages that are known to have been lost on the way to this listener since the last item."""


class QuestionItem(Reply, frozen=True):
    """Someone asked what this client answers; what they sent along is the payload."""

    query: str
    question: str
    asker: int


NodeReply: TypeAlias = Done | Failed | Started | EventItem | NewsItem | PoolItem | QuestionItem

_requests: msgspec.msgpack.Decoder[ClientRequest] = msgspec.msgpack.Decoder(ClientRequest)
_replies: msgspec.msgpack.Decoder[NodeReply] = msgspec.msgpack.Decoder(NodeReply)
_encoder = msgspec.msgpack.Encoder()


def encode(node: int, message: ClientRequest | NodeReply, payload: bytes = b"") -> bytes:
    return parcel.encode(Parcel(node, Layer.CLIENT, _encoder.encode(message), payload))


def decode_request(body: bytes) -> ClientRequest:
    request = unpack(_requests, body, "request")
    if not 0 <= request.call <= CALL_MAX:
        raise Malformed(f"request: call {request.call} is not a 32-bit number")
    return request


def decode_reply(body: bytes) -> NodeReply:
    return unpack(_replies, body, "reply")
