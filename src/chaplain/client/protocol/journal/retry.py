"""Retry a request that raised `Unknown`, so that it is written once, even if several processes retry it several times.

    resolve the original ──it is written──▶ its place
       │ it is not, and never will be
    lease the retry lane ──something is written there──▶ the place of that
       │
    is the original's lane still known? ──no──▶ UNKNOWN: the outcome can no longer be determined
       │
    write it as the first request of the retry lane ──the lane is fenced──▶ start again, with that request as original

Decides under which id a request is written again. The nonce of the lease is derived from the id of the original, so all
retries of it, also in other processes, get the same lane. The first request that is written there is the only one, and
later retries get its receipt (docs/decisions/lanes-and-retries.md). If a request is still in flight, its retry waits
for the outcome.

Invariants:
- while a request may still be written, no retry of it is written;
- at most one request is ever written in its place. The retry lane is therefore never returned. It is leased before the
  original's lane is checked. Nodes forget the older lane first, so while they know the original's lane, they know all
  retry lanes of it.
"""

from __future__ import annotations

from functools import partial

import msgspec

from chaplain.client.protocol.call_events import Failure, Raised, refusal
from chaplain.client.protocol.journal import packing
from chaplain.client.protocol.journal.config_requests import APPLIED, ConfigRequestClient
from chaplain.client.protocol.journal.error_kinds import (
    DISK_FULL,
    IDENTITY_REFUSED,
    INVALID,
    RETRY_ELSEWHERE,
    RETRY_LATER,
)
from chaplain.client.protocol.journal.events import JournalEffect, RetryCommand, WritesAcknowledged
from chaplain.client.protocol.journal.node_selection import NodeSelector
from chaplain.client.protocol.journal.resolve import Inquiry, Resolver
from chaplain.client.protocol.journal.signer import PackSigner
from chaplain.client.types.journal import RequestId
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.core import soonest
from chaplain.journal.messages.client import AlreadyWritten, Decided, NotWritten, Receipts, Write
from chaplain.journal.messages.config import FenceLane, LeaseLane, retry_nonce

ANSWER_NS = 3_000_000_000
"""After this long without an answer, the pack is sent again, through another node if there is one."""
PAUSE_NS = 100_000_000
"""Pause before a pack is sent again after a transient refusal."""


class _Retry:
    """One retry."""

    __slots__ = ("batch", "call", "config_request", "due_ns", "id", "original", "pausing", "raw", "sends")

    def __init__(self, command: RetryCommand) -> None:
        self.call = command.call
        self.batch = command.batch
        self.original = RequestId(command.client_id, command.request)
        """The request that is retried. If an earlier retry of it was fenced unwritten: that retry."""
        self.id: RequestId | None = None
        """The id under which it is written."""
        self.raw = b""
        """The signed pack, while it is being sent."""
        self.sends = 0
        self.due_ns = 0
        self.pausing = False
        """True if a node answered and is asked again after `PAUSE_NS`."""
        self.config_request = 0


class Retrier:
    """The pending retries of this client."""

    def __init__(
        self,
        effects: list[JournalEffect],
        selector: NodeSelector,
        config_requests: ConfigRequestClient,
        resolver: Resolver,
        signer: PackSigner,
    ) -> None:
        self._effects = effects
        self._selector = selector
        self._config_requests = config_requests
        self._resolver = resolver
        self._signer = signer
        self.retries: dict[int, _Retry] = {}
        """Pending retries by call."""
        self._unleased: list[_Retry] = []
        """Retries whose original is not written: they need a lane."""

    # Commands and session changes.

    def begin(self, now_ns: int, command: RetryCommand) -> None:
        """Start a retry."""
        assert command.batch.requests == 1, "a retry is one request"
        retry = self.retries[command.call] = _Retry(command)
        self._resolver.find(now_ns, self._inquiry(retry, retry.original))

    def cancel(self, call: int) -> None:
        """The caller no longer waits."""
        retry = self.retries.pop(call, None)
        if retry is not None:
            self._config_requests.withdraw(retry.config_request)

    def id_of(self, call: int) -> RequestId | None:
        """The request whose outcome decides this call."""
        retry = self.retries.get(call)
        return None if retry is None else retry.id or retry.original

    def flush(self, now_ns: int) -> None:
        """Lease lanes for the retries that need one."""
        if self._selector.chosen is None:
            return
        unleased, self._unleased = self._unleased, []
        for retry in unleased:
            if self.retries.get(retry.call) is retry:
                self._lease(now_ns, retry)

    def on_switched(self, now_ns: int) -> None:
        """Another session is used: nothing was sent on it yet."""
        for retry in self._sent():
            self._send(now_ns, retry)

    def on_timer(self, now_ns: int) -> None:
        """Send due packs again."""
        due = [retry for retry in self._sent() if now_ns >= retry.due_ns]
        if any(not retry.pausing for retry in due):
            self._selector.rotate()
        for retry in due:
            self._send(now_ns, retry)

    def due_ns(self) -> int | None:
        return soonest([retry.due_ns for retry in self._sent()])

    def _sent(self) -> list[_Retry]:
        return [retry for retry in self.retries.values() if retry.raw]

    # Determine whether to write, and under which id.

    def _inquiry(self, retry: _Retry, request: RequestId) -> Inquiry:
        return Inquiry(retry.call, request, partial(self._on_found, retry), retry.batch.stream, len(retry.batch.values))

    def _on_found(self, retry: _Retry, place: ReceiptPlace | None) -> None:
        """The outcome of the original, or of an earlier retry, is known."""
        if place is None:
            self._unleased.append(retry)
        else:
            self._end(retry, WritesAcknowledged(retry.call, place))

    def _end(self, retry: _Retry, effect: WritesAcknowledged | Raised) -> None:
        retry.raw = b""  # ignore further answers to it in the same message
        self._effects.append(effect)

    def _lease(self, now_ns: int, retry: _Retry) -> None:
        lease, nonce = LeaseLane(self._selector.acl), retry_nonce(*retry.original)
        retry.config_request = self._config_requests.submit(now_ns, lease, partial(self._on_leased, retry), nonce)

    def _on_leased(self, retry: _Retry, now_ns: int, decided: Decided) -> None:
        """The cluster has decided on the lease of the retry lane."""
        if decided.kind == "lanes_full":
            self._end(retry, Raised(retry.call, Failure.REFUSED, f"not written: {decided.reason}"))
            return
        if decided.kind != APPLIED or not decided.client_id:
            reason = f"the outcome can no longer be determined ({decided.reason}): read the stream"
            self._end(retry, Raised(retry.call, Failure.UNKNOWN, reason, retry.original))
            return
        retry.id = RequestId(decided.client_id, 1)
        if decided.last_id:
            self._resolver.ask_place(self._inquiry(retry, retry.id))
            return
        fence = FenceLane(retry.original.client_id)
        retry.config_request = self._config_requests.submit(now_ns, fence, partial(self._on_original_fenced, retry))

    def _on_original_fenced(self, retry: _Retry, now_ns: int, decided: Decided) -> None:
        """Write the retry if the nodes still know the original's lane.

        If they have forgotten it, they may have forgotten an earlier retry lane, too. The leased lane would then be a
        second one.
        """
        if decided.kind != APPLIED or retry.original.client_message_id <= decided.last_id:
            self._resolver.on_fenced(self._inquiry(retry, retry.original), decided)
            return
        assert retry.id is not None
        retry.raw = packing.make_pack(*retry.id, [retry.batch], self._signer)
        self._send(now_ns, retry)

    # Writing.

    def _send(self, now_ns: int, retry: _Retry) -> None:
        retry.due_ns, retry.pausing = now_ns + ANSWER_NS, False
        session = self._selector.chosen
        if session is not None:
            session.used_bytes += len(retry.raw)
            retry.sends += 1
            self._selector.send(Write(retry.batch.stream, retry.batch.check), retry.raw)

    def on_receipts(self, message: Receipts) -> None:
        """Receipts of committed packs."""
        for run in message.runs:
            if (run.first_id, run.requests) == (1, 1) and run.messages > 0:  # a retry lane contains one request
                for retry in self._waiting_for(run.client_id):
                    self._on_found(retry, ReceiptPlace(*msgspec.structs.astuple(run)))

    def on_already_written(self, message: AlreadyWritten) -> None:
        """Another retry has written the request: ask where."""
        for retry in self._waiting_for(message.client_id):
            assert retry.id is not None
            retry.raw = b""
            self._resolver.ask_place(self._inquiry(retry, retry.id))

    def on_not_written(self, now_ns: int, message: NotWritten) -> None:
        """A node refuses the pack."""
        for retry in self._waiting_for(message.client_id):
            if message.kind in RETRY_LATER:
                retry.due_ns, retry.pausing = now_ns + PAUSE_NS, True
                if message.kind in RETRY_ELSEWHERE:
                    self._selector.avoid_chosen(now_ns, message.reason if message.kind == DISK_FULL else "")
            elif message.kind in ("fenced", "unknown_lane"):
                self._restart(retry, fenced=message.kind == "fenced")
            else:
                self._on_refused(retry, message)

    def _waiting_for(self, client_id: int) -> list[_Retry]:
        return [one for one in self._sent() if one.id is not None and one.id.client_id == client_id]

    def _restart(self, retry: _Retry, *, fenced: bool) -> None:
        """Start again with a lease.

        If the retry lane was fenced, this retry will not be written, and another process may have retried it. If the
        lane is unknown, the node lags behind.
        """
        if fenced and retry.id is not None:
            retry.original = retry.id
        retry.id, retry.raw, retry.sends = None, b"", 0
        self._unleased.append(retry)

    def _on_refused(self, retry: _Retry, message: NotWritten) -> None:
        """The pack is refused for good. With several copies in flight, another one may still be written."""
        kind, _, statement_kind = message.kind.partition(":")
        if retry.sends > 1 and (kind == INVALID or kind in IDENTITY_REFUSED):
            reason = f"{message.reason}; another copy may or may not be written"
            self._end(retry, Raised(retry.call, Failure.UNKNOWN, reason, retry.id))
            return
        failure = Failure.STATEMENT if kind == INVALID else refusal(kind)
        self._end(retry, Raised(retry.call, failure, message.reason, kind=statement_kind))
