"""The client's protocol: calls out, answers back, over whichever session is up.

Decides which session a call goes through, when it has failed, and whether it may be repeated on another session.
Refuses to know threads, futures and sockets; how sessions are kept up is the keeper's business.

Invariants:
- a call ends in exactly one of `Returned` and `Raised`, or is cancelled; nothing comes for it afterwards;
- an answer counts only on the session that the call was last sent on;
- a call that is not safe to repeat is sent at most once;
- at most `calls_max` calls are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import assert_never

from chaplain.client.protocol.connections import ConnectionManager, News
from chaplain.client.protocol.deadlines import Deadlines
from chaplain.client.protocol.endpoints import Endpoints
from chaplain.client.protocol.events import (
    Cancelled,
    ClientCall,
    ClientEffect,
    ClientInput,
    Connect,
    Failure,
    Item,
    ListeningBegan,
    Measure,
    Raised,
    Returned,
    SessionLost,
    SessionReady,
    Settings,
    Yielded,
)
from chaplain.client.protocol.journal.core import ClientJournal
from chaplain.client.protocol.journal.events import (
    AskCommand,
    ConfigRequestCommand,
    JournalInput,
    NodeSpoke,
    NoNodeAccepts,
    ReadCommand,
    ResolveCommand,
    RetryCommand,
    SendToNode,
    SessionDown,
    SessionHurt,
    SessionUp,
    TakenCommand,
    WriteCommand,
)
from chaplain.client.protocol.journal.events import Wish as JournalWish
from chaplain.client.protocol.pending_call import Pending, Wish, fits
from chaplain.client.protocol.session import ClientSession
from chaplain.client_service import messages
from chaplain.client_service.messages import (
    Cancel,
    Done,
    EventItem,
    Failed,
    NewsItem,
    NodeReply,
    PoolItem,
    QuestionItem,
    Started,
)
from chaplain.core import (
    Arrived,
    Connected,
    Core,
    Disconnected,
    Drained,
    Flushed,
    Heard,
    Knocked,
    Persisted,
    PersistFailed,
    Report,
    Serve,
    Stopping,
    Woken,
    soonest,
)
from chaplain.errors import Malformed
from chaplain.journal.messages import client
from chaplain.journal.messages.client import MembersAre
from chaplain.link.events import CommandDropped, LinkEffect, LinkInput, Missed, Said
from chaplain.wire import command, parcel
from chaplain.wire.command import Alive, Broadcast, DecenAck, Hello, Join, Leave, Ping
from chaplain.wire.parcel import Layer, Parcel


class ClientCore:
    def __init__(
        self,
        link: Core[LinkInput, LinkEffect],
        identifier: int,
        endpoints: Sequence[str],
        settings: Settings,
        random: Random,
        *,
        journal: ClientJournal | None = None,
        learns: bool = True,
    ) -> None:
        """One that does not learn talks to those whom it was given, and to nobody else."""
        self._learns = learns
        self._identifier = identifier
        self._journal = journal
        self._settings = settings
        self._endpoints = Endpoints(endpoints, settings, random)
        self._keeper = ConnectionManager(link, self._endpoints, settings)
        self._calls: dict[int, Pending] = {}
        self._deadlines = Deadlines()
        self._effects: list[ClientEffect] = []
        self._stopped = False
        self._idle: frozenset[bytes] = frozenset()
        """Sessions with nodes that said that they are no executors."""

    def step(self, now_ns: int, event: ClientInput) -> list[ClientEffect]:
        match event:  # in the order of how often they come
            case Drained():
                self._to_journal(now_ns, event)
                self._keeper.drained(now_ns, event)
            case Arrived() | Flushed() | Connected() | Disconnected():
                self._keeper.host(now_ns, event)
            case ClientCall() | Connect() | Measure():
                self._called(now_ns, event)
            case (
                WriteCommand()
                | ReadCommand()
                | AskCommand()
                | ConfigRequestCommand()
                | ResolveCommand()
                | RetryCommand()
            ):
                self._wished(now_ns, event)
            case TakenCommand():
                self._to_journal(now_ns, event)
            case Cancelled():
                self._cancelled(now_ns, event.call)
            case Woken():
                self._keeper.tick(now_ns)
                self._expire(now_ns)
                self._to_journal(now_ns, event)
            case Stopping():
                self._stop(now_ns)
            case Knocked() | Heard() | Persisted() | PersistFailed() | Serve():
                pass  # a client binds nothing, hears no beacons and writes no files
            case _:
                assert_never(event)
        self._settle(now_ns)
        effects = [*self._keeper.effects, *self._effects]
        self._keeper.effects, self._effects = [], []
        return effects

    def deadline(self) -> int | None:
        journal = None if self._journal is None or self._stopped else self._journal.deadline()
        return soonest((self._keeper.deadline(), self._deadlines.next_ns(), journal))

    # The journal.

    def _wished(self, now_ns: int, wish: JournalWish) -> None:
        if self._stopped or self._journal is None:
            self._effects.append(Raised(wish.call, Failure.CLOSED, "this client is closed: connect again"))
        else:
            self._to_journal(now_ns, wish)

    def _to_journal(self, now_ns: int, event: JournalInput) -> None:
        for effect in self._journal.step(now_ns, event) if self._journal is not None else ():
            if not isinstance(effect, SendToNode):
                self._effects.append(effect)
            elif (session := self._keeper.sessions.get(effect.instance)) is not None:
                body = client.encode(effect.message)
                content = parcel.encode(Parcel(self._identifier, Layer.JOURNAL, body, effect.payload))
                self._keeper.say(now_ns, session.alive(content))

    # Calls of the program.

    def _called(self, now_ns: int, wish: Wish) -> None:
        pending = Pending(wish)
        assert pending.call not in self._calls, "a call's number is in use until it ends"
        if self._stopped:
            self._effects.append(Raised(pending.call, Failure.CLOSED, "this client is closed: connect again"))
        elif len(self._calls) >= self._settings.calls_max:
            bound = self._settings.calls_max
            reason = f"{bound} calls are under way, which is the bound: wait for some of them first"
            self._effects.append(Raised(pending.call, Failure.BUSY, reason))
        else:
            self._calls[pending.call] = pending
            self._deadlines.set(pending.call, now_ns + wish.timeout_ns)
            self._place(now_ns, pending)

    def _place(self, now_ns: int, pending: Pending) -> None:
        """Send the call on the session that serves, or leave it waiting for one."""
        session = self._session_for(pending)
        if session is not None:
            self._send(now_ns, pending, session)
        elif self._endpoints.all_refused():
            self._fail(pending, Failure.REFUSED, self._nobody())

    def _session_for(self, pending: Pending) -> ClientSession | None:
        """The one that serves. Executors are asked first where one is wanted: the others may have become one since."""
        found = [one for one in self._keeper.sessions.values() if one.endpoint not in pending.declined]
        executors = [one for one in found if one.instance not in self._idle] if pending.for_executors else []
        return next(iter(executors or found), None)

    def _send(self, now_ns: int, pending: Pending, session: ClientSession) -> None:
        pending.instance = session.instance
        match pending.wish:
            case Connect():
                self._finish(pending, Returned(pending.call, session.endpoint.encode()))
            case Measure():
                self._keeper.say(now_ns, session.ping(now_ns, pending.call))
            case ClientCall(request, payload):
                content = messages.encode(self._identifier, request, payload)
                self._keeper.say(now_ns, session.alive(content))
            case _:
                assert_never(pending.wish)

    def _cancelled(self, now_ns: int, call: int) -> None:
        pending = self._calls.get(call)
        if pending is not None:
            self._forget(call)
            self._hush(now_ns, pending)
        else:
            self._to_journal(now_ns, Cancelled(call))

    def _hush(self, now_ns: int, pending: Pending) -> None:
        """Nobody listens any more: the node need not send items, nor keep a layer's answer."""
        session = self._keeper.sessions.get(pending.instance or b"")
        if pending.open_at_node and session is not None:
            content = messages.encode(self._identifier, Cancel(pending.call))
            self._keeper.say(now_ns, session.alive(content))

    def _stop(self, now_ns: int) -> None:
        self._stopped = True
        self._to_journal(now_ns, Stopping())
        for pending in list(self._calls.values()):
            self._hush(now_ns, pending)
            if pending.repeatable or pending.instance is None:
                when = "" if pending.started else " before an answer came"
                self._fail(pending, Failure.CLOSED, f"{pending.name}: the client was closed{when}")
            else:
                self._fail(pending, Failure.UNKNOWN, self._unsure(pending, "the client was closed"))
        self._keeper.drained(now_ns, Drained())  # what was said last must leave before we hang up
        self._keeper.stop(now_ns)

    # What became of the calls.

    def _finish(self, pending: Pending, effect: Returned | Raised) -> None:
        self._forget(pending.call)
        self._effects.append(effect)

    def _fail(self, pending: Pending, failure: Failure, reason: str) -> None:
        self._finish(pending, Raised(pending.call, failure, reason))

    def _forget(self, call: int) -> None:
        del self._calls[call]
        self._deadlines.clear(call)

    def _expire(self, now_ns: int) -> None:
        for call in self._deadlines.pop_due(now_ns):
            pending = self._calls[call]
            waited = f"{pending.wish.timeout_ns / 1e9:g} s"
            session = self._keeper.sessions.get(pending.instance or b"")
            if session is None and pending.declined:
                said = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in pending.declined.items())
                self._fail(pending, Failure.NOT_EXECUTOR, f"{pending.name}: waited {waited} for another node; {said}")
            elif session is None:
                failure = Failure.REFUSED if self._endpoints.any_refused() else Failure.UNREACHABLE
                self._fail(pending, failure, f"{pending.name}: waited {waited}; {self._nobody()}")
            elif pending.repeatable:
                silent = f"{pending.name}: {session.endpoint} gave no answer within {waited}"
                self._fail(pending, Failure.UNREACHABLE, f"{silent}; {pending.advice}")
                self._hush(now_ns, pending)
            else:
                self._fail(pending, Failure.UNKNOWN, self._unsure(pending, f"no answer came within {waited}"))

    def _nobody(self) -> str:
        return f"no node let us in ({self._endpoints.describe()}); {self._endpoints.advice()}"

    def _unsure(self, pending: Pending, why: str) -> str:
        return f"{pending.name}: {why}, so it may or may not have happened; check before doing it again"

    # News of the sessions.

    def _settle(self, now_ns: int) -> None:
        keeper, journal = self._keeper, self._journal
        while keeper.news:
            self._hear(now_ns, keeper.news.popleft())
        useless = self._idle if journal is None else self._idle | journal.barred
        if useless or self._endpoints.aside:
            keeper.set_aside(now_ns, useless)
        if not keeper.sessions and self._endpoints.all_refused():
            for pending in list(self._calls.values()):
                self._fail(pending, Failure.REFUSED, self._nobody())
            if journal is not None and journal.waits:
                self._to_journal(now_ns, NoNodeAccepts(self._nobody()))

    def _hear(self, now_ns: int, news: News) -> None:
        match news:
            case SessionReady():
                self._to_journal(now_ns, SessionUp(news.instance))
                for pending in [pending for pending in self._calls.values() if pending.instance is None]:
                    self._place(now_ns, pending)
            case SessionLost():
                self._idle -= {news.instance}
                self._to_journal(now_ns, SessionDown(news.instance, news.reason))
                for pending in [pending for pending in self._calls.values() if pending.instance == news.instance]:
                    self._displaced(now_ns, pending, f"the connection to {news.endpoint} was lost ({news.reason})")
            case Said():
                for spoken in news.commands:
                    self._said(now_ns, news.instance, spoken)
            case Missed():
                self._missed(news)
                self._to_journal(now_ns, SessionHurt(news.instance))
            case CommandDropped():
                self._dropped(news)
                self._to_journal(now_ns, SessionHurt(news.instance))
            case _:
                assert_never(news)

    def _displaced(self, now_ns: int, pending: Pending, why: str) -> None:
        pending.instance = None
        if not pending.repeatable:
            self._fail(pending, Failure.UNKNOWN, self._unsure(pending, why))
            return
        pending.moved = pending.started
        self._place(now_ns, pending)

    def _missed(self, missed: Missed) -> None:
        """Items may be among what was lost, so every listening on the session counts them; answers time out."""
        if (session := self._keeper.sessions.get(missed.instance)) is not None:
            session.forget_pings()
        for pending in self._calls.values():
            if pending.listens and pending.instance == missed.instance:
                pending.missed += missed.count

    def _dropped(self, dropped: CommandDropped) -> None:
        pending = self._calls.get(_call_in(dropped.command))
        if pending is not None and pending.instance == dropped.instance:
            reason = f"{pending.name}: not sent ({dropped.reason}); slow down and do it again"
            self._fail(pending, Failure.BUSY, reason)

    def _said(self, now_ns: int, instance: bytes, encoded: bytes) -> None:
        session = self._keeper.sessions.get(instance)
        if session is None:
            return
        try:
            spoken = command.decode(encoded)
            match spoken:
                case Alive():
                    self._alive(now_ns, instance, spoken.content)
                case Ping():
                    self._keeper.say(now_ns, session.acknowledge())
                case DecenAck():
                    self._answered(session.answered(now_ns))
                case Hello() | Broadcast() | Join() | Leave():
                    pass  # what nodes tell each other; it proves that this one is there
                case _:
                    assert_never(spoken)
        except Malformed as error:
            self._effects.append(Report("malformed", session.endpoint, {"reason": str(error)}))

    def _answered(self, answer: tuple[int | None, int] | None) -> None:
        call, round_trip_ns = answer or (None, 0)
        pending = None if call is None else self._calls.get(call)
        if pending is not None:
            self._finish(pending, Returned(pending.call, round_trip_ns.to_bytes(8, "big")))

    def _alive(self, now_ns: int, instance: bytes, content: bytes) -> None:
        carried = parcel.decode(content)
        if carried.layer == Layer.JOURNAL:
            self._of_journal(now_ns, NodeSpoke(instance, client.decode_node(carried.body), carried.payload))
        if carried.layer != Layer.CLIENT:
            return
        reply = messages.decode_reply(carried.body)
        pending = self._calls.get(reply.call)
        if pending is not None and pending.instance == instance:
            self._replied(now_ns, pending, reply, carried.payload)

    def _of_journal(self, now_ns: int, spoke: NodeSpoke) -> None:
        if not isinstance(spoke.message, MembersAre):
            self._to_journal(now_ns, spoke)
        elif self._learns:
            self._keeper.told(now_ns, spoke.message)

    def _replied(self, now_ns: int, pending: Pending, reply: NodeReply, payload: bytes) -> None:
        match reply:
            case Done():
                self._finish(pending, Returned(pending.call, payload))
            case Failed() if _failure_of(reply.kind) is Failure.NOT_EXECUTOR and pending.repeatable:
                self._declined(now_ns, pending, reply.reason)
            case Failed():
                self._fail(pending, _failure_of(reply.kind), f"{pending.name}: {reply.reason}")
            case Started():
                self._started(pending)
            case EventItem() | NewsItem() | PoolItem() | QuestionItem():
                self._yielded(pending, reply, payload)
            case _:
                assert_never(reply)

    def _declined(self, now_ns: int, pending: Pending, reason: str) -> None:
        """Another node is to be asked. It need not be there yet: a client has one session before it has two."""
        instance = pending.instance or b""
        pending.instance = None
        pending.declined[self._keeper.sessions[instance].endpoint] = reason
        self._idle |= {instance}
        if self._endpoints.has_others(pending.declined):
            self._place(now_ns, pending)
        else:
            self._fail(pending, Failure.NOT_EXECUTOR, f"{pending.name}: {reason}")

    def _started(self, pending: Pending) -> None:
        if not pending.listens:
            raise Malformed(f"{pending.name} is no listening, so it cannot start")
        self._deadlines.clear(pending.call)
        if not pending.started:
            pending.started = True
            self._effects.append(ListeningBegan(pending.call))

    def _yielded(self, pending: Pending, item: Item, payload: bytes) -> None:
        request = pending.wish.request if isinstance(pending.wish, ClientCall) else None
        if not fits(request, item):
            raise Malformed(f"{pending.name}: an item of something else")
        if isinstance(item, EventItem) and pending.saw_before(item.id):
            return
        missed = pending.missed + (item.missed if isinstance(item, PoolItem) else 0)
        self._effects.append(Yielded(pending.call, item, payload, missed, pending.moved))
        pending.missed, pending.moved = 0, False


def _failure_of(kind: str) -> Failure:
    """Nodes of a later version may know more kinds: whatever it was, they refused."""
    return next((failure for failure in Failure if failure.value == kind), Failure.REFUSED)


def _call_in(dropped: bytes) -> int:
    """Which call a command of our own carries; -1 for pings and for the journal's."""
    spoken = command.decode(dropped)
    carried = parcel.decode(spoken.content) if isinstance(spoken, Alive) else None
    return messages.decode_request(carried.body).call if carried and carried.layer == Layer.CLIENT else -1
