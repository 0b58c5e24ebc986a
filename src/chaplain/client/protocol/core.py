"""The client core: sends calls over the session that serves, and matches answers to calls.

Decides which session a call uses, when it has failed, and whether it may be repeated on another session. Knows no
threads, futures or sockets. `ConnectionManager` keeps the sessions up, and `ClientJournal` handles the journal.

Invariants:
- a call ends in exactly one of `Returned` and `Raised`, or is cancelled; it has no effect afterwards;
- an answer counts only on the session on which the call was last sent;
- a call that is not safe to repeat is sent at most once;
- at most `calls_max` calls are pending.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import assert_never

from chaplain.client.protocol.call_events import refusal
from chaplain.client.protocol.connections import ConnectionManager, SessionEvent
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
    JournalCommand,
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
from chaplain.client.protocol.pending_call import CallInput, Pending, fits
from chaplain.client.protocol.session import ClientSession
from chaplain.client_service import messages
from chaplain.client_service.messages import (
    Cancel,
    Done,
    EventItem,
    Failed,
    MessageItem,
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
)
from chaplain.errors import Malformed
from chaplain.journal.messages import client
from chaplain.journal.messages.client import MembersAre
from chaplain.link.events import CommandDropped, LinkEffect, LinkInput, Missed, Said
from chaplain.wire import command, parcel
from chaplain.wire.command import Alive, Broadcast, DecenAck, Hello, Join, Leave, Ping
from chaplain.wire.parcel import Layer, Parcel


class ClientCore:
    """The protocol of one client, as a pure core."""

    def __init__(
        self,
        link: Core[LinkInput, LinkEffect],
        identifier: int,
        endpoints: Sequence[str],
        settings: Settings,
        random: Random,
        *,
        journal: ClientJournal | None = None,
        learn_members: bool = True,
    ) -> None:
        """Without `learn_members`, the client connects to the given endpoints only."""
        self._learns_members = learn_members
        self._identifier = identifier
        self._journal = journal
        self._settings = settings
        self._endpoints = Endpoints(endpoints, settings, random)
        self._connections = ConnectionManager(link, self._endpoints, settings)
        self._calls: dict[int, Pending] = {}
        self._deadlines = Deadlines()
        self._effects: list[ClientEffect] = []
        self._stopped = False
        self._non_executors: frozenset[bytes] = frozenset()
        """Sessions with nodes that reported that they are not executors."""

    def step(self, now_ns: int, event: ClientInput) -> list[ClientEffect]:
        """Process one input and return the effects."""
        match event:  # most frequent first
            case Drained():
                self._step_journal(now_ns, event)
                self._connections.on_drained(now_ns, event)
            case Arrived() | Flushed() | Connected() | Disconnected():
                self._connections.on_host_event(now_ns, event)
            case ClientCall() | Connect() | Measure():
                self._on_call(now_ns, event)
            case (
                WriteCommand()
                | ReadCommand()
                | AskCommand()
                | ConfigRequestCommand()
                | ResolveCommand()
                | RetryCommand()
            ):
                self._on_journal_command(now_ns, event)
            case TakenCommand():
                self._step_journal(now_ns, event)
            case Cancelled():
                self._on_cancelled(now_ns, event.call)
            case Woken():
                self._connections.tick(now_ns)
                self._expire(now_ns)
                self._step_journal(now_ns, event)
            case Stopping():
                self._stop(now_ns)
            case Knocked() | Heard() | Persisted() | PersistFailed() | Serve():
                pass  # a client accepts no connections, receives no beacons and writes no files
            case _:
                assert_never(event)
        self._after_step(now_ns)
        effects = [*self._connections.effects, *self._effects]
        self._connections.effects, self._effects = [], []
        return effects

    def deadline(self) -> int | None:
        """When to step with `Woken`; None if nothing is due."""
        earliest = self._connections.deadline()
        for due_ns in (
            None if self._journal is None or self._stopped else self._journal.deadline(),
            self._deadlines.next_ns() if self._calls else None,
        ):
            if due_ns is not None and (earliest is None or due_ns < earliest):
                earliest = due_ns
        return earliest

    # The journal.

    def _on_journal_command(self, now_ns: int, journal_command: JournalCommand) -> None:
        if self._stopped or self._journal is None:
            self._effects.append(Raised(journal_command.call, Failure.CLOSED, "this client is closed: connect again"))
        else:
            self._step_journal(now_ns, journal_command)

    def _step_journal(self, now_ns: int, event: JournalInput) -> None:
        """Step the journal, and send its messages on their sessions."""
        for effect in self._journal.step(now_ns, event) if self._journal is not None else ():
            if not isinstance(effect, SendToNode):
                self._effects.append(effect)
            elif (session := self._connections.sessions.get(effect.instance)) is not None:
                body = client.encode(effect.message)
                content = parcel.encode(Parcel(self._identifier, Layer.JOURNAL, body, effect.payload))
                self._connections.send(now_ns, session.alive(content))

    # Calls of the program.

    def _on_call(self, now_ns: int, call_input: CallInput) -> None:
        pending = Pending(call_input)
        assert pending.call not in self._calls, "a call's number is in use until it ends"
        if self._stopped:
            self._effects.append(Raised(pending.call, Failure.CLOSED, "this client is closed: connect again"))
        elif len(self._calls) >= self._settings.calls_max:
            bound = self._settings.calls_max
            reason = f"{bound} calls are pending, which is the limit: wait for some of them first"
            self._effects.append(Raised(pending.call, Failure.BUSY, reason))
        else:
            self._calls[pending.call] = pending
            self._deadlines.set(pending.call, now_ns + call_input.timeout_ns)
            self._dispatch(now_ns, pending)

    def _dispatch(self, now_ns: int, pending: Pending) -> None:
        """Send the call on the session that serves, or leave it waiting for one."""
        session = self._session_for(pending)
        if session is not None:
            self._send(now_ns, pending, session)
        elif self._endpoints.all_refused():
            self._fail(pending, Failure.REFUSED, self._no_node_reason())

    def _session_for(self, pending: Pending) -> ClientSession | None:
        """The session for a call: the oldest one whose node has not declined this call.

        A call for executors goes to a node that has not reported that it is no executor. If there is none, it goes to
        one of the others, which may have become an executor since.
        """
        found = [one for one in self._connections.sessions.values() if one.endpoint not in pending.declined]
        executors = [one for one in found if one.instance not in self._non_executors] if pending.for_executors else []
        return next(iter(executors or found), None)

    def _send(self, now_ns: int, pending: Pending, session: ClientSession) -> None:
        pending.instance = session.instance
        match pending.call_input:
            case Connect():
                self._finish(pending, Returned(pending.call, session.endpoint.encode()))
            case Measure():
                self._connections.send(now_ns, session.ping(now_ns, pending.call))
            case ClientCall(request, payload):
                content = messages.encode(self._identifier, request, payload)
                self._connections.send(now_ns, session.alive(content))
            case _:
                assert_never(pending.call_input)

    def _on_cancelled(self, now_ns: int, call: int) -> None:
        pending = self._calls.get(call)
        if pending is not None:
            self._forget(call)
            self._cancel_remote(now_ns, pending)
        else:
            self._step_journal(now_ns, Cancelled(call))

    def _cancel_remote(self, now_ns: int, pending: Pending) -> None:
        """Tell the node that the caller no longer waits: it stops sending items or drops a layer's answer."""
        session = self._connections.sessions.get(pending.instance or b"")
        if pending.holds_node_state and session is not None:
            content = messages.encode(self._identifier, Cancel(pending.call))
            self._connections.send(now_ns, session.alive(content))

    def _stop(self, now_ns: int) -> None:
        self._stopped = True
        self._step_journal(now_ns, Stopping())
        for pending in list(self._calls.values()):
            self._cancel_remote(now_ns, pending)
            if pending.repeatable or pending.instance is None:
                when = "" if pending.started else " before an answer came"
                self._fail(pending, Failure.CLOSED, f"{pending.name}: the client was closed{when}")
            else:
                self._fail(pending, Failure.UNKNOWN, self._unknown_reason(pending, "the client was closed"))
        self._connections.on_drained(now_ns, Drained())  # the last messages must leave before the connections close
        self._connections.stop(now_ns)

    # Outcomes of calls.

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
            waited = f"{pending.call_input.timeout_ns / 1e9:g} s"
            session = self._connections.sessions.get(pending.instance or b"")
            if session is None and pending.declined:
                refusals = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in pending.declined.items())
                reason = f"{pending.name}: waited {waited} for another node; {refusals}"
                self._fail(pending, Failure.NOT_EXECUTOR, reason)
            elif session is None:
                failure = Failure.REFUSED if self._endpoints.any_refused() else Failure.UNREACHABLE
                self._fail(pending, failure, f"{pending.name}: waited {waited}; {self._no_node_reason()}")
            elif pending.repeatable:
                silent = f"{pending.name}: {session.endpoint} gave no answer within {waited}"
                self._fail(pending, Failure.UNREACHABLE, f"{silent}; {pending.advice}")
                self._cancel_remote(now_ns, pending)
            else:
                self._fail(pending, Failure.UNKNOWN, self._unknown_reason(pending, f"no answer came within {waited}"))

    def _no_node_reason(self) -> str:
        """Error text: why no node accepts us."""
        return f"no node let us in ({self._endpoints.describe()}); {self._endpoints.advice()}"

    def _unknown_reason(self, pending: Pending, why: str) -> str:
        """Error text: the call may or may not have taken effect."""
        return f"{pending.name}: {why}, so it may or may not have happened; check before doing it again"

    # Session events.

    def _after_step(self, now_ns: int) -> None:
        """Process session events, report unusable sessions, and fail all calls if every node refuses us."""
        connections, journal = self._connections, self._journal
        while connections.session_events:
            self._on_session_event(now_ns, connections.session_events.popleft())
        unusable = self._non_executors if journal is None else self._non_executors | journal.unusable_sessions
        if unusable or self._endpoints.unusable:
            connections.mark_unusable(now_ns, unusable)
        if not connections.sessions and self._endpoints.all_refused():
            for pending in list(self._calls.values()):
                self._fail(pending, Failure.REFUSED, self._no_node_reason())
            if journal is not None and journal.has_waiters:
                self._step_journal(now_ns, NoNodeAccepts(self._no_node_reason()))

    def _on_session_event(self, now_ns: int, event: SessionEvent) -> None:
        match event:
            case SessionReady():
                self._step_journal(now_ns, SessionUp(event.instance))
                for pending in [pending for pending in self._calls.values() if pending.instance is None]:
                    self._dispatch(now_ns, pending)
            case SessionLost():
                self._non_executors -= {event.instance}
                self._step_journal(now_ns, SessionDown(event.instance, event.reason))
                for pending in [pending for pending in self._calls.values() if pending.instance == event.instance]:
                    self._on_session_lost(
                        now_ns, pending, f"the connection to {event.endpoint} was lost ({event.reason})"
                    )
            case Said():
                for spoken in event.commands:
                    self._on_command(now_ns, event.instance, spoken)
            case Missed():
                self._on_missed(event)
                self._step_journal(now_ns, SessionHurt(event.instance))
            case CommandDropped():
                self._on_dropped(event)
                self._step_journal(now_ns, SessionHurt(event.instance))
            case _:
                assert_never(event)

    def _on_session_lost(self, now_ns: int, pending: Pending, why: str) -> None:
        """Repeat a call whose session ended, if that is safe; otherwise its outcome is unknown."""
        pending.instance = None
        if not pending.repeatable:
            self._fail(pending, Failure.UNKNOWN, self._unknown_reason(pending, why))
            return
        pending.moved = pending.started
        self._dispatch(now_ns, pending)

    def _on_missed(self, missed: Missed) -> None:
        """Count lost commands of a node as missed items of every subscription on the session.

        Items may be among the lost commands. Lost answers are found by the timeouts of their calls.
        """
        if (session := self._connections.sessions.get(missed.instance)) is not None:
            session.forget_pings()
        for pending in self._calls.values():
            if pending.is_subscription and pending.instance == missed.instance:
                pending.missed += missed.count

    def _on_dropped(self, dropped: CommandDropped) -> None:
        """The link dropped a command of ours because a queue was full: its call fails."""
        pending = self._calls.get(_call_in(dropped.command))
        if pending is not None and pending.instance == dropped.instance:
            reason = f"{pending.name}: not sent ({dropped.reason}); slow down and do it again"
            self._fail(pending, Failure.BUSY, reason)

    def _on_command(self, now_ns: int, instance: bytes, encoded: bytes) -> None:
        """Process a command of a node."""
        session = self._connections.sessions.get(instance)
        if session is None:
            return
        try:
            if command.read_header(encoded)[0] == command.ALIVE:
                self._on_alive(now_ns, instance, encoded[command.HEADER_BYTES :])
                return
            spoken = command.decode(encoded)
            match spoken:
                case Ping():
                    self._connections.send(now_ns, session.acknowledge())
                case DecenAck():
                    self._on_ping_answer(session.take_ping_answer(now_ns))
                case Alive() | Hello() | Broadcast() | Join() | Leave():
                    pass  # commands between nodes; they only prove that the node is alive
                case _:
                    assert_never(spoken)
        except Malformed as error:
            self._effects.append(Report("malformed", session.endpoint, {"reason": str(error)}))

    def _on_ping_answer(self, answer: tuple[int | None, int] | None) -> None:
        call, round_trip_ns = answer or (None, 0)
        pending = None if call is None else self._calls.get(call)
        if pending is not None:
            self._finish(pending, Returned(pending.call, round_trip_ns.to_bytes(8, "big")))

    def _on_alive(self, now_ns: int, instance: bytes, content: bytes) -> None:
        carried = parcel.decode(content)
        if carried.layer == Layer.JOURNAL:
            self._on_journal_message(now_ns, NodeSpoke(instance, client.decode_node(carried.body), carried.payload))
        if carried.layer != Layer.CLIENT:
            return
        reply = messages.decode_reply(carried.body)
        pending = self._calls.get(reply.call)
        if pending is not None and pending.instance == instance:
            self._on_reply(now_ns, pending, reply, carried.payload)

    def _on_journal_message(self, now_ns: int, node_message: NodeSpoke) -> None:
        if not isinstance(node_message.message, MembersAre):
            self._step_journal(now_ns, node_message)
        elif self._learns_members:
            self._connections.on_members(now_ns, node_message.message)

    def _on_reply(self, now_ns: int, pending: Pending, reply: NodeReply, payload: bytes) -> None:
        match reply:
            case Done():
                self._finish(pending, Returned(pending.call, payload))
            case Failed() if _failure_of(reply.kind) is Failure.NOT_EXECUTOR and pending.repeatable:
                self._on_declined(now_ns, pending, reply.reason)
            case Failed():
                self._fail(pending, _failure_of(reply.kind), f"{pending.name}: {reply.reason}")
            case Started():
                self._on_started(pending)
            case EventItem() | NewsItem() | PoolItem() | MessageItem() | QuestionItem():
                self._on_item(pending, reply, payload)
            case _:
                assert_never(reply)

    def _on_declined(self, now_ns: int, pending: Pending, reason: str) -> None:
        """Ask another node. It may not be connected yet: right after the start, a client has only one session."""
        instance = pending.instance or b""
        pending.instance = None
        pending.declined[self._connections.sessions[instance].endpoint] = reason
        self._non_executors |= {instance}
        if self._endpoints.has_others(pending.declined):
            self._dispatch(now_ns, pending)
        else:
            self._fail(pending, Failure.NOT_EXECUTOR, f"{pending.name}: {reason}")

    def _on_started(self, pending: Pending) -> None:
        if not pending.is_subscription:
            raise Malformed(f"{pending.name} is not a subscription, so it cannot start")
        self._deadlines.clear(pending.call)
        if not pending.started:
            pending.started = True
            self._effects.append(ListeningBegan(pending.call))

    def _on_item(self, pending: Pending, item: Item, payload: bytes) -> None:
        if not fits(pending.request, item):
            raise Malformed(f"{pending.name}: the item belongs to another subscription")
        if isinstance(item, EventItem) and pending.is_duplicate(item.id):
            return
        missed = pending.missed + (item.missed if isinstance(item, PoolItem | MessageItem) else 0)
        self._effects.append(Yielded(pending.call, item, payload, missed, pending.moved))
        pending.missed, pending.moved = 0, False


def _failure_of(kind: str) -> Failure:
    """The failure of this kind. A later version of a node may send unknown kinds: they count as a refusal."""
    return next((failure for failure in Failure if failure.value == kind), refusal(kind))


def _call_in(dropped: bytes) -> int:
    """The call that a command of ours carries; -1 for PINGs and for the journal's."""
    spoken = command.decode(dropped)
    carried = parcel.decode(spoken.content) if isinstance(spoken, Alive) else None
    return messages.decode_request(carried.body).call if carried and carried.layer == Layer.CLIENT else -1
