"""A node just big enough for a client: a real link over real sockets, and answers made up on the spot."""

from __future__ import annotations

import threading
import time
from random import Random

from chaplain.client_service import messages
from chaplain.client_service.messages import (
    AnswerQuestions,
    AskQuestion,
    Cancel,
    ClientRequest,
    Done,
    EventItem,
    Failed,
    FireAndWait,
    FireEvent,
    GetMembers,
    GetStatus,
    GiveAnAnswer,
    JoinAPool,
    ListenEvents,
    ListenMessages,
    ListenNews,
    MessageItem,
    NewsItem,
    PoolItem,
    QuestionItem,
    RotateKeys,
    SendToMember,
    ShoutToPool,
    Started,
)
from chaplain.core import Admit, Dial, HangUp, Refuse, Send, Woken
from chaplain.link.auth.identity import Identity, new_instance
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.core import LinkCore
from chaplain.link.events import LinkInput, Met, Register, Said, Say
from chaplain.link.settings import LinkSettings
from chaplain.link.zmq.sockets import Sockets
from chaplain.wire import command, parcel
from chaplain.wire.command import Alive, DecenAck, Ping

CLUSTER_KEY = b"c" * 32


class TinyNode:
    """Runs in a thread of its own from construction until `kill`."""

    def __init__(self, seed: int, clients: dict[bytes, str], cluster: str = "chaplain") -> None:
        random = Random(seed)
        self.identity = Identity.generate(random)
        self.mute = False
        self.commands = 0
        self.requests: list[ClientRequest] = []
        instance = new_instance(random)
        self._sockets = Sockets(instance, "tcp://127.0.0.1:*")
        self.endpoint = self._sockets.endpoint
        settings = LinkSettings(cluster, self.endpoint)
        self._link = LinkCore(self.identity, instance, settings, random, ring=KeyRing(CLUSTER_KEY))
        self._clients: dict[bytes, str] = {}
        self._sequences: dict[bytes, int] = {}
        self._listening: dict[tuple[bytes, int], ClientRequest] = {}
        self._running = True
        self._todo: list[LinkInput] = [Register(clients)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        if self._running:
            self._running = False
            self._sockets.wake()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._running:
                due_ns = self._link.deadline()
                timeout_ns = None if due_ns is None else max(0, due_ns - time.time_ns())
                self._todo.extend(self._sockets.wait(timeout_ns))
                if due_ns is not None and due_ns <= time.time_ns():
                    self._todo.append(Woken())
                while self._todo:
                    self._step(self._todo.pop(0))
        finally:
            self._sockets.close()

    def _step(self, event: LinkInput) -> None:
        for effect in self._link.step(time.time_ns(), event):
            match effect:
                case Admit() | Refuse() | Dial() | HangUp() | Send():
                    self._sockets.perform(effect)
                case Met(peer):
                    self._clients[peer.instance] = peer.client
                    self._sequences[peer.instance] = 1
                case Said(instance, commands):
                    for spoken in commands:
                        self._said(instance, command.decode(spoken))

    def _said(self, instance: bytes, spoken: command.Command) -> None:
        self.commands += 1
        if self.mute:
            return
        if isinstance(spoken, Ping):
            self._say(instance, DecenAck(self._next(instance)))
        if isinstance(spoken, Alive):
            opened = parcel.decode(spoken.content)
            request = messages.decode_request(opened.body)
            self.requests.append(request)
            self._answer(instance, request, opened.payload)

    def _answer(self, instance: bytes, request: ClientRequest, payload: bytes) -> None:
        call = request.call
        match request:
            case GetStatus():
                self._reply(instance, Done(call), b'{"state":"WRK"}')
            case GetMembers():
                self._reply(instance, Done(call), b'[{"id":1,"uri":"tcp://x:1","state":"alive","incarnation":3}]')
            case AskQuestion(question="never"):
                pass
            case AskQuestion():
                answer = b'{"question":"%b","value":"1","votes":1,"members":1,"decided":true,"voters":[1],"missing":[]}'
                self._reply(instance, Done(call), answer % request.question.encode())
            case FireEvent(event="bad"):
                self._reply(instance, Failed(call, "refused", "no such luck"))
            case FireEvent():
                self._tell(ListenEvents, lambda number: EventItem(number, f"e{call}", request.event, 1), payload)
                self._reply(instance, Done(call))
            case FireAndWait():
                self._tell(ListenNews, lambda number: NewsItem(number, "join", 2, "chat"), b"")
                self._tell(ListenNews, lambda number: EventItem(number, f"e{call}", request.event, 1), payload)
                self._reply(instance, Done(call), b'{"acknowledged":[1],"missing":[2]}')
            case ShoutToPool():
                name = self._clients[instance]
                self._tell(JoinAPool, lambda number: PoolItem(number, request.pool, 1, name, 0), payload)
                self._reply(instance, Done(call))
            case SendToMember():
                self._tell(ListenMessages, lambda number: MessageItem(number, 1, self._clients[instance], 0), payload)
                self._reply(instance, Done(call), b'{"outcome":"delivered","listeners":1,"reason":""}')
            case ListenEvents() | ListenNews() | ListenMessages() | JoinAPool() | AnswerQuestions():
                self._listening[instance, call] = request
                self._reply(instance, Started(call))
                if isinstance(request, AnswerQuestions):
                    self._reply(instance, QuestionItem(call, "q1", request.question, 2), b"how?")
            case GiveAnAnswer():
                self._reply(instance, Done(call))
            case RotateKeys():
                self._reply(instance, Done(call), b'{"rotated":true}')
            case Cancel():
                self._listening.pop((instance, call), None)
                self._reply(instance, Done(call))

    def _tell(self, kind: type, item: object, payload: bytes) -> None:
        for (instance, call), request in list(self._listening.items()):
            if isinstance(request, kind):
                self._reply(instance, item(call), payload)  # type: ignore[operator]

    def _reply(self, instance: bytes, reply: messages.NodeReply, payload: bytes = b"") -> None:
        content = messages.encode(self.identity.identifier, reply, payload)
        self._say(instance, Alive(self._next(instance), content))

    def _say(self, instance: bytes, spoken: command.Command) -> None:
        self._todo.append(Say(instance, command.encode(spoken)))

    def _next(self, instance: bytes) -> int:
        self._sequences[instance] += 1
        return self._sequences[instance] % 65_536
