"""The client service: answers the requests of clients, and subscribes to events and pools for them.

Decides which layer a request is for, which messages each client receives, and when a client exceeds its limits. Knows
nothing of how the layers work: it forwards inputs to them and their outputs to clients.

Invariants:
- every request gets exactly one `Done`, `Failed` or `Started`, unless its session ends first;
- a listener receives messages of a pool only between its `Started` and its `Cancel`, and only while it has the right to
  read the pool;
- a call forwarded to another layer is settled there, or withdrawn when its client no longer waits;
- a question is registered exactly while a client of this node listens for it;
- this node is in a pool exactly while one of its clients listens there, or if it is a permanent pool of the node;
- a request about a stream is forwarded only for clients that have the right;
- a request with side effects is refused if its client may have given it up;
- the open requests of a client are bounded (`ClientServiceSettings`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import assert_never

import msgspec
from msgspec.structs import replace

from chaplain.client_service import member_messages, messages, presenters
from chaplain.client_service.budgets import Budgets
from chaplain.client_service.calls import OpenCalls
from chaplain.client_service.events import (
    ClientServiceEffect,
    ClientServiceInput,
    ClientServiceSettings,
    ForLayer,
    NodeViews,
    RightsChanged,
    RotationWanted,
)
from chaplain.client_service.limits import REASON_LENGTH_MAX, bad_target
from chaplain.client_service.member_events import item_of
from chaplain.client_service.member_messages import Ack, Message, SentMessages
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
    Instruct,
    JoinAPool,
    ListenEvents,
    ListenMessages,
    ListenNews,
    LookUp,
    MessageItem,
    NewsItem,
    NodeReply,
    PoolItem,
    QuestionItem,
    RotateKeys,
    SendToMember,
    ShoutToPool,
    Started,
)
from chaplain.client_service.sessions import ConnectedClient, Listeners, Topic
from chaplain.core import Report, Requested, Settled, Withdrawn, Woken
from chaplain.costs import UNIT_BYTES, Charge
from chaplain.errors import Malformed
from chaplain.gossip.events import (
    ALL,
    Acknowledged,
    AskQuery,
    EventSeen,
    Fire,
    GiveAnswer,
    MemberChanged,
    QueryDecided,
    Questioned,
    RegisterQuestion,
    Rotated,
    UnregisterQuestion,
)
from chaplain.mesh.events import (
    Entered,
    Exited,
    Gapped,
    Joined,
    JoinPool,
    LeavePool,
    Left,
    Shout,
    Shouted,
    Whisper,
    Whispered,
)
from chaplain.rights import NO_RIGHT, NOT_EXECUTOR, RequiredRight, Right, message_stream, refusal
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel

NOT_ALLOWED = "not_allowed"
"""Kind of a refusal because only admins may do this."""
TOO_LATE = "unreachable"
"""Kind of a refusal because the client may have given the request up before it arrived."""
NO_STATEMENTS = "this node executes no statements: its database is set to none"


class ClientServiceCore:
    """Serves the clients of one node, as a pure core."""

    def __init__(self, identifier: int, settings: ClientServiceSettings, views: NodeViews) -> None:
        self.counts: Counter[str] = Counter()
        self._identifier = identifier
        self._settings = settings
        self._views = views
        self._limits = views.limits
        self._clients: dict[bytes, ConnectedClient] = {}
        self._listeners = Listeners()
        self._calls = OpenCalls()
        self._budgets = Budgets(settings.spread_per_second_max)
        self._nodes: dict[int, bytes] = {}
        """The session with each node, by identifier."""
        self._sent = SentMessages()

    def deadline(self) -> int | None:
        return self._sent.deadline()

    def step(self, now_ns: int, event: ClientServiceInput) -> list[ClientServiceEffect]:
        match event:
            case Entered() if event.peer.client:
                self._clients[event.peer.instance] = ConnectedClient(
                    event.peer.instance, event.peer.client, event.peer.key
                )
                return []
            case Exited() if event.peer.client:
                return self._on_client_left(event.peer.instance)
            case Entered():
                self._nodes[event.peer.identifier] = event.peer.instance
                return self._send_member_event(item_of(event, self._views.node_id))
            case Exited():
                return self._on_node_left(event)
            case Joined() | Left() | MemberChanged():
                return self._send_member_event(item_of(event, self._views.node_id))
            case Whispered() if not event.peer.client:
                return self._on_member_parcel(event)
            case Whispered():
                return self._on_request(now_ns, event)
            case Woken():
                return self._end_messages(self._sent.expired(now_ns), "the member did not acknowledge it in time")
            case Shouted():
                return self._deliver_broadcast(event.peer.identifier, event.pool, event.content)
            case Gapped():
                return self._on_gap(event)
            case EventSeen():
                return self._send_event(event)
            case Questioned():
                return self._send_question(event)
            case QueryDecided():
                return self._finish(event.call, presenters.answer(event.answer, self._views.node_id))
            case Acknowledged():
                return self._finish_fire(event)
            case Rotated():
                return self._finish_rotation(event)
            case Settled():
                return self._on_settled(event)
            case RightsChanged():
                return self._revoke_access()
            case _:
                assert_never(event)

    # Sessions.

    def _on_client_left(self, instance: bytes) -> list[ClientServiceEffect]:
        """A client's session ended: withdraw its calls and end its subscriptions."""
        client = self._clients.pop(instance, None)
        if client is None:
            return []
        withdrawn = [effect for number in self._calls.of(client) for effect in self._withdraw(number)]
        return [
            *withdrawn,
            *(effect for topic in self._listeners.drop(client) for effect in self._on_last_listener(topic)),
        ]

    def _on_node_left(self, event: Exited) -> list[ClientServiceEffect]:
        """A node's session ended: messages to it that it has not acknowledged may or may not have arrived."""
        peer = event.peer
        if self._nodes.get(peer.identifier) == peer.instance:
            del self._nodes[peer.identifier]
        ended = self._sent.session_ended(peer.instance)
        return [
            *self._end_messages(ended, "the session with the member ended before it acknowledged"),
            *self._send_member_event(item_of(event, self._views.node_id)),
        ]

    def _on_gap(self, event: Gapped) -> list[ClientServiceEffect]:
        """Messages to a listener were dropped because its queue was full, or messages of a node were lost.

        The next pool item of each affected client reports how many.
        """
        if event.peer.client and event.outgoing:
            concerned = [client for client in (self._clients.get(event.peer.instance),) if client is not None]
        elif not event.peer.client and not event.outgoing:
            concerned = [client for client in self._clients.values() if client.is_in_a_pool]
        else:
            return []
        for client in concerned:
            client.missed += event.count
        return []

    # Requests.

    def _on_request(self, now_ns: int, event: Whispered) -> list[ClientServiceEffect]:
        """Decode a request, check its rate and age, and dispatch it."""
        client = self._clients.get(event.peer.instance)
        if client is None:
            return []
        try:
            opened = parcel.decode(event.content)
            if opened.layer != Layer.CLIENT:
                raise Malformed(f"parcel: layer {opened.layer} is not for the client service")
            request = messages.decode_request(opened.body)
        except Malformed as error:
            self.counts["requests_malformed"] += 1
            return [Report("request malformed", client.name, {"reason": str(error)})]
        self.counts["requests"] += 1
        if self._is_late(client, request):
            self.counts["requests_late"] += 1
            return [self._fail(client, request.call, TOO_LATE, "it arrived too late to be executed: do it again")]
        if messages.is_spread(request) and not self._budgets.spend(now_ns, client.key):
            self.counts["requests_too_often"] += 1
            often = f"every node acts on this, and this client may send {self._settings.spread_per_second_max} a second"
            return [self._fail(client, request.call, "busy", f"{often}: do it again later")]
        units = messages.extra_cost(request)
        charged: list[ClientServiceEffect] = [Charge(client.key, units)] if units else []
        return [*charged, *self._dispatch(now_ns, client, request, opened.payload)]

    def _is_late(self, client: ConnectedClient, request: ClientRequest) -> bool:
        """True if the request has side effects and its client may have given it up, as far as this node knows."""
        late = self._views.unheard_ns(client.instance) > self._settings.unheard_ns_max
        return late and not messages.is_repeatable(request)

    def _dispatch(
        self, now_ns: int, client: ConnectedClient, request: ClientRequest, payload: bytes
    ) -> list[ClientServiceEffect]:
        call = request.call
        match request:
            case GetStatus():
                return [self._reply(client, Done(call), self._views.status())]
            case GetMembers():
                return [self._reply(client, Done(call), self._views.members())]
            case AskQuestion():
                return self._ask(client, request, payload)
            case RotateKeys() if not self._views.is_admin(client.key):
                self.counts["requests_forbidden"] += 1
                return [self._fail(client, call, NOT_ALLOWED, "only an admin may replace the cluster's key")]
            case RotateKeys():
                return self._open_call(client, call, RotationWanted)
            case LookUp() | Instruct():
                return self._submit_to_layer(client, request, payload)
            case FireEvent() | FireAndWait():
                return self._fire(client, request, payload)
            case ShoutToPool():
                return self._shout(client, request, payload)
            case SendToMember():
                return self._send_to_member(now_ns, client, request, payload)
            case ListenMessages():
                return self._listen(client, call, Topic("messages"))
            case ListenEvents():
                return self._listen(client, call, Topic("events"))
            case ListenNews():
                return self._listen(client, call, Topic("news"))
            case JoinAPool():
                return self._listen(client, call, Topic("pool", request.pool))
            case AnswerQuestions():
                return self._listen(client, call, Topic("question", request.question))
            case GiveAnAnswer():
                return self._give_answer(client, request, payload)
            case Cancel():
                return [*self._cancel(client, call), self._done(client, call)]
            case _:
                assert_never(request)

    def _submit_to_layer(
        self, client: ConnectedClient, request: LookUp | Instruct, payload: bytes
    ) -> list[ClientServiceEffect]:
        """Forward a request to a layer above gossip, if the client has the right."""
        layer = request.layer
        if layer == Layer.EXECUTOR and layer not in self._views.layers:
            return [self._fail(client, request.call, NOT_EXECUTOR, NO_STATEMENTS)]
        if layer not in self._views.layers:
            return [self._refuse(client, request.call, f"this node does not serve layer {layer}")]
        right = self._views.required_right(layer, request.body)
        if right is not None and not self._views.has_right(client.key, right):
            return [self._forbid(client, request.call, right)]

        def make(number: int) -> ForLayer:
            return ForLayer(layer, Requested(number, client.name, request.body, payload))

        return self._open_call(client, request.call, make, layer, right)

    def _open_call(
        self,
        client: ConnectedClient,
        call: int,
        make: Callable[[int], AskQuery | Fire | RotationWanted | ForLayer | Whisper],
        layer: int | None = None,
        right: RequiredRight | None = None,
    ) -> list[ClientServiceEffect]:
        """Open a call that another layer answers later."""
        if client.waiting >= self._settings.calls_max:
            return [self._refuse(client, call, f"{client.waiting} calls are open already: wait for an answer first")]
        return [make(self._calls.open(client, call, layer, right))]

    def _withdraw(self, number: int) -> list[ClientServiceEffect]:
        """Close a call whose client no longer waits, and inform the layer."""
        entry = self._calls.close(number)
        self._sent.forget(number)
        return [] if entry is None or entry.layer is None else [ForLayer(entry.layer, Withdrawn(number))]

    def _finish(self, number: int, result: object) -> list[ClientServiceEffect]:
        """Close a call and answer it with this result."""
        entry = self._calls.close(number)
        return [] if entry is None else [self._done(entry.client, entry.call, result)]

    def _on_settled(self, settled: Settled) -> list[ClientServiceEffect]:
        """A layer has answered a call."""
        entry = self._calls.close(settled.call)
        if entry is None:
            return []
        if settled.kind:
            return [self._fail(entry.client, entry.call, settled.kind, settled.reason)]
        units = len(settled.payload) // UNIT_BYTES  # a page of events costs the node about as much as writing them
        charged: list[ClientServiceEffect] = [Charge(entry.client.key, units)] if units else []
        return [*charged, self._reply(entry.client, Done(entry.call), settled.payload)]

    def _finish_fire(self, event: Acknowledged) -> list[ClientServiceEffect]:
        if event.fired:
            return self._finish(event.call, presenters.acknowledgement(event, self._views.node_id))
        entry = self._calls.close(event.call)
        reason = "too many events are waiting for acknowledgements here: fire it later, or without acknowledge"
        return [] if entry is None else [self._refuse(entry.client, entry.call, reason)]

    def _finish_rotation(self, event: Rotated) -> list[ClientServiceEffect]:
        entry = self._calls.close(event.call)
        if entry is None:
            return []
        if event.done:
            return [self._done(entry.client, entry.call, {"rotated": True})]
        missing = ", ".join(str(self._views.node_id(identifier)) for identifier in event.missing)
        reason = event.reason or f"step {event.step} not confirmed by node {missing}; both keys stay in use: ask again"
        return [self._refuse(entry.client, entry.call, reason)]

    def _ask(self, client: ConnectedClient, request: AskQuestion, payload: bytes) -> list[ClientServiceEffect]:
        if problem := presenters.bad_name(request.question) or self._limits.bad_content(len(payload)):
            return [self._refuse(client, request.call, problem)]
        timeout_ns = self._bounded(request.timeout_ns)
        return self._open_call(
            client, request.call, lambda number: AskQuery(number, request.question, timeout_ns, payload)
        )

    def _bounded(self, timeout_ns: int) -> int:
        """The timeout of a question, within its limits."""
        return min(max(timeout_ns, 0), self._settings.question_timeout_ns_max)

    def _fire(
        self, client: ConnectedClient, request: FireEvent | FireAndWait, payload: bytes
    ) -> list[ClientServiceEffect]:
        problem = (
            presenters.bad_name(request.event) or bad_target(request.target) or self._limits.bad_content(len(payload))
        )
        if problem:
            return [self._refuse(client, request.call, problem)]
        target = ALL if request.target is None else self._views.identifier(request.target)
        if isinstance(request, FireEvent):
            return [Fire(request.event, payload, target), self._done(client, request.call)]
        timeout_ns = self._bounded(request.timeout_ns)
        return self._open_call(
            client, request.call, lambda number: Fire(request.event, payload, target, number, timeout_ns)
        )

    def _shout(self, client: ConnectedClient, request: ShoutToPool, payload: bytes) -> list[ClientServiceEffect]:
        if problem := presenters.bad_name(request.pool) or self._limits.bad_broadcast(len(payload)):
            return [self._refuse(client, request.call, problem)]
        right = RequiredRight(Right.WRITE, request.pool)
        if not self._views.has_right(client.key, right):
            return [self._forbid(client, request.call, right)]
        content = parcel.encode(Parcel(self._identifier, Layer.CLIENT, client.name.encode(), payload))
        shout = Shout(request.pool, content)
        return [
            shout,
            *self._deliver_broadcast(self._identifier, request.pool, content),
            self._done(client, request.call),
        ]

    # Messages to one member.

    def _send_to_member(
        self, now_ns: int, client: ConnectedClient, request: SendToMember, payload: bytes
    ) -> list[ClientServiceEffect]:
        if problem := bad_target(request.member) or self._limits.bad_broadcast(len(payload)):
            return [self._refuse(client, request.call, problem)]
        identifier = self._views.identifier(request.member)
        member = self._views.node_id(identifier)
        right = RequiredRight(Right.WRITE, message_stream(member))
        if not self._views.has_right(client.key, right):
            return [self._forbid(client, request.call, right)]
        if identifier == self._identifier:
            items = self._deliver_message(identifier, client.name, payload)
            fate = member_messages.acknowledged_fate(member, len(items))
            return [*items, self._done(client, request.call, fate)]
        instance = self._nodes.get(identifier)
        if instance is None:
            reason = f"node {self._own_id} has no session with node {member}"
            return [self._done(client, request.call, member_messages.fate("dropped", reason=reason))]
        due_ns = now_ns + self._bounded(request.timeout_ns)

        def send(number: int) -> Whisper:
            self._sent.add(number, instance, member, due_ns)
            return Whisper(instance, member_messages.encode(self._identifier, Message(number, client.name), payload))

        return self._open_call(client, request.call, send, right=right)

    def _on_member_parcel(self, event: Whispered) -> list[ClientServiceEffect]:
        """A message for our clients, or the acknowledgement of one of theirs."""
        peer = event.peer
        try:
            message, payload = member_messages.decode(event.content, peer.identifier)
            if problem := self._limits.bad_broadcast(len(payload)):
                raise Malformed(problem)
        except Malformed as error:
            return [Report("member message malformed", f"{peer.identifier:08x}", {"reason": str(error)})]
        match message:
            case Message():
                items = self._deliver_message(peer.identifier, message.client, payload)
                ack = member_messages.encode(self._identifier, Ack(message.number, len(items)))
                return [*items, Whisper(peer.instance, ack)]
            case Ack():
                member = self._sent.acknowledged(peer.instance, message.number)
                if member is None:
                    return []
                return self._finish(message.number, member_messages.acknowledged_fate(member, message.listeners))
            case _:
                assert_never(message)

    def _deliver_message(self, sender: int, client_name: str, payload: bytes) -> list[ClientServiceEffect]:
        """Deliver a message to every client that listens to messages here."""
        effects: list[ClientServiceEffect] = []
        for client, call in self._listeners.of(Topic("messages")):
            item = MessageItem(call, self._views.node_id(sender), client_name, client.missed)
            client.missed = 0
            effects.append(self._reply(client, item, payload))
        return effects

    def _end_messages(self, numbers: list[int], reason: str) -> list[ClientServiceEffect]:
        expired = member_messages.fate("expired", reason=reason)
        return [effect for number in numbers for effect in self._finish(number, expired)]

    def _give_answer(self, client: ConnectedClient, request: GiveAnAnswer, payload: bytes) -> list[ClientServiceEffect]:
        try:
            query = presenters.query_id(request.query)
        except Malformed as error:
            return [self._refuse(client, request.call, str(error))]
        if problem := self._limits.bad_content(len(payload)):
            return [self._refuse(client, request.call, problem)]
        return [GiveAnswer(query, payload), self._done(client, request.call)]

    # Subscriptions.

    def _listen(self, client: ConnectedClient, call: int, topic: Topic) -> list[ClientServiceEffect]:
        """Start a subscription."""
        if problem := self._bad_topic(topic):
            return [self._refuse(client, call, problem)]
        right = self._right_of(topic)
        if right is not None and not self._views.has_right(client.key, right):
            return [self._forbid(client, call, right)]
        if len(client.listening) >= self._settings.listeners_max:
            open_already = f"{len(client.listening)} listeners are open already"
            return [self._refuse(client, call, f"{open_already}: leave a pool, or close a listener")]
        if call in client.listening:
            return [self._refuse(client, call, f"call {call} listens already")]
        effects = self._on_first_listener(topic) if self._listeners.add(topic, client, call) else []
        return [*effects, self._reply(client, Started(call))]

    def _bad_topic(self, topic: Topic) -> str:
        """The reason for refusing a subscription to a topic; empty if it is allowed."""
        match topic.kind:
            case "events" | "news" | "messages":
                return ""
            case "pool":
                return presenters.bad_name(topic.name) or self._limits.bad_pool(
                    topic.name, self._listeners.names("pool")
                )
            case "question":
                known = self._listeners.names("question")
                return presenters.bad_question(topic.name) or self._limits.bad_question(topic.name, known)
            case _:
                assert_never(topic.kind)

    def _right_of(self, topic: Topic) -> RequiredRight | None:
        """The right that a subscription to this topic needs, if any."""
        match topic.kind:
            case "pool":
                return RequiredRight(Right.READ, topic.name)
            case "messages":
                return RequiredRight(Right.READ, message_stream(self._own_id))
            case _:
                return None

    def _revoke_access(self) -> list[ClientServiceEffect]:
        """Rights have changed: end the subscriptions and pending calls that are no longer allowed."""
        effects: list[ClientServiceEffect] = []
        for client in self._clients.values():
            for call, topic in list(client.listening.items()):
                right = self._right_of(topic)
                if right is not None and not self._views.has_right(client.key, right):
                    effects += [*self._cancel(client, call), self._forbid(client, call, right)]
        for number, entry, needed in self._calls.with_rights():
            if not self._views.has_right(entry.client.key, needed):
                effects += [*self._withdraw(number), self._forbid(entry.client, entry.call, needed)]
        return effects

    def _cancel(self, client: ConnectedClient, call: int) -> list[ClientServiceEffect]:
        """End the subscription or the pending calls under this number."""
        topic = client.listening.get(call)
        if topic is None:
            return [effect for number in self._calls.of(client, call) for effect in self._withdraw(number)]
        return self._on_last_listener(topic) if self._listeners.remove(topic, client, call) else []

    def _on_first_listener(self, topic: Topic) -> list[ClientServiceEffect]:
        """The topic got its first listener at this node."""
        match topic.kind:
            case "pool" if topic.name not in self._limits.kept_pools:
                return [JoinPool(topic.name), *self._send_member_event(NewsItem(0, "join", self._own_id, topic.name))]
            case "question":
                return [RegisterQuestion(topic.name)]
            case _:
                return []

    def _on_last_listener(self, topic: Topic) -> list[ClientServiceEffect]:
        """The topic lost its last listener at this node."""
        match topic.kind:
            case "pool" if topic.name not in self._limits.kept_pools:
                return [LeavePool(topic.name), *self._send_member_event(NewsItem(0, "leave", self._own_id, topic.name))]
            case "question":
                return [UnregisterQuestion(topic.name)]
            case _:
                return []

    def _deliver_broadcast(self, speaker: int, pool: str, content: bytes) -> list[ClientServiceEffect]:
        """Deliver a broadcast of a peer or of a client of ours to every client that joined the pool here."""
        listeners = self._listeners.of(Topic("pool", pool))
        if not listeners:
            return []
        try:
            opened = presenters.broadcast(content, speaker)
            sender_name = presenters.client_name(opened.body)
            if problem := self._limits.bad_broadcast(len(opened.payload)):
                raise Malformed(problem)
        except Malformed as error:
            return [Report("broadcast malformed", pool, {"reason": str(error)})]
        effects: list[ClientServiceEffect] = []
        sender = self._views.node_id(opened.node)
        for client, call in listeners:
            item = PoolItem(call, pool, sender, sender_name, client.missed)
            client.missed = 0
            effects.append(self._reply(client, item, opened.payload))
        return effects

    def _send_event(self, seen: EventSeen) -> list[ClientServiceEffect]:
        """Send an event to every client that listens to events."""
        event = seen.event
        sender = self._views.node_id(event.id.origin)
        return [
            self._reply(client, EventItem(call, presenters.id_text(event.id), event.type, sender), event.content)
            for client, call in (*self._listeners.of(Topic("events")), *self._listeners.of(Topic("news")))
        ]

    def _send_member_event(self, item: NewsItem) -> list[ClientServiceEffect]:
        """Send a change of a node to every client that listens; changes of a pool only to clients that may read it."""
        right = RequiredRight(Right.READ, item.pool)
        return [
            self._reply(client, replace(item, call=call))
            for client, call in self._listeners.of(Topic("news"))
            if not item.pool or self._views.has_right(client.key, right)
        ]

    @property
    def _own_id(self) -> int:
        return self._views.node_id(self._identifier)

    def _send_question(self, event: Questioned) -> list[ClientServiceEffect]:
        """Send a question to the first client that offered to answer it: a node gives one answer."""
        for client, call in self._listeners.of(Topic("question", event.question))[:1]:
            item = QuestionItem(call, presenters.id_text(event.query), event.question, self._views.node_id(event.asker))
            return [self._reply(client, item, event.content)]
        return []

    # Replies.

    def _done(self, client: ConnectedClient, call: int, result: object = None) -> Whisper:
        return self._reply(client, Done(call), b"" if result is None else msgspec.json.encode(result))

    def _refuse(self, client: ConnectedClient, call: int, reason: str) -> Whisper:
        return self._fail(client, call, "refused", reason)

    def _forbid(self, client: ConnectedClient, call: int, right: RequiredRight) -> Whisper:
        self.counts["requests_forbidden"] += 1
        return self._fail(client, call, NO_RIGHT, refusal(right))

    def _fail(self, client: ConnectedClient, call: int, kind: str, reason: str) -> Whisper:
        return self._reply(client, Failed(call, kind, reason[:REASON_LENGTH_MAX]))

    def _reply(self, client: ConnectedClient, reply: NodeReply, payload: bytes = b"") -> Whisper:
        return Whisper(client.instance, messages.encode(self._identifier, reply, payload))
