"""Retrying: a request that raised `Unknown` is written after all, once, however often and by whomever it is retried.

    find it ──it is written──▶ its place
       │ it is not, and never will be
    lease the lane of its retries ──something is written there──▶ the place of that
       │
    is its own lane still known? ──no──▶ nobody can tell any more
       │
    write as the first request of the leased lane ──it is fenced──▶ the same again, for that request

Decides under which id a request is written again. The lane is leased with a nonce that is made of the request's id, so
everybody who retries it has the same one, in another process, too; what is written there first is the only one, and
whoever comes later is given its receipt (docs/decisions/0168). A request that is still on its way is waited for.

Invariants: nothing is written in place of a request that may be written; nothing but one request is ever written in its
place. For that, the lane of its retries is never given back, and is asked for before we look whether the request's own
is there, which is over first.
"""

from __future__ import annotations

from functools import partial

import msgspec

from chaplain.client.protocol.call_events import Failure, Raised
from chaplain.client.protocol.journal import packing
from chaplain.client.protocol.journal.config_requests import APPLIED, ConfigRequestClient
from chaplain.client.protocol.journal.error_kinds import ELSEWHERE, FULL, IDENTITY, INVALID, LATER
from chaplain.client.protocol.journal.events import JournalEffect, RetryCommand, WritesAcknowledged
from chaplain.client.protocol.journal.node_selection import Outlets
from chaplain.client.protocol.journal.resolve import Inquiry, Resolving
from chaplain.client.protocol.journal.signer import PackSigner
from chaplain.client.types.journal import RequestId
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.core import soonest
from chaplain.journal.messages.client import AlreadyWritten, Decided, NotWritten, Receipts, Write
from chaplain.journal.messages.config import FenceLane, LeaseLane, retry_nonce

ANSWER_NS = 3_000_000_000
"""Without an answer for so long, it is sent again, through another node if there is one."""
PAUSE_NS = 100_000_000
"""What is not taken now is sent again after this."""


class _Retry:
    __slots__ = ("batch", "call", "due_ns", "id", "of", "pausing", "petition", "raw", "sends")

    def __init__(self, wish: RetryCommand) -> None:
        self.call = wish.call
        self.batch = wish.batch
        self.of = RequestId(wish.client_id, wish.request)
        """What is retried; if it was retried before, and that was not written, that retry."""
        self.id: RequestId | None = None
        """What it is written as."""
        self.raw = b""
        self.sends = 0
        self.due_ns = 0
        self.pausing = False
        """A node answered, and is asked again a little later."""
        self.petition = 0


class Retrying:
    def __init__(
        self,
        effects: list[JournalEffect],
        outlets: Outlets,
        petitioning: ConfigRequestClient,
        resolving: Resolving,
        signer: PackSigner,
    ) -> None:
        self._effects = effects
        self._outlets = outlets
        self._petitioning = petitioning
        self._resolving = resolving
        self._signer = signer
        self.retries: dict[int, _Retry] = {}
        """By call."""
        self._unleased: list[_Retry] = []
        """What they retry is not written: they want a lane."""

    # From outside.

    def begin(self, now_ns: int, wish: RetryCommand) -> None:
        assert wish.batch.requests == 1, "one request is retried as one"
        retry = self.retries[wish.call] = _Retry(wish)
        self._resolving.find(now_ns, self._inquiry(retry, retry.of))

    def cancel(self, call: int) -> None:
        retry = self.retries.pop(call, None)
        if retry is not None:
            self._petitioning.withdraw(retry.petition)

    def id_of(self, call: int) -> RequestId | None:
        """Whose fate decides about this call."""
        retry = self.retries.get(call)
        return None if retry is None else retry.id or retry.of

    def drained(self, now_ns: int) -> None:
        if self._outlets.chosen is None:
            return
        unleased, self._unleased = self._unleased, []
        for retry in unleased:
            if self.retries.get(retry.call) is retry:
                self._lease(now_ns, retry)

    def moved(self, now_ns: int) -> None:
        """Another session: there, nothing was sent yet."""
        for retry in self._under_way():
            self._send(now_ns, retry)

    def woken(self, now_ns: int) -> None:
        due = [retry for retry in self._under_way() if now_ns >= retry.due_ns]
        if any(not retry.pausing for retry in due):
            self._outlets.rotate()
        for retry in due:
            self._send(now_ns, retry)

    def due_ns(self) -> int | None:
        return soonest([retry.due_ns for retry in self._under_way()])

    def _under_way(self) -> list[_Retry]:
        return [retry for retry in self.retries.values() if retry.raw]

    # Finding out whether, and under which id.

    def _inquiry(self, retry: _Retry, request: RequestId) -> Inquiry:
        return Inquiry(retry.call, request, partial(self._found, retry), retry.batch.stream, len(retry.batch.values))

    def _found(self, retry: _Retry, place: ReceiptPlace | None) -> None:
        if place is None:
            self._unleased.append(retry)
        else:
            self._end(retry, WritesAcknowledged(retry.call, place))

    def _end(self, retry: _Retry, effect: WritesAcknowledged | Raised) -> None:
        retry.raw = b""  # whatever else is said about it in the same breath
        self._effects.append(effect)

    def _lease(self, now_ns: int, retry: _Retry) -> None:
        lease, nonce = LeaseLane(self._outlets.acl), retry_nonce(*retry.of)
        retry.petition = self._petitioning.submit(now_ns, lease, partial(self._leased, retry), nonce)

    def _leased(self, retry: _Retry, now_ns: int, decided: Decided) -> None:
        if decided.kind == "lanes_full":
            self._end(retry, Raised(retry.call, Failure.REFUSED, f"not written: {decided.reason}"))
            return
        if decided.kind != APPLIED or not decided.client_id:
            reason = f"nobody can tell any more ({decided.reason}): read the stream"
            self._end(retry, Raised(retry.call, Failure.UNKNOWN, reason, retry.of))
            return
        retry.id = RequestId(decided.client_id, 1)
        if decided.last_id:
            self._resolving.ask_where(self._inquiry(retry, retry.id))
            return
        fence = FenceLane(retry.of.client_id)
        retry.petition = self._petitioning.submit(now_ns, fence, partial(self._confirmed, retry))

    def _confirmed(self, retry: _Retry, now_ns: int, decided: Decided) -> None:
        """Had its lane been over, the lane of its retries might have been, too, and this one be another."""
        if decided.kind != APPLIED or retry.of.client_message_id <= decided.last_id:
            self._resolving.decided(self._inquiry(retry, retry.of), decided)
            return
        assert retry.id is not None
        retry.raw = packing.make_pack(*retry.id, [retry.batch], self._signer)
        self._send(now_ns, retry)

    # Writing.

    def _send(self, now_ns: int, retry: _Retry) -> None:
        retry.due_ns, retry.pausing = now_ns + ANSWER_NS, False
        outlet = self._outlets.chosen
        if outlet is not None:
            outlet.used_bytes += len(retry.raw)
            retry.sends += 1
            self._outlets.say(Write(retry.batch.stream, retry.batch.check), retry.raw)

    def receipts(self, message: Receipts) -> None:
        for run in message.runs:
            if (run.first_id, run.requests) == (1, 1) and run.messages > 0:  # there can be no other
                for retry in self._waiting_for(run.client_id):
                    self._found(retry, ReceiptPlace(*msgspec.structs.astuple(run)))

    def already(self, message: AlreadyWritten) -> None:
        for retry in self._waiting_for(message.client_id):
            assert retry.id is not None
            retry.raw = b""
            self._resolving.ask_where(self._inquiry(retry, retry.id))

    def not_written(self, now_ns: int, message: NotWritten) -> None:
        for retry in self._waiting_for(message.client_id):
            if message.kind in LATER:
                retry.due_ns, retry.pausing = now_ns + PAUSE_NS, True
                if message.kind in ELSEWHERE:
                    self._outlets.shun(now_ns, message.reason if message.kind == FULL else "")
            elif message.kind in ("fenced", "unknown_lane"):
                self._again(retry, fenced=message.kind == "fenced")
            else:
                self._refused(retry, message)

    def _waiting_for(self, client_id: int) -> list[_Retry]:
        return [one for one in self._under_way() if one.id is not None and one.id.client_id == client_id]

    def _again(self, retry: _Retry, *, fenced: bool) -> None:
        """Somebody made sure that this retry is not written, and may have retried that; or this node is behind."""
        if fenced and retry.id is not None:
            retry.of = retry.id
        retry.id, retry.raw, retry.sends = None, b"", 0
        self._unleased.append(retry)

    def _refused(self, retry: _Retry, message: NotWritten) -> None:
        kind, _, of = message.kind.partition(":")
        if retry.sends > 1 and (kind == INVALID or kind in IDENTITY):
            reason = f"{message.reason}; another copy may or may not be written"
            self._end(retry, Raised(retry.call, Failure.UNKNOWN, reason, retry.id))
            return
        failure = Failure.STATEMENT if kind == INVALID else Failure.REFUSED
        self._end(retry, Raised(retry.call, failure, message.reason, kind=of))
