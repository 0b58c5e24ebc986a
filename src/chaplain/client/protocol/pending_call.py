"""A call under way, and what may be done with it when its session parts.

Repeating is safe for what only reads or listens. Whatever makes something happen in the cluster is never repeated: if
its session parts after it was sent, nobody can tell whether it happened. If that was because the node fell silent, it
does not happen any more (decision 0144).
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
    ListenNews,
    LookUp,
    NewsItem,
    PoolItem,
    QuestionItem,
    RotateKeys,
    ShoutToPool,
    is_repeatable,
)
from chaplain.wire.parcel import Layer

Wish: TypeAlias = ClientCall | Connect | Measure

_RECENT_MAX = 1024
"""Events remembered by a listening: more than one node can hold back while a listening moves to the next."""


class Pending:
    """One call. `instance` is the session it was sent on, or None while it waits for one."""

    __slots__ = ("declined", "instance", "missed", "moved", "recent", "started", "wish")

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.instance: bytes | None = None
        self.started = False
        self.moved = False
        self.missed = 0
        self.recent: dict[str, None] = {}
        self.declined: dict[str, str] = {}
        """Endpoints of nodes that are not the ones to ask, and what they said."""

    @property
    def call(self) -> int:
        return self.wish.request.call if isinstance(self.wish, ClientCall) else self.wish.call

    @property
    def name(self) -> str:
        """What to call it in a message to a person."""
        return describe(self.wish.request) if isinstance(self.wish, ClientCall) else type(self.wish).__name__.lower()

    @property
    def advice(self) -> str:
        return self.wish.advice if isinstance(self.wish, ClientCall) else TRY_AGAIN

    @property
    def listens(self) -> bool:
        return isinstance(self.wish, ClientCall) and isinstance(
            self.wish.request, ListenEvents | ListenNews | JoinAPool | AnswerQuestions
        )

    @property
    def open_at_node(self) -> bool:
        """Whether a node keeps something for this call until it is told that nobody waits."""
        return self.listens or (isinstance(self.wish, ClientCall) and isinstance(self.wish.request, LookUp | Instruct))

    @property
    def for_executors(self) -> bool:
        return isinstance(self.wish, ClientCall) and getattr(self.wish.request, "layer", None) == Layer.EXECUTOR

    @property
    def repeatable(self) -> bool:
        return not isinstance(self.wish, ClientCall) or is_repeatable(self.wish.request)

    def saw_before(self, event_id: str) -> bool:
        """Whether this listening gave the event already: a node it moved to may see it later than the one before."""
        if event_id in self.recent:
            return True
        self.recent[event_id] = None
        if len(self.recent) > _RECENT_MAX:
            del self.recent[next(iter(self.recent))]
        return False


def describe(request: ClientRequest) -> str:
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
    """Whether an item belongs to what was asked for."""
    match item:
        case EventItem():
            return isinstance(request, ListenEvents | ListenNews)
        case NewsItem():
            return isinstance(request, ListenNews)
        case PoolItem():
            return isinstance(request, JoinAPool) and item.pool == request.pool
        case QuestionItem():
            return isinstance(request, AnswerQuestions) and item.question == request.question
        case _:
            assert_never(item)
