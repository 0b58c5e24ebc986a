"""What a node, or whoever sits at its endpoint, may send to a client."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

from chaplain.client.protocol.core import ClientCore
from chaplain.client.protocol.events import ClientCall, ListeningBegan, Raised, Returned, Settings, Yielded
from chaplain.client_service import messages
from chaplain.client_service.messages import (
    AnswerQuestions,
    Done,
    EventItem,
    Failed,
    GetStatus,
    JoinAPool,
    ListenEvents,
    ListenMessages,
    ListenNews,
    MessageItem,
    NewsItem,
    PoolItem,
    QuestionItem,
    Started,
)
from chaplain.core import Arrived, Connected, Dial, Report, Send, Woken
from chaplain.link.auth.identity import Identity
from chaplain.link.core import LinkCore
from chaplain.link.events import LinkEffect, LinkInput, Meet, Met, Peer, Register, Said
from chaplain.link.settings import LinkSettings
from chaplain.wire import command
from chaplain.wire.command import Alive, DecenAck, Hello, Ping
from tests.support.link_stage import Stage

_INSTANCE = b"i" * 16
_ENDPOINT = "tcp://127.0.0.1:9"
_REPLIES = (
    Done(1),
    Failed(1, "refused", "no"),
    Started(1),
    Started(2),
    EventItem(2, "a-1-1", "deployed", 1),
    PoolItem(3, "chat", 1, "ann", 2),
    MessageItem(6, 1, "ann", 2),
    QuestionItem(4, "a-1-1", "load", 1),
    NewsItem(5, "join", 1, "chat"),
)


def _answer() -> bytes:
    """How a node greets a client, another one."""
    stage = Stage(3)
    node = stage.node("node")
    client = stage.client("client", frozenset({node.core.identity.key}), _ME)
    node.step(Register({_ME.key: "client"}))
    client.meet(node)
    stage.connect()
    stage.deliver(stage.between(client, node))
    return stage.between(client, node).back[0]


class _Hasty(Identity):
    """Signs but once: nobody looks at what this client says."""

    def sign(self, label: bytes, message: bytes) -> bytes:
        return _SIGNATURE


_ME = Identity(b"s" * 32)
_HASTY, _SIGNATURE = _Hasty(b"s" * 32), _ME.sign(b"fuzz", b"")
SEEDS = {
    "target_client_command": [
        *(command.encode(Alive(2, messages.encode(1, reply, b"payload"))) for reply in _REPLIES),
        command.encode(Ping(3)),
        command.encode(DecenAck(4)),
    ],
    "target_client_frame": [
        b"\x01" + bytes(60),
        b"\x02" + bytes(200),
        _answer(),
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


_REQUESTS = (
    GetStatus(1),
    ListenEvents(2),
    JoinAPool(3, "chat"),
    AnswerQuestions(4, "load"),
    ListenNews(5),
    ListenMessages(6),
)


def make_target_client_command() -> Callable[[bytes], None]:
    """Whatever an authenticated node says, listenings go on and nothing but known effects comes of it."""
    core = ClientCore(_OpenLink(), 1, [_ENDPOINT], Settings(), Random(1))
    core.step(0, Woken())
    core.step(0, Connected(1))
    now_ns, turns, ended = 0, count(1), list(_REQUESTS)

    def target(data: bytes) -> None:
        nonlocal now_ns
        now_ns += 10**7
        for request in ended:
            core.step(now_ns, ClientCall(request, b"", 10**9))
        effects = core.step(now_ns + 1, Arrived(1, data))
        for effect in effects:
            assert not isinstance(effect, Yielded | ListeningBegan) or effect.call in (2, 3, 4, 5, 6)
        assert core.deadline() is not None
        if next(turns) % 10 == 0:  # whoever has not been answered by then
            now_ns += 5 * 10**9
            effects += core.step(now_ns, Woken())
        ended[:] = [_REQUESTS[effect.call - 1] for effect in effects if isinstance(effect, Returned | Raised)]

    return target


def make_target_client_frame() -> Callable[[bytes], None]:
    """Before a greeting has proven anything, no bytes become a session or an outcome."""
    core = _greeting()

    def target(data: bytes) -> None:
        nonlocal core
        effects = core.step(1, Arrived(1, data))
        others = [effect for effect in effects if not isinstance(effect, Dial | Send | Report)]
        assert all(type(effect).__name__ in ("HangUp", "Raised") for effect in others), others
        if others:
            core = _greeting()

    return target


def _greeting() -> ClientCore:
    """A client that has greeted on its first dial and made a call."""
    rng = Random(1)
    link = LinkCore(_HASTY, _INSTANCE, LinkSettings("fuzz"), rng, pinned=frozenset([b"k" * 32]))
    core = ClientCore(link, _ME.identifier, [_ENDPOINT], Settings(), rng)
    effects = [*core.step(0, Woken()), *core.step(0, Connected(1)), *core.step(0, ClientCall(GetStatus(1), b"", 10**9))]
    assert all(isinstance(effect, Dial | Send | Report) for effect in effects), effects
    return core
