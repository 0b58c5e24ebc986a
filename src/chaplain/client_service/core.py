"""The desk: answers clients, and listens on their behalf.

It decides which layer a request is for, who hears what, and when a client asks too much. It refuses to know how the
layers work: it hands their inputs on and their news back.

Invariants:
- every request gets exactly one `Done`, `Failed` or `Started`, unless its session ends first;
- a listener hears of a pool only between its `Started` and its `Cancel`, and only while it has the right to;
- a call handed to another layer is settled there, or withdrawn when nobody waits for it any more;
- a question is registered exactly while some client of this node listens for it;
- this node is in a pool exactly while some client of it listens there, or it is one of those that it keeps;
- whatever is about a stream is handed on only for who has the right to it;
- whatever makes something happen is done only for who cannot have given it up: what comes later is refused;
- what a client may have open is bounded (`DeskSettings`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import assert_never

import msgspec
from msgspec.structs import replace

from chaplain.client_service import messages, presenters
from chaplain.client_service.budgets import Budgets
from chaplain.client_service.calls import OpenCalls
from chaplain.client_service.events import (
    DeskEffect,
    DeskInput,
    DeskSettings,
    ForLayer,
    NodeViews,
    RightsChanged,
    RotationWanted,
)
from chaplain.client_service.limits import REASON_LENGTH_MAX, bad_target
from chaplain.client_service.member_events import item_of
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
    ListenNews,
    LookUp,
    NewsItem,
    NodeReply,
    PoolItem,
    QuestionItem,
    RotateKeys,
    ShoutToPool,
    Started,
)
from chaplain.client_service.sessions import ConnectedClient, Listeners, Topic
from chaplain.core import Report, Requested, Settled, Withdrawn
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
from chaplain.rights import NO_RIGHT, NOT_EXECUTOR, RequiredRight, Right, refusal
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel

NOT_ALLOWED = "not_allowed"
"""The kind of a refusal of what only admins may, for programs."""
TOO_LATE = "unreachable"
"""The kind of a refusal of what came when its client may have given it up."""
NO_STATEMENTS = "this node executes no statements: its database is set to none"


class DeskCore:
    def __init__(self, identifier: int, settings: DeskSettings, views: NodeViews) -> None:
        self.counts: Counter[str] = Counter()
        self._identifier = identifier
        self._settings = settings
        self._views = views
        self._limits = views.limits
        self._guests: dict[bytes, ConnectedClient] = {}
        self._listeners = Listeners()
        self._calls = OpenCalls()
        self._budgets = Budgets(settings.spread_per_second_max)

    def deadline(self) -> int | None:
        return None

    def step(self, now_ns: int, event: DeskInput) -> list[DeskEffect]:
        match event:
            case Entered() if event.peer.client:
                self._guests[event.peer.instance] = ConnectedClient(
                    event.peer.instance, event.peer.client, event.peer.key
                )
                return []
            case Exited() if event.peer.client:
                return self._see_out(event.peer.instance)
            case Entered() | Exited() | Joined() | Left() | MemberChanged():
                return self._tell_news(item_of(event, self._views.node_id))
            case Whispered():
                return self._serve(now_ns, event)
            case Shouted():
                return self._pass_on(event.peer.identifier, event.pool, event.content)
            case Gapped():
                return self._count_missed(event)
            case EventSeen():
                return self._tell_event(event)
            case Questioned():
                return self._tell_question(event)
            case QueryDecided():
                return self._finish(event.call, presenters.answer(event.answer, self._views.node_id))
            case Acknowledged():
                return self._finish_fire(event)
            case Rotated():
                return self._finish_rotation(event)
            case Settled():
                return self._settle(event)
            case RightsChanged():
                return self._forbid_what_goes_on()
            case _:
                assert_never(event)

    # Sessions.

    def _see_out(self, instance: bytes) -> list[DeskEffect]:
        guest = self._guests.pop(instance, None)
        if guest is None:
            return []
        withdrawn = [effect for number in self._calls.of(guest) for effect in self._withdraw(number)]
        return [*withdrawn, *(effect for topic in self._listeners.drop(guest) for effect in self._end(topic))]

    def _count_missed(self, event: Gapped) -> list[DeskEffect]:
        """A listener's queue was full, or what a node told us did not arrive: the next pool item says how many."""
        if event.peer.client and event.outgoing:
            concerned = [guest for guest in (self._guests.get(event.peer.instance),) if guest is not None]
        elif not event.peer.client and not event.outgoing:
            concerned = [guest for guest in self._guests.values() if guest.is_in_a_pool]
        else:
            return []
        for guest in concerned:
            guest.missed += event.count
        return []

    # Requests.

    def _serve(self, now_ns: int, event: Whispered) -> list[DeskEffect]:
        guest = self._guests.get(event.peer.instance)
        if guest is None:
            return []
        try:
            opened = parcel.decode(event.content)
            if opened.layer != Layer.CLIENT:
                raise Malformed(f"parcel: layer {opened.layer} is not for the desk")
            request = messages.decode_request(opened.body)
        except Malformed as error:
            self.counts["requests_malformed"] += 1
            return [Report("request malformed", guest.name, {"reason": str(error)})]
        self.counts["requests"] += 1
        if self._is_late(guest, request):
            self.counts["requests_late"] += 1
            return [self._fail(guest, request.call, TOO_LATE, "it came too late to be done: do it again")]
        if messages.is_spread(request) and not self._budgets.spend(now_ns, guest.key):
            self.counts["requests_too_often"] += 1
            often = f"every node acts on this, and this client has had {self._settings.spread_per_second_max} a second"
            return [self._fail(guest, request.call, "busy", f"{often}: do it again later")]
        return self._answer(guest, request, opened.payload)

    def _is_late(self, guest: ConnectedClient, request: ClientRequest) -> bool:
        """Whether the client may have given the request up, for all we know."""
        late = self._views.unheard_ns(guest.instance) > self._settings.unheard_ns_max
        return late and not messages.is_repeatable(request)

    def _answer(self, guest: ConnectedClient, request: ClientRequest, payload: bytes) -> list[DeskEffect]:
        call = request.call
        match request:
            case GetStatus():
                return [self._reply(guest, Done(call), self._views.status())]
            case GetMembers():
                return [self._reply(guest, Done(call), self._views.members())]
            case AskQuestion():
                return self._ask(guest, request, payload)
            case RotateKeys() if not self._views.is_admin(guest.key):
                self.counts["requests_forbidden"] += 1
                return [self._fail(guest, call, NOT_ALLOWED, "only an admin may replace the cluster's key")]
            case RotateKeys():
                return self._hand_on(guest, call, RotationWanted)
            case LookUp() | Instruct():
                return self._pass_to_layer(guest, request, payload)
            case FireEvent() | FireAndWait():
                return self._fire(guest, request, payload)
            case ShoutToPool():
                return self._shout(guest, request, payload)
            case ListenEvents():
                return self._listen(guest, call, Topic("events"))
            case ListenNews():
                return self._listen(guest, call, Topic("news"))
            case JoinAPool():
                return self._listen(guest, call, Topic("pool", request.pool))
            case AnswerQuestions():
                return self._listen(guest, call, Topic("question", request.question))
            case GiveAnAnswer():
                return self._give_answer(guest, request, payload)
            case Cancel():
                return [*self._cancel(guest, call), self._done(guest, call)]
            case _:
                assert_never(request)

    def _pass_to_layer(self, guest: ConnectedClient, request: LookUp | Instruct, payload: bytes) -> list[DeskEffect]:
        layer = request.layer
        if layer == Layer.EXECUTOR and layer not in self._views.layers:
            return [self._fail(guest, request.call, NOT_EXECUTOR, NO_STATEMENTS)]
        if layer not in self._views.layers:
            return [self._refuse(guest, request.call, f"this node does not serve layer {layer}")]
        want = self._views.wants(layer, request.body)
        if want is not None and not self._views.may(guest.key, want):
            return [self._forbid(guest, request.call, want)]

        def make(number: int) -> ForLayer:
            return ForLayer(layer, Requested(number, guest.name, request.body, payload))

        return self._hand_on(guest, request.call, make, layer, want)

    def _hand_on(
        self,
        guest: ConnectedClient,
        call: int,
        make: Callable[[int], AskQuery | Fire | RotationWanted | ForLayer],
        layer: int | None = None,
        want: RequiredRight | None = None,
    ) -> list[DeskEffect]:
        if guest.waiting >= self._settings.calls_max:
            return [self._refuse(guest, call, f"{guest.waiting} calls are open already: wait for an answer first")]
        return [make(self._calls.open(guest, call, layer, want))]

    def _withdraw(self, number: int) -> list[DeskEffect]:
        entry = self._calls.close(number)
        return [] if entry is None or entry.layer is None else [ForLayer(entry.layer, Withdrawn(number))]

    def _finish(self, number: int, result: object) -> list[DeskEffect]:
        entry = self._calls.close(number)
        return [] if entry is None else [self._done(entry.guest, entry.call, result)]

    def _settle(self, settled: Settled) -> list[DeskEffect]:
        entry = self._calls.close(settled.call)
        if entry is None:
            return []
        if settled.kind:
            return [self._fail(entry.guest, entry.call, settled.kind, settled.reason)]
        return [self._reply(entry.guest, Done(entry.call), settled.payload)]

    def _finish_fire(self, event: Acknowledged) -> list[DeskEffect]:
        if event.fired:
            return self._finish(event.call, presenters.acknowledgement(event, self._views.node_id))
        entry = self._calls.close(event.call)
        reason = "too many events wait to be acknowledged here already: do it later, or without"
        return [] if entry is None else [self._refuse(entry.guest, entry.call, reason)]

    def _finish_rotation(self, event: Rotated) -> list[DeskEffect]:
        entry = self._calls.close(event.call)
        if entry is None:
            return []
        if event.done:
            return [self._done(entry.guest, entry.call, {"rotated": True})]
        missing = ", ".join(str(self._views.node_id(identifier)) for identifier in event.missing)
        reason = event.reason or f"step {event.step} not confirmed by node {missing}; both keys stay in use: ask again"
        return [self._refuse(entry.guest, entry.call, reason)]

    def _ask(self, guest: ConnectedClient, request: AskQuestion, payload: bytes) -> list[DeskEffect]:
        if problem := presenters.bad_name(request.question) or self._limits.bad_content(len(payload)):
            return [self._refuse(guest, request.call, problem)]
        timeout_ns = self._bounded(request.timeout_ns)
        return self._hand_on(
            guest, request.call, lambda number: AskQuery(number, request.question, timeout_ns, payload)
        )

    def _bounded(self, timeout_ns: int) -> int:
        return min(max(timeout_ns, 0), self._settings.question_timeout_ns_max)

    def _fire(self, guest: ConnectedClient, request: FireEvent | FireAndWait, payload: bytes) -> list[DeskEffect]:
        problem = (
            presenters.bad_name(request.event) or bad_target(request.target) or self._limits.bad_content(len(payload))
        )
        if problem:
            return [self._refuse(guest, request.call, problem)]
        target = ALL if request.target is None else self._views.identifier(request.target)
        if isinstance(request, FireEvent):
            return [Fire(request.event, payload, target), self._done(guest, request.call)]
        timeout_ns = self._bounded(request.timeout_ns)
        return self._hand_on(
            guest, request.call, lambda number: Fire(request.event, payload, target, number, timeout_ns)
        )

    def _shout(self, guest: ConnectedClient, request: ShoutToPool, payload: bytes) -> list[DeskEffect]:
        if problem := presenters.bad_name(request.pool) or self._limits.bad_broadcast(len(payload)):
            return [self._refuse(guest, request.call, problem)]
        want = RequiredRight(Right.WRITE, request.pool)
        if not self._views.may(guest.key, want):
            return [self._forbid(guest, request.call, want)]
        content = parcel.encode(Parcel(self._identifier, Layer.CLIENT, guest.name.encode(), payload))
        shout = Shout(request.pool, content)
        return [shout, *self._pass_on(self._identifier, request.pool, content), self._done(guest, request.call)]

    def _give_answer(self, guest: ConnectedClient, request: GiveAnAnswer, payload: bytes) -> list[DeskEffect]:
        try:
            query = presenters.query_id(request.query)
        except Malformed as error:
            return [self._refuse(guest, request.call, str(error))]
        if problem := self._limits.bad_content(len(payload)):
            return [self._refuse(guest, request.call, problem)]
        return [GiveAnswer(query, payload), self._done(guest, request.call)]

    # Listening.

    def _listen(self, guest: ConnectedClient, call: int, topic: Topic) -> list[DeskEffect]:
        if problem := self._bad_topic(topic):
            return [self._refuse(guest, call, problem)]
        want = RequiredRight(Right.READ, topic.name)
        if topic.kind == "pool" and not self._views.may(guest.key, want):
            return [self._forbid(guest, call, want)]
        if len(guest.listening) >= self._settings.listeners_max:
            open_already = f"{len(guest.listening)} listeners are open already"
            return [self._refuse(guest, call, f"{open_already}: leave a pool, or close a listener")]
        if call in guest.listening:
            return [self._refuse(guest, call, f"call {call} listens already")]
        effects = self._begin(topic) if self._listeners.add(topic, guest, call) else []
        return [*effects, self._reply(guest, Started(call))]

    def _bad_topic(self, topic: Topic) -> str:
        match topic.kind:
            case "events" | "news":
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

    def _forbid_what_goes_on(self) -> list[DeskEffect]:
        """Rights have changed: end the listening and the waiting calls that are not allowed any more."""
        effects: list[DeskEffect] = []
        for guest in self._guests.values():
            for call, topic in list(guest.listening.items()):
                want = RequiredRight(Right.READ, topic.name)
                if topic.kind == "pool" and not self._views.may(guest.key, want):
                    effects += [*self._cancel(guest, call), self._forbid(guest, call, want)]
        for number, entry, want in self._calls.with_rights():
            if not self._views.may(entry.guest.key, want):
                effects += [*self._withdraw(number), self._forbid(entry.guest, entry.call, want)]
        return effects

    def _cancel(self, guest: ConnectedClient, call: int) -> list[DeskEffect]:
        topic = guest.listening.get(call)
        if topic is None:
            return [effect for number in self._calls.of(guest, call) for effect in self._withdraw(number)]
        return self._end(topic) if self._listeners.remove(topic, guest, call) else []

    def _begin(self, topic: Topic) -> list[DeskEffect]:
        """Somebody here listens to it now."""
        match topic.kind:
            case "pool" if topic.name not in self._limits.kept_pools:
                return [JoinPool(topic.name), *self._tell_news(NewsItem(0, "join", self._own_id, topic.name))]
            case "question":
                return [RegisterQuestion(topic.name)]
            case _:
                return []

    def _end(self, topic: Topic) -> list[DeskEffect]:
        """Nobody here listens to it any more."""
        match topic.kind:
            case "pool" if topic.name not in self._limits.kept_pools:
                return [LeavePool(topic.name), *self._tell_news(NewsItem(0, "leave", self._own_id, topic.name))]
            case "question":
                return [UnregisterQuestion(topic.name)]
            case _:
                return []

    def _pass_on(self, speaker: int, pool: str, content: bytes) -> list[DeskEffect]:
        """Give a broadcast, of a peer or of one of our own clients, to every client that joined here."""
        listeners = self._listeners.of(Topic("pool", pool))
        if not listeners:
            return []
        try:
            opened = presenters.broadcast(content, speaker)
            client = presenters.client_name(opened.body)
            if problem := self._limits.bad_broadcast(len(opened.payload)):
                raise Malformed(problem)
        except Malformed as error:
            return [Report("broadcast malformed", pool, {"reason": str(error)})]
        effects: list[DeskEffect] = []
        sender = self._views.node_id(opened.node)
        for guest, call in listeners:
            item = PoolItem(call, pool, sender, client, guest.missed)
            guest.missed = 0
            effects.append(self._reply(guest, item, opened.payload))
        return effects

    def _tell_event(self, seen: EventSeen) -> list[DeskEffect]:
        event = seen.event
        sender = self._views.node_id(event.id.origin)
        return [
            self._reply(guest, EventItem(call, presenters.id_text(event.id), event.type, sender), event.content)
            for guest, call in (*self._listeners.of(Topic("events")), *self._listeners.of(Topic("news")))
        ]

    def _tell_news(self, item: NewsItem) -> list[DeskEffect]:
        """Whatever is about a pool is for those who may read it."""
        want = RequiredRight(Right.READ, item.pool)
        return [
            self._reply(guest, replace(item, call=call))
            for guest, call in self._listeners.of(Topic("news"))
            if not item.pool or self._views.may(guest.key, want)
        ]

    @property
    def _own_id(self) -> int:
        return self._views.node_id(self._identifier)

    def _tell_question(self, event: Questioned) -> list[DeskEffect]:
        """The first client that offered to answer is asked: one node gives one answer."""
        for guest, call in self._listeners.of(Topic("question", event.question))[:1]:
            item = QuestionItem(call, presenters.id_text(event.query), event.question, self._views.node_id(event.asker))
            return [self._reply(guest, item, event.content)]
        return []

    # Replies.

    def _done(self, guest: ConnectedClient, call: int, result: object = None) -> Whisper:
        return self._reply(guest, Done(call), b"" if result is None else msgspec.json.encode(result))

    def _refuse(self, guest: ConnectedClient, call: int, reason: str) -> Whisper:
        return self._fail(guest, call, "refused", reason)

    def _forbid(self, guest: ConnectedClient, call: int, want: RequiredRight) -> Whisper:
        self.counts["requests_forbidden"] += 1
        return self._fail(guest, call, NO_RIGHT, refusal(want))

    def _fail(self, guest: ConnectedClient, call: int, kind: str, reason: str) -> Whisper:
        return self._reply(guest, Failed(call, kind, reason[:REASON_LENGTH_MAX]))

    def _reply(self, guest: ConnectedClient, reply: NodeReply, payload: bytes = b"") -> Whisper:
        return Whisper(guest.instance, messages.encode(self._identifier, reply, payload))
