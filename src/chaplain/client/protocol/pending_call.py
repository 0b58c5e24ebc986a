"""A pending call, and whether it may be repeated when its session ends.

Requests that only read or listen are safe to repeat. A request with side effects is never repeated: if its session ends
after it was sent, the client cannot know whether the node executed it. If the session ended because the node fell
silent, the node refuses the request from then on (docs/decisions/client-timeouts.md).
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from chaplain.client.protocol.events import TRY_AGAIN, ClientCall, Connect, Item, Measure
from chaplain.client_service.messages import (
    AnswerQuestions,
    AskQuestion,
    Cancel,
    ClientRequest,
    EventItem,
    FireAndWait,
    FireEvent,
    GetMembers,
    GetStatus,
    GiveAnAnswer,
    Instruct,
    JoinAPool,
    ListenEvents,
    ListenMessages,
    ListenNews,
    LookUp,
    MessageItem,
    NewsItem,
    PoolItem,
    QuestionItem,
    RotateKeys,
    SendToMember,
    ShoutToPool,
    is_repeatable,
)
from chaplain.wire.parcel import Layer

CallInput: TypeAlias = ClientCall | Connect | Measure

_RECENT_MAX = 1024
"""Event ids that a subscription remembers: more than a node can lag behind another."""


class Pending:
    """One call. `instance` is the session on which it was sent; None while it waits for a session."""

    __slots__ = ("call_input", "declined", "instance", "missed", "moved", "recent", "request", "started")

    def __init__(self, call_input: CallInput) -> None:
        self.call_input = call_input
        self.request = call_input.request if isinstance(call_input, ClientCall) else None
        """The request to a node; None for `Connect` and `Measure`."""
        self.instance: bytes | None = None
        self.started = False
        self.moved = False
        self.missed = 0
        self.recent: dict[str, None] = {}
        self.declined: dict[str, str] = {}
        """Endpoints of nodes that cannot answer this call, and their reasons."""

    @property
    def call(self) -> int:
        return self.call_input.request.call if isinstance(self.call_input, ClientCall) else self.call_input.call

    @property
    def name(self) -> str:
        """The name of the call in error messages."""
        return type(self.call_input).__name__.lower() if self.request is None else describe(self.request)

    @property
    def advice(self) -> str:
        return self.call_input.advice if isinstance(self.call_input, ClientCall) else TRY_AGAIN

    @property
    def is_subscription(self) -> bool:
        """True if the call listens for items."""
        return isinstance(self.request, ListenEvents | ListenNews | ListenMessages | JoinAPool | AnswerQuestions)

    @property
    def holds_node_state(self) -> bool:
        """True if the node keeps state for this call until it is cancelled."""
        return self.is_subscription or isinstance(self.request, LookUp | Instruct)

    @property
    def for_executors(self) -> bool:
        """True if only executors can answer the call."""
        return isinstance(self.request, LookUp | Instruct) and self.request.layer == Layer.EXECUTOR

    @property
    def repeatable(self) -> bool:
        """True if sending the call twice has no side effect."""
        return self.request is None or is_repeatable(self.request)

    def is_duplicate(self, event_id: str) -> bool:
        """True if this subscription has yielded the event before; remembers it otherwise.

        After a move, the new node may see an event later than the previous node did.
        """
        if event_id in self.recent:
            return True
        self.recent[event_id] = None
        if len(self.recent) > _RECENT_MAX:
            del self.recent[next(iter(self.recent))]
        return False


def describe(request: ClientRequest) -> str:
    """The name of a request in error messages."""
    match request:
        case GetStatus():
            return "status"
        case GetMembers():
            return "members"
        case AskQuestion():
            return f"ask {request.question!r}"
        case FireEvent() | FireAndWait():
            return f"fire {request.event!r}"
        case ListenEvents():
            return "listen to events"
        case ListenNews():
            return "listen to events and members"
        case JoinAPool():
            return f"join {request.pool!r}"
        case SendToMember():
            return f"send to node {request.member}"
        case ListenMessages():
            return "listen to messages"
        case ShoutToPool():
            return f"broadcast to {request.pool!r}"
        case AnswerQuestions():
            return f"answer {request.question!r}"
        case GiveAnAnswer():
            return "reply"
        case RotateKeys():
            return "rotate keys"
        case LookUp():
            return f"{_layer_name(request.layer)} read"
        case Instruct():
            return f"{_layer_name(request.layer)} write"
        case Cancel():
            return "cancel"
        case _:
            assert_never(request)


def _layer_name(layer: int) -> str:
    return Layer(layer).name.lower()


def fits(request: ClientRequest | None, item: Item) -> bool:
    """True if an item belongs to the subscription of this request."""
    match item:
        case EventItem():
            return isinstance(request, ListenEvents | ListenNews)
        case NewsItem():
            return isinstance(request, ListenNews)
        case PoolItem():
            return isinstance(request, JoinAPool) and item.pool == request.pool
        case MessageItem():
            return isinstance(request, ListenMessages)
        case QuestionItem():
            return isinstance(request, AnswerQuestions) and item.question == request.question
        case _:
            assert_never(item)
