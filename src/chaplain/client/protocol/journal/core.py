"""The client's journal: writing, reading, resolving and asking, over the session that `NodeSelector` chooses.

Routes commands and node messages to the parts, and informs all parts when another session is chosen. The parts decide
everything else. A pure core: `step` and `deadline`.

Invariant: every command ends in exactly one of `WritesAcknowledged`, `Returned` and `Raised`, or is cancelled.
"""

from __future__ import annotations

from random import Random
from typing import TypeAlias, assert_never

from msgspec.structs import replace

from chaplain.client.protocol.call_events import Cancelled, Failure, Raised, Returned, refusal
from chaplain.client.protocol.deadlines import Deadlines
from chaplain.client.protocol.journal.config_requests import APPLIED, EXPIRED, ConfigRequestClient
from chaplain.client.protocol.journal.error_kinds import NO_ORDER
from chaplain.client.protocol.journal.events import (
    AskCommand,
    ConfigRequestCommand,
    JournalEffect,
    JournalInput,
    NodeSpoke,
    NoNodeAccepts,
    ReadCommand,
    ResolveCommand,
    RetryCommand,
    SessionDown,
    SessionHurt,
    SessionUp,
    TakenCommand,
    WriteCommand,
    WritesAcknowledged,
)
from chaplain.client.protocol.journal.node_selection import NodeSelector
from chaplain.client.protocol.journal.reader import StreamReaders
from chaplain.client.protocol.journal.resolve import Resolver
from chaplain.client.protocol.journal.retry import Retrier
from chaplain.client.protocol.journal.signer import PackSigner
from chaplain.client.protocol.journal.writer import LaneWriters
from chaplain.client.types.equivocation_proof import pack_proof
from chaplain.core import Drained, Stopping, Woken, soonest
from chaplain.journal.messages.client import (
    AlreadyWritten,
    Credit,
    Decided,
    Failed,
    GoBack,
    Leads,
    Listed,
    MembersAre,
    NodeMessage,
    NotWritten,
    PaidAre,
    ProofIs,
    Receipts,
    TreePart,
    Wrapped,
    encode,
)
from chaplain.journal.messages.write_request import REQUEST_ID_MAX
from chaplain.link.auth.identity import Identity

REQUESTS_MAX = 1024
"""Pending questions, configuration requests, resolutions and retries."""
_RequestCommand: TypeAlias = AskCommand | ConfigRequestCommand | ResolveCommand | RetryCommand


class _PendingRequest:
    """A question, a configuration request, a resolution or a retry of a waiting caller."""

    __slots__ = ("command", "config_request", "request_call")

    def __init__(self, command: _RequestCommand) -> None:
        self.command = command
        self.request_call = 0
        self.config_request = 0


class ClientJournal:
    """The journal of one client, as a pure core."""

    def __init__(
        self,
        identity: Identity,
        cluster: str,
        random: Random,
        ids_max: int = REQUEST_ID_MAX,
        secret: bytes = b"",
    ) -> None:
        """With `secret`, packs are signed by HMAC; the cluster must have registered the identity for that."""
        self._effects: list[JournalEffect] = []
        self._selector = NodeSelector(self._effects, cluster)
        self._config_requests = ConfigRequestClient(self._selector, identity, random)
        signer = PackSigner(identity, cluster, secret)
        self._writers = LaneWriters(self._effects, self._selector, self._config_requests, signer, ids_max)
        self._resolver = Resolver(self._effects, self._selector, self._config_requests, self._writers)
        self._retrier = Retrier(self._effects, self._selector, self._config_requests, self._resolver, signer)
        self._readers = StreamReaders(self._effects, self._selector)
        self._pending: dict[int, _PendingRequest] = {}
        self._deadlines = Deadlines()
        self._switches_seen = 0
        """`NodeSelector.switches` when the parts were last informed."""
        self.unusable_sessions: frozenset[bytes] = frozenset()
        """Sessions whose nodes accept none of our writes."""

    def step(self, now_ns: int, event: JournalInput) -> list[JournalEffect]:
        """Process one input and return the effects."""
        match event:
            case NodeSpoke():
                self._on_node_message(now_ns, event)
            case Drained():
                self._writers.flush(now_ns)
                if self._retrier.retries:
                    self._retrier.flush(now_ns)
            case WriteCommand():
                self._selector.open_all(now_ns)
                self._writers.queue.add(now_ns, event)
            case TakenCommand():
                self._readers.on_taken(event)
            case ReadCommand():
                self._selector.open_all(now_ns)
                self._readers.begin(now_ns, event)
            case AskCommand() | ConfigRequestCommand() | ResolveCommand() | RetryCommand():
                self._selector.open_all(now_ns)
                self._on_request(now_ns, event)
            case Cancelled():
                self._on_cancelled(event.call)
            case Woken():
                self._on_timer(now_ns)
            case SessionUp():
                self._selector.on_session_up(now_ns, event.instance)
            case SessionDown():
                self._selector.on_session_down(event.instance, event.reason)
            case SessionHurt():
                self._on_session_hurt(now_ns, event.instance)
            case NoNodeAccepts():
                self._fail_all(event.reason)
            case Stopping():
                self._stop(now_ns)
            case _:
                assert_never(event)
        if self._switches_seen != self._selector.switches:
            self._resend_after_switch(now_ns)
        self.unusable_sessions = self._selector.unusable
        if not self._effects:
            return []
        effects = list(self._effects)
        self._effects.clear()
        if self._pending:  # a part may have ended a pending request: forget it
            for effect in effects:
                if isinstance(effect, WritesAcknowledged | Returned | Raised) and effect.call in self._pending:
                    self._forget(self._pending[effect.call])
        return effects

    @property
    def has_waiters(self) -> bool:
        """True if a caller waits for an outcome."""
        return bool(self._pending) or self._writers.queue.has_waiters or bool(self._readers.readers)

    def deadline(self) -> int | None:
        """When to step with `Woken`; None if nothing is due."""
        # The host asks after every turn, and mostly nothing but writes is pending.
        due = [self._writers.due_ns()]
        if self._selector.unopened:
            due.append(self._selector.due_ns())
        if self._config_requests.pending:
            due.append(self._config_requests.due_ns())
        if self._readers.readers:
            due.append(self._readers.due_ns())
        if self._retrier.retries:
            due.append(self._retrier.due_ns())
        if self._pending:
            due.append(self._deadlines.next_ns())
        return soonest(due)

    def _resend_after_switch(self, now_ns: int) -> None:
        """Send everything that is pending on the session that is chosen now."""
        while self._switches_seen != self._selector.switches:  # a part may cause another switch
            self._switches_seen = self._selector.switches
            self._config_requests.on_switched(now_ns)
            self._writers.on_switched(now_ns)
            self._retrier.on_switched(now_ns)
            self._readers.on_switched()
            for pending in self._pending.values():
                self._send(pending)

    def _on_timer(self, now_ns: int) -> None:
        self._selector.on_timer(now_ns)
        self._config_requests.on_timer(now_ns)
        self._writers.on_timer(now_ns)
        self._retrier.on_timer(now_ns)
        self._readers.on_timer(now_ns, self._selector.unavailable_reason)
        for call in self._deadlines.pop_due(now_ns):
            self._expire(self._pending[call])

    def _on_session_hurt(self, now_ns: int, instance: bytes) -> None:
        """Send again whatever may have been lost."""
        if self._selector.chosen is not None and self._selector.chosen.instance == instance:
            self._writers.on_switched(now_ns)
            self._retrier.on_switched(now_ns)
            self._readers.resend()
            self._config_requests.on_switched(now_ns)
            for pending in self._pending.values():
                self._send(pending)

    def _fail_all(self, reason: str) -> None:
        """All nodes refuse this client: end everything that waits."""
        self._writers.fail_all(reason)
        self._readers.fail_all(reason)
        self._fail_pending(Failure.REFUSED, reason)

    def _stop(self, now_ns: int) -> None:
        self._writers.stop(now_ns)
        self._readers.stop()
        self._fail_pending(Failure.CLOSED, "the client was closed before an answer came")

    def _fail_pending(self, failure: Failure, reason: str) -> None:
        """Fail all pending requests, except those whose outcome was just emitted."""
        ended_calls = {
            effect.call for effect in self._effects if isinstance(effect, WritesAcknowledged | Returned | Raised)
        }
        for pending in list(self._pending.values()):
            if pending.command.call not in ended_calls:
                self._fail(pending, failure, reason)

    # Messages of nodes.

    def _on_node_message(self, now_ns: int, node_message: NodeSpoke) -> None:
        """Route a message of a node."""
        message = node_message.message
        match message:
            case Receipts():
                for run in message.runs:
                    self._readers.note_head(run.stream, run.base_offset + run.messages)
                self._writers.on_receipts(now_ns, message)
                if self._retrier.retries:
                    self._retrier.on_receipts(message)
                self._selector.on_receipts(now_ns, node_message.instance)
            case Credit():
                self._selector.on_credit(node_message.instance, message.credit_bytes)
            case MembersAre():
                pass  # `ClientCore` passes it to the connection manager
            case Leads():
                self._selector.on_master_change(node_message.instance, message.regime)
            case GoBack():
                self._writers.on_go_back(now_ns, message)
            case AlreadyWritten():
                self._writers.on_already_written(now_ns, message)
                self._retrier.on_already_written(message)
            case NotWritten():
                self._writers.on_not_written(now_ns, message)
                self._retrier.on_not_written(now_ns, message)
            case _:
                self._selector.on_reply(now_ns, node_message.instance, message.call, message, node_message.payload)

    # Requests.

    def _on_request(self, now_ns: int, command: _RequestCommand) -> None:
        """Start a question, a configuration request, a resolution or a retry."""
        pending = _PendingRequest(command)
        self._pending[command.call] = pending
        self._deadlines.set(command.call, now_ns + command.timeout_ns)
        if len(self._pending) > REQUESTS_MAX or self._config_requests.full:
            self._fail(
                pending, Failure.BUSY, f"{REQUESTS_MAX} requests are pending, which is the limit: wait for some of them"
            )
            return
        match command:
            case AskCommand():
                self._send(pending)
            case ConfigRequestCommand():
                pending.config_request = self._config_requests.submit(
                    now_ns, command.message, lambda _, done: self._on_decided(pending, done)
                )
            case ResolveCommand():
                self._resolver.resolve(now_ns, command)
            case RetryCommand():
                self._retrier.begin(now_ns, command)

    def _send(self, pending: _PendingRequest) -> None:
        """Send a question on the chosen session."""
        if not isinstance(pending.command, AskCommand):
            return
        question = pending.command.question
        self._selector.forget(pending.request_call)

        def on_reply(now_ns: int, message: NodeMessage, payload: bytes) -> None:
            self._on_reply(pending, message, payload)

        pending.request_call = self._selector.request(
            lambda call: replace(question, call=call), on_reply, pending.command.payload
        )

    def _on_reply(self, pending: _PendingRequest, message: NodeMessage, payload: bytes) -> None:
        match message:
            case Listed() | Wrapped() | TreePart():
                self._finish(pending, Returned(pending.command.call, payload))
            case ProofIs():
                self._finish(pending, Returned(pending.command.call, pack_proof(message, payload)))
            case PaidAre():
                self._finish(pending, Returned(pending.command.call, encode(message)))
            case Failed():
                self._fail(pending, refusal(message.kind), message.reason)

    def _on_decided(self, pending: _PendingRequest, decided: Decided) -> None:
        """The cluster has decided on a configuration request."""
        if decided.kind == APPLIED:
            self._finish(pending, Returned(pending.command.call, decided.acl))
        elif decided.kind == EXPIRED:
            self._fail(pending, Failure.UNKNOWN, decided.reason)
        else:
            self._fail(pending, refusal(decided.kind), decided.reason)

    def _expire(self, pending: _PendingRequest) -> None:
        waited = f"no answer within {pending.command.timeout_ns / 1e9:g} s"
        where = self._selector.unavailable_reason if self._selector.chosen is None else NO_ORDER
        if isinstance(pending.command, ConfigRequestCommand) and self._selector.acl:
            self._fail(
                pending, Failure.UNKNOWN, f"{waited}, so it may or may not happen ({where}); look before asking again"
            )
        else:
            self._fail(pending, Failure.UNREACHABLE, f"{waited}: {where}")

    def _finish(self, pending: _PendingRequest, effect: Returned | Raised) -> None:
        self._forget(pending)
        self._effects.append(effect)

    def _fail(self, pending: _PendingRequest, failure: Failure, reason: str) -> None:
        request = self._retrier.id_of(pending.command.call)
        if request is not None:  # the original may be written, whatever becomes of the retry
            failure, reason = Failure.UNKNOWN, f"it may or may not be written: {reason}; retry with {tuple(request)}"
        self._finish(pending, Raised(pending.command.call, failure, reason, request))

    def _forget(self, pending: _PendingRequest) -> None:
        call = pending.command.call
        del self._pending[call]
        self._deadlines.clear(call)
        self._selector.forget(pending.request_call)
        self._config_requests.withdraw(pending.config_request)
        self._resolver.cancel(call)
        self._retrier.cancel(call)

    def _on_cancelled(self, call: int) -> None:
        if call in self._pending:
            self._forget(self._pending[call])
        elif not self._writers.queue.cancel(call):
            self._readers.cancel(call)
