"""The messages between a client and a node: requests, replies, and items of subscriptions.

Each message is the body of a parcel of the CLIENT layer. The user's bytes (a value, the content of an event) are the
parcel's payload and are never interpreted. Bodies are MessagePack arrays whose first element names the message. They
are decoded directly into these types, so a missing or extra field, or one of a wrong type, is `Malformed`.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

import msgspec

from chaplain.core import Frozen
from chaplain.costs import APPEND, SPREAD
from chaplain.errors import Malformed
from chaplain.wire import parcel
from chaplain.wire.packed import unpack
from chaplain.wire.parcel import Layer, Parcel

CALL_MAX = 2**32 - 1
"""Largest number of a call."""
NAME_BYTES_MAX = 255
"""Longest name of a pool, an event or a question."""
ROTATION_NS = 30 * 10**9
"""How long a node continues a key rotation before it reports the members that have not confirmed."""


class Request(Frozen, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """A client's request. `call` is the client's own number for it and is repeated in every reply."""

    call: int


class GetStatus(Request, frozen=True):
    """Return how this node sees itself and its cluster."""


class GetMembers(Request, frozen=True):
    """Return the membership list of this node."""


class AskQuestion(Request, frozen=True):
    """Ask the whole cluster a question; answered when at least half of the members agree."""

    question: str
    timeout_ns: int


class FireEvent(Request, frozen=True):
    """Fire an event to all nodes or to one. Its content is the payload."""

    event: str
    target: int | None = None


class FireAndWait(Request, frozen=True):
    """Fire an event and collect acknowledgements.

    It is answered when all addressed nodes have confirmed, or at the timeout.
    """

    event: str
    timeout_ns: int
    target: int | None = None


class ListenEvents(Request, frozen=True):
    """Send every event seen from now on as an item, until `Cancel`."""


class ListenNews(Request, frozen=True):
    """Send events, and changes of nodes and of their pools, as items, until `Cancel`."""


class JoinAPool(Request, frozen=True):
    """Send every message to the pool from now on as an item, until `Cancel`."""

    pool: str


class ShoutToPool(Request, frozen=True):
    """Send the payload to all clients that have joined the pool."""

    pool: str


class SendToMember(Request, frozen=True):
    """Send the payload to all clients that listen to messages at one member; answered with its fate."""

    member: int
    timeout_ns: int


class ListenMessages(Request, frozen=True):
    """Send every message to this node's clients from now on as an item, until `Cancel`."""


class AnswerQuestions(Request, frozen=True):
    """Let this client answer the question for this node. Each asking is sent as an item, until `Cancel`."""

    question: str


class GiveAnAnswer(Request, frozen=True):
    """Answer the question that came as an item with this query; the answer is the payload."""

    query: str


class RotateKeys(Request, frozen=True):
    """Replace the cluster key of every member and retire the old one; answered within `ROTATION_NS`."""


class LookUp(Request, frozen=True):
    """Read from a layer above gossip. Body and payload belong to that layer; repeating the request is harmless."""

    layer: int
    body: bytes


class Instruct(Request, frozen=True):
    """Change something in a layer above gossip. Repeating the request may take effect twice."""

    layer: int
    body: bytes


class Cancel(Request, frozen=True):
    """End what was requested under this call: a subscription, or the wait for a layer's answer."""


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
    | SendToMember
    | ListenMessages
    | AnswerQuestions
    | GiveAnAnswer
    | RotateKeys
    | LookUp
    | Instruct
    | Cancel
)


def is_repeatable(request: ClientRequest) -> bool:
    """True if the request only reads or listens, so that sending it twice or late is harmless."""
    match request:
        case GetStatus() | GetMembers() | AskQuestion() | Cancel() | LookUp():
            return True
        case ListenEvents() | ListenNews() | JoinAPool() | ListenMessages() | AnswerQuestions():
            return True
        case FireEvent() | FireAndWait() | ShoutToPool() | SendToMember() | GiveAnAnswer() | RotateKeys() | Instruct():
            return False
        case _:
            assert_never(request)


def is_spread(request: ClientRequest) -> bool:
    """True if every node of the cluster has to act on the request, so that it costs more than its work on this node."""
    return isinstance(request, AskQuestion | FireEvent | FireAndWait | JoinAPool | AnswerQuestions)


def extra_cost(request: ClientRequest) -> int:
    """The cost of the request to the cluster, in addition to the cost of its size (`chaplain.costs`)."""
    if isinstance(request, Instruct) and request.layer == Layer.GRAPH:
        return APPEND
    return SPREAD if is_spread(request) else 0


class Reply(Frozen, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """A node's reply to the request with the same call."""

    call: int


class Done(Reply, frozen=True):
    """The call succeeded; the payload is JSON, or empty if there is no result."""


class Failed(Reply, frozen=True):
    """The call was refused or failed; `kind` is for programs, `reason` for people."""

    kind: str
    reason: str


class Started(Reply, frozen=True):
    """The subscription has started: from now on, the node sends its items."""


class EventItem(Reply, frozen=True):
    """An event was seen; its content is the payload."""

    id: str
    event: str
    sender: int


class NewsItem(Reply, frozen=True):
    """A change of a node, as seen by the node that sends it."""

    kind: str
    """`enter` and `exit`: its connection. `join` and `leave`: a pool. `member`: its entry in the membership list."""
    node: int
    pool: str = ""
    state: str = ""
    """For `member`: `alive`, `suspect` or `left`."""
    was: str = ""
    """The previous state; empty if the node was not on the list."""
    reason: str = ""
    """Why a connection ended."""


class PoolItem(Reply, frozen=True):
    """A message to the pool; its value is the payload."""

    pool: str
    sender: int
    client: str
    missed: int
    """Messages to this listener that are known to be lost since the previous item."""


class MessageItem(Reply, frozen=True):
    """A message to the clients of this node; its value is the payload."""

    sender: int
    client: str
    missed: int
    """Items to this listener that are known to be lost since the previous one."""


class QuestionItem(Reply, frozen=True):
    """A question for this client to answer; the content that the asker sent along is the payload."""

    query: str
    question: str
    asker: int


NodeReply: TypeAlias = Done | Failed | Started | EventItem | NewsItem | PoolItem | MessageItem | QuestionItem

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
