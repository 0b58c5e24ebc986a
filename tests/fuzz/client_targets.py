"""What a node, or whoever sits at its endpoint, may send to a client."""

from __future__ import annotations

from random import Random

from chaplain.client.core import ClientCore
from chaplain.client.events import Began, Call, Settings, Yielded
from chaplain.core import Arrived, Connected, Dial, Report, Send, Woken
from chaplain.desk import messages
from chaplain.desk.messages import (
    AnswerQuestions,
    Done,
    EventItem,
    Failed,
    GetStatus,
    JoinAPool,
    ListenEvents,
    PoolItem,
    QuestionItem,
    Started,
)
from chaplain.link.core import LinkCore
from chaplain.link.events import LinkEffect, LinkInput, Meet, Met, Peer, Said
from chaplain.link.identity import Identity
from chaplain.link.settings import LinkSettings
from chaplain.wire import command
from chaplain.wire.command import Alive, DecenAck, Hello, Ping

_INSTANCE = b"i" * 16
_ENDPOINT = "tcp://127.0.0.1:9"
_REPLIES = (
    Done(1),
    Failed(1, "refused", "no"),
    Started(2),
    EventItem(2, "a-1-1", "deployed", 1),
    PoolItem(3, "chat", 1, "ann", 2),
    QuestionItem(4, "a-1-1", "load", 1),
)

SEEDS = {
    "target_client_command": [
        *(command.encode(Alive(2, messages.encode(1, reply, b"payload"))) for reply in _REPLIES),
        command.encode(Ping(3)),
        command.encode(DecenAck(4)),
    ],
    "target_client_frame": [
        b"\x01" + bytes(60),
        b"\x02" + bytes(200),
        command.encode(Hello(1, "127.0.0.1", 9, (), 0, {"role": "node"})),
    ],
}


class _OpenLink:
    """Says whatever arrives as if it had been sealed."""

    def step(self, now_ns: int, event: LinkInput) -> list[LinkEffect]:
        match event:
            case Meet(endpoint):
                return [Dial(1, endpoint, b"", b"")]
            case Connected():
                peer = Peer(_INSTANCE, 1, b"k" * 32, _ENDPOINT)
                return [Met(peer, Hello(1, "127.0.0.1", 9, (), 0, {}))]
            case Arrived(_, frame):
                return [Said(_INSTANCE, (frame,))]
        return []

    def deadline(self) -> int | None:
        return None


def target_client_command(data: bytes) -> None:
    """Whatever an authenticated node says, listenings go on and nothing but known effects comes of it."""
    core = ClientCore(_OpenLink(), 1, [_ENDPOINT], Settings(), Random(1))
    core.step(0, Woken())
    core.step(0, Connected(1))
    for request in (GetStatus(1), ListenEvents(2), JoinAPool(3, "chat"), AnswerQuestions(4, "load")):
        core.step(0, Call(request, b"", 10**9))
    for effect in core.step(1, Arrived(1, data)):
        assert not isinstance(effect, Yielded | Began) or effect.call in (2, 3, 4)
    assert core.deadline() is not None
    core.step(5 * 10**9, Woken())


def target_client_frame(data: bytes) -> None:
    """Before a greeting has proven anything, no bytes become a session or an outcome."""
    rng = Random(1)
    link = LinkCore(_ME, _INSTANCE, LinkSettings("fuzz"), rng, pinned=frozenset([b"k" * 32]))
    core = ClientCore(link, _ME.identifier, [_ENDPOINT], Settings(), rng)
    effects = [*core.step(0, Woken()), *core.step(0, Connected(1)), *core.step(0, Call(GetStatus(1), b"", 10**9))]
    effects += core.step(1, Arrived(1, data))
    others = [effect for effect in effects if not isinstance(effect, Dial | Send | Report)]
    assert all(type(effect).__name__ in ("HangUp", "Raised") for effect in others), others


_ME = Identity(b"s" * 32)
