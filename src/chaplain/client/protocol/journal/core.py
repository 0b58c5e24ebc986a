"""The client's journal: writing, reading, resolving and asking, over whichever session is open.

Decides which part a wish or an answer belongs to, and that everybody hears of a new session. All else is decided in the
parts. A pure core: `step` and `deadline`.

Invariant: every wish ends in exactly one of `WritesAcknowledged`, `Returned` and `Raised`, or is cancelled.
"""

from __future__ import annotations

from random import Random
from typing import TypeAlias, assert_never

from msgspec.structs import replace

from chaplain.client.protocol.call_events import Cancelled, Failure, Raised, Returned
from chaplain.client.protocol.deadlines import Deadlines
from chaplain.client.protocol.journal.config_requests import APPLIED, EXPIRED, ConfigRequestClient
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
from chaplain.client.protocol.journal.node_selection import Outlets
from chaplain.client.protocol.journal.reader import Streaming
from chaplain.client.protocol.journal.resolve import Resolving
from chaplain.client.protocol.journal.retry import Retrying
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
    Wrapped,
    encode,
)
from chaplain.journal.messages.write_request import REQUEST_ID_MAX
from chaplain.link.auth.identity import Identity

ASKS_MAX = 1024
_Wish: TypeAlias = AskCommand | ConfigRequestCommand | ResolveCommand | RetryCommand


class _Ask:
    """A question, a petition, a resolution or a retry that somebody waits for."""

    __slots__ = ("petition", "wire", "wish")

    def __init__(self, wish: _Wish) -> None:
        self.wish = wish
        self.wire = 0
        self.petition = 0


class ClientJournal:
    def __init__(
        self,
        identity: Identity,
        cluster: str,
        chance: Random,
        ids_max: int = REQUEST_ID_MAX,
        secret: bytes = b"",
    ) -> None:
        """With `secret`, packs are signed by HMAC; the cluster must know the identity as one that does."""
        self._effects: list[JournalEffect] = []
        self._outlets = Outlets(self._effects, cluster)
        self._petitioning = ConfigRequestClient(self._outlets, identity, chance)
        signer = PackSigner(identity, cluster, secret)
        self._writing = LaneWriters(self._effects, self._outlets, self._petitioning, signer, ids_max)
        self._resolving = Resolving(self._effects, self._outlets, self._petitioning, self._writing)
        self._retrying = Retrying(self._effects, self._outlets, self._petitioning, self._resolving, signer)
        self._streaming = Streaming(self._effects, self._outlets)
        self._asks: dict[int, _Ask] = {}
        self._deadlines = Deadlines()
        self._moves = 0

    def step(self, now_ns: int, event: JournalInput) -> list[JournalEffect]:
        match event:
            case NodeSpoke():
                self._spoke(now_ns, event)
            case Drained():
                self._writing.drained(now_ns)
                if self._retrying.retries:
                    self._retrying.drained(now_ns)
            case WriteCommand():
                self._outlets.wake(now_ns)
                self._writing.jobs.take(now_ns, event)
            case TakenCommand():
                self._streaming.taken(event)
            case ReadCommand():
                self._outlets.wake(now_ns)
                self._streaming.begin(now_ns, event)
            case AskCommand() | ConfigRequestCommand() | ResolveCommand() | RetryCommand():
                self._outlets.wake(now_ns)
                self._asked(now_ns, event)
            case Cancelled():
                self._cancelled(event.call)
            case Woken():
                self._woken(now_ns)
            case SessionUp():
                self._outlets.up(now_ns, event.instance)
            case SessionDown():
                self._outlets.down(event.instance, event.reason)
            case SessionHurt():
                self._hurt(now_ns, event.instance)
            case NoNodeAccepts():
                self._bar(event.reason)
            case Stopping():
                self._stop(now_ns)
            case _:
                assert_never(event)
        if self._moves != self._outlets.moves:
            self._follow(now_ns)
        if not self._effects:
            return []
        effects = list(self._effects)
        self._effects.clear()
        if self._asks:
            for effect in effects:
                if isinstance(effect, WritesAcknowledged | Returned | Raised) and effect.call in self._asks:
                    self._forget(self._asks[effect.call])
        return effects

    @property
    def barred(self) -> frozenset[bytes]:
        """The sessions whose nodes take nothing of ours."""
        return self._outlets.barred

    @property
    def waits(self) -> bool:
        """Whether somebody waits for something."""
        return bool(self._asks) or self._writing.jobs.waits or self._streaming.waits

    def deadline(self) -> int | None:
        parts = (self._outlets.due_ns(), self._petitioning.due_ns(), self._writing.due_ns(), self._streaming.due_ns())
        retries_ns = self._retrying.due_ns() if self._retrying.retries else None
        return soonest((self._deadlines.next_ns(), retries_ns, *parts))

    def _follow(self, now_ns: int) -> None:
        """Everything that is not said and done goes to the session that is chosen now."""
        while self._moves != self._outlets.moves:
            self._moves = self._outlets.moves
            self._petitioning.moved(now_ns)
            self._writing.moved(now_ns)
            self._retrying.moved(now_ns)
            self._streaming.moved()
            for ask in self._asks.values():
                self._send(ask)

    def _woken(self, now_ns: int) -> None:
        self._outlets.woken(now_ns)
        self._petitioning.woken(now_ns)
        self._writing.woken(now_ns)
        self._retrying.woken(now_ns)
        self._streaming.woken(now_ns, self._outlets.trouble)
        for call in self._deadlines.pop_due(now_ns):
            self._overdue(self._asks[call])

    def _hurt(self, now_ns: int, instance: bytes) -> None:
        """Say again whatever may have been lost."""
        if self._outlets.chosen is not None and self._outlets.chosen.instance == instance:
            self._writing.moved(now_ns)
            self._retrying.moved(now_ns)
            self._streaming.hurt()
            self._petitioning.moved(now_ns)
            for ask in self._asks.values():
                self._send(ask)

    def _bar(self, reason: str) -> None:
        """Nobody will have us: what waits need not wait."""
        self._writing.bar(reason)
        self._streaming.bar(reason)
        self._fail_asks(Failure.REFUSED, reason)

    def _stop(self, now_ns: int) -> None:
        self._writing.stop(now_ns)
        self._streaming.stop()
        self._fail_asks(Failure.CLOSED, "the client was closed before an answer came")

    def _fail_asks(self, failure: Failure, reason: str) -> None:
        """All but those that were just told what became of the write that they asked about."""
        told = {effect.call for effect in self._effects if isinstance(effect, WritesAcknowledged | Returned | Raised)}
        for ask in list(self._asks.values()):
            if ask.wish.call not in told:
                self._fail(ask, failure, reason)

    # What nodes say.

    def _spoke(self, now_ns: int, spoke: NodeSpoke) -> None:
        message = spoke.message
        match message:
            case Receipts():
                for run in message.runs:
                    self._streaming.note_head(run.stream, run.base_offset + run.messages)
                self._writing.receipts(now_ns, message)
                if self._retrying.retries:
                    self._retrying.receipts(message)
                self._outlets.heard_receipts(now_ns, spoke.instance)
            case Credit():
                self._outlets.credit(spoke.instance, message.credit_bytes)
            case MembersAre():
                pass  # whoever keeps the sessions up hears of it
            case Leads():
                self._outlets.leads(spoke.instance, message.regime)
            case GoBack():
                self._writing.go_back(now_ns, message)
            case AlreadyWritten():
                self._writing.already(now_ns, message)
                self._retrying.already(message)
            case NotWritten():
                self._writing.not_written(now_ns, message)
                self._retrying.not_written(now_ns, message)
            case _:
                self._outlets.answered(now_ns, spoke.instance, message.call, message, spoke.payload)

    # Questions.

    def _asked(self, now_ns: int, wish: _Wish) -> None:
        ask = _Ask(wish)
        self._asks[wish.call] = ask
        self._deadlines.set(wish.call, now_ns + wish.timeout_ns)
        if len(self._asks) > ASKS_MAX or self._petitioning.full:
            self._fail(ask, Failure.BUSY, f"{ASKS_MAX} questions are open, which is the bound: wait for some of them")
            return
        match wish:
            case AskCommand():
                self._send(ask)
            case ConfigRequestCommand():
                ask.petition = self._petitioning.submit(now_ns, wish.message, lambda _, done: self._decided(ask, done))
            case ResolveCommand():
                self._resolving.resolve(now_ns, wish)
            case RetryCommand():
                self._retrying.begin(now_ns, wish)

    def _send(self, ask: _Ask) -> None:
        if not isinstance(ask.wish, AskCommand):
            return
        question = ask.wish.question
        self._outlets.forget(ask.wire)

        def answer(now_ns: int, message: NodeMessage, payload: bytes) -> None:
            self._answered(ask, message, payload)

        ask.wire = self._outlets.ask(lambda call: replace(question, call=call), answer, ask.wish.payload)

    def _answered(self, ask: _Ask, message: NodeMessage, payload: bytes) -> None:
        match message:
            case Listed() | Wrapped():
                self._finish(ask, Returned(ask.wish.call, payload))
            case ProofIs():
                self._finish(ask, Returned(ask.wish.call, pack_proof(message, payload)))
            case PaidAre():
                self._finish(ask, Returned(ask.wish.call, encode(message)))
            case Failed():
                self._fail(ask, Failure.REFUSED, message.reason)

    def _decided(self, ask: _Ask, decided: Decided) -> None:
        if decided.kind == APPLIED:
            self._finish(ask, Returned(ask.wish.call, decided.acl))
        elif decided.kind == EXPIRED:
            self._fail(ask, Failure.UNKNOWN, decided.reason)
        else:
            self._fail(ask, Failure.REFUSED, decided.reason)

    def _overdue(self, ask: _Ask) -> None:
        waited = f"no answer within {ask.wish.timeout_ns / 1e9:g} s"
        where = self._outlets.trouble if self._outlets.chosen is None else "the cluster is slow, or has no master"
        if isinstance(ask.wish, ConfigRequestCommand) and self._outlets.acl:
            self._fail(
                ask, Failure.UNKNOWN, f"{waited}, so it may or may not happen ({where}); look before asking again"
            )
        else:
            self._fail(ask, Failure.UNREACHABLE, f"{waited}: {where}")

    def _finish(self, ask: _Ask, effect: Returned | Raised) -> None:
        self._forget(ask)
        self._effects.append(effect)

    def _fail(self, ask: _Ask, failure: Failure, reason: str) -> None:
        request = self._retrying.id_of(ask.wish.call)
        if request is not None:  # what it retries may be written, whatever becomes of it
            failure, reason = Failure.UNKNOWN, f"it may or may not be written: {reason}; retry with {tuple(request)}"
        self._finish(ask, Raised(ask.wish.call, failure, reason, request))

    def _forget(self, ask: _Ask) -> None:
        call = ask.wish.call
        del self._asks[call]
        self._deadlines.clear(call)
        self._outlets.forget(ask.wire)
        self._petitioning.withdraw(ask.petition)
        self._resolving.cancel(call)
        self._retrying.cancel(call)

    def _cancelled(self, call: int) -> None:
        if call in self._asks:
            self._forget(self._asks[call])
        elif not self._writing.jobs.cancelled(call):
            self._streaming.cancelled(call)
