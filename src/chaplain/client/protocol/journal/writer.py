"""Sign queued writes, keep each pack until it is answered, and resend it byte for byte wherever necessary.

    none ──lease──▶ leasing ──▶ open ──refused, resolved, fenced by others──▶ fencing ──▶ none
                       ▲          │ unknown to the node
                       └──────────┘

Decides which lane (producer session) requests use and what to do when a lane cannot continue. An id is never signed
twice, not even after a refusal. Instead the lane is fenced. The fence determines which of its requests are written, and
the others are signed under a new lane. This makes resending idempotent: nodes deduplicate by lane and id. Knows nothing
of callers (`write_queue`), of matching answers to packs (`lane`) and of choosing a node (`node_selection`).

Invariants:
- at most `PACKS_MAX` packs of a lane are unanswered, fewer than nodes remember receipts of;
- no request is signed under a new lane before the outcomes of all requests under the old lane are known.
"""

from __future__ import annotations

from enum import Enum, auto

from chaplain.client.protocol.call_events import Failure, refusal
from chaplain.client.protocol.journal import packing
from chaplain.client.protocol.journal.config_requests import APPLIED, ConfigRequestClient
from chaplain.client.protocol.journal.error_kinds import (
    COPY_DISCARDED,
    DISK_FULL,
    IDENTITY_ENDED,
    IDENTITY_REFUSED,
    INVALID,
    NO_ORDER,
    RETRY_ELSEWHERE,
    RETRY_LATER,
)
from chaplain.client.protocol.journal.events import JournalEffect
from chaplain.client.protocol.journal.lane import Packed, ProducerLane
from chaplain.client.protocol.journal.node_selection import NodeSelector, NodeSession
from chaplain.client.protocol.journal.signer import PackSigner
from chaplain.client.protocol.journal.write_queue import PendingWrite, WriteQueue
from chaplain.client.types.journal import RequestId
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.core import soonest
from chaplain.journal.messages.client import AlreadyWritten, Decided, GoBack, NotWritten, Receipts, Write
from chaplain.journal.messages.config import FenceLane, LeaseLane, RetireLane
from chaplain.journal.messages.write_request import REQUEST_ID_MAX

PACKS_MAX = 48
"""Unanswered packs of one lane. Nodes remember the receipts of the last 64."""
SMALL_PACKS_MAX = 8
"""With this many packs unanswered, no small pack is sent: waiting writes accumulate until a pack is answered."""
SMALL_BYTES = 32 * 1024
"""A pack with fewer bytes is small."""
IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024
"""Unanswered bytes of one lane."""
ANSWER_NS = 3_000_000_000
"""After this long without any answer, everything is sent again, through another node if there is one."""
PAUSE_FIRST_NS = 5_000_000
"""Pause after a transient refusal; doubled with each consecutive one."""
PAUSE_MAX_NS = 500_000_000
"""Upper limit of the pause."""


class LanePhase(Enum):
    """The phase of the present lane; the module docstring has the diagram."""

    NONE = auto()
    LEASING = auto()
    OPEN = auto()
    FENCING = auto()


class LaneWriters:
    """Writes queued requests on the present lane, and finishes the lanes before it."""

    def __init__(
        self,
        effects: list[JournalEffect],
        selector: NodeSelector,
        config_requests: ConfigRequestClient,
        signer: PackSigner,
        ids_max: int = REQUEST_ID_MAX,
    ) -> None:
        self._selector = selector
        self._config_requests = config_requests
        self._signer = signer
        self._ids_max = ids_max
        self.queue = WriteQueue(effects)
        self._phase = LanePhase.NONE
        self._lane: ProducerLane[PendingWrite] | None = None
        self._nonce = b""
        """Nonce of the present lease: the cluster answers a repeated request with the same lane."""
        self._retiring: dict[int, ProducerLane[PendingWrite]] = {}
        """Fenced lanes whose receipts have not all arrived."""
        self._config_request = 0
        """The pending lease or fence request."""
        self._paused_until_ns = 0
        """Nothing is sent before this time, after a transient refusal."""
        self._pause_ns = PAUSE_FIRST_NS
        self._progress_ns = 0
        """When an answer last made progress, or sending began."""
        self._refusal = ""
        """Why nodes do not accept the same bytes now."""
        self._identity_error = ""
        """Why the cluster accepts nothing more from this identity."""

    # Commands and session changes.

    def flush(self, now_ns: int) -> None:
        """Sign and send all requests that may be sent now."""
        session = self._selector.chosen
        if session is None:
            return
        if self._retiring:
            for retiring in self._retiring.values():
                self._send_unsent(now_ns, session, retiring)
        if self._phase is LanePhase.NONE and self.queue.first() is not None:
            self._lease(now_ns)
        if self._phase is LanePhase.OPEN and self._lane is not None:
            if self._lane.cursor < self._lane.next_id:
                self._send_unsent(now_ns, session, self._lane)
            if self.queue.unsigned:
                self._pack(now_ns, session, self._lane)

    def on_switched(self, now_ns: int) -> None:
        """Another session is used: nothing was sent on it yet."""
        self._paused_until_ns = 0
        self._progress_ns = now_ns
        for lane in self._lanes():
            lane.rewind(lane.oldest_id)

    def on_timer(self, now_ns: int) -> None:
        """Resend what was not answered in time, and expire writes."""
        if now_ns >= self._paused_until_ns:
            self._paused_until_ns = 0
        due_ns = self._answer_due_ns()
        if due_ns is not None and now_ns >= due_ns:
            self._progress_ns = now_ns
            if not self._selector.rotate():
                self.on_switched(now_ns)
        if self._selector.disk_full_reason:
            self._requeue_discarded(now_ns)
        self.queue.expire(
            now_ns, self._delay_reason(), Failure.DISK_FULL if self._selector.disk_full_reason else Failure.UNREACHABLE
        )

    def _requeue_discarded(self, now_ns: int) -> None:
        """Take all packs back when a write expires and nodes have discarded every copy of every pack.

        None of them is written then, so their writes end with a definite refusal instead of `UNKNOWN`.
        """
        lane, due_ns = self._lane, self.queue.due_ns()
        if lane is None or self._phase is not LanePhase.OPEN or due_ns is None or now_ns < due_ns:
            return
        if lane.in_flight and not any(packed.sends for packed in lane.in_flight.values()):
            self.queue.requeue(write for packed in lane.take_after(0) for write in packed.items)
            self.fence(now_ns)  # their ids are used up: continue on a new lane

    def due_ns(self) -> int | None:
        """The next time at which `on_timer` must be called."""
        paused = self._paused_until_ns and any(True for lane in self._lanes() for _ in lane.unsent())
        return soonest((self.queue.due_ns(), self._answer_due_ns(), self._paused_until_ns if paused else None))

    def stop(self, now_ns: int) -> None:
        """Give the lane back, unless the outcome of a pack on it is still open, and end all writes."""
        why = "the client was closed before a receipt came"
        lane = self._lane
        if lane is not None and not lane.in_flight and self._selector.chosen is not None:
            self._retire(now_ns, lane)
        self.queue.refuse_unsigned(f"not written: {why}", Failure.CLOSED)
        self._fail_in_flight(why)

    def fail_all(self, reason: str) -> None:
        """All nodes refuse this client: fail queued writes; writes in flight become `UNKNOWN`."""
        self.queue.refuse_unsigned(f"not written: {self._identity_error or reason}")
        self._fail_in_flight(self._identity_error or reason)

    def _fail_in_flight(self, why: str) -> None:
        """End all writes in flight with `UNKNOWN`."""
        for lane in self._lanes():
            for packed in lane.in_flight.values():
                for write in packed.items:
                    self.queue.fail_unknown(write, f"{why}, so it may or may not be written")

    # Answers.

    def on_receipts(self, now_ns: int, message: Receipts) -> None:
        """Receipts of committed packs."""
        for run in message.runs:
            lane = self.find_lane(run.client_id)
            if lane is not None:
                self._settled(now_ns, lane, lane.settle(run))

    def on_already_written(self, now_ns: int, message: AlreadyWritten) -> None:
        """These packs were committed earlier, and the node no longer remembers their places."""
        lane = self.find_lane(message.client_id)
        if lane is not None:
            self._settled(now_ns, lane, lane.settle_through(message.last_id))

    def _settled(
        self, now_ns: int, lane: ProducerLane[PendingWrite], settled: list[tuple[Packed[PendingWrite], ReceiptPlace]]
    ) -> None:
        """These packs are answered."""
        if settled:
            self._progress_ns = now_ns
            self._pause_ns = PAUSE_FIRST_NS
            self._refusal = self._selector.disk_full_reason = ""
        for packed, place in settled:
            self.queue.acknowledge(now_ns, packed.items, place)
        self._retire_if_done(now_ns, lane)

    def on_go_back(self, now_ns: int, message: GoBack) -> None:
        """A node expects an earlier id: send again from there."""
        lane = self.find_lane(message.client_id)
        if lane is not None and lane.in_flight:
            lane.rewind(message.expected_id)
            self._pause(now_ns)

    def on_not_written(self, now_ns: int, message: NotWritten) -> None:
        """A node refuses a pack: retry, fence the lane, or give up, depending on the kind."""
        lane = self.find_lane(message.client_id)
        packed = lane.in_flight.get(message.first_id) if lane is not None else None
        is_ours = (lane is not None and lane is self._lane) or not message.client_id
        if message.kind in IDENTITY_REFUSED and is_ours:
            self._identity_error = message.reason
            if packed is not None:
                packed.refused = True
            decided_by_cluster = message.kind in IDENTITY_ENDED and lane is not None and message.expected_id > 0
            self._on_identity_removed(now_ns, message.reason, message.expected_id - 1 if decided_by_cluster else None)
            return
        if lane is None or packed is None:
            return  # already answered
        if message.kind in RETRY_LATER:
            self._refusal = message.reason
            packed.sends -= message.kind in COPY_DISCARDED  # that copy can no longer be committed
            lane.rewind(message.first_id)
            self._pause(now_ns)
            if message.kind in RETRY_ELSEWHERE:
                self._selector.avoid_chosen(now_ns, message.reason if message.kind == DISK_FULL else "")
        elif message.client_id in self._retiring:
            # The fence has shown that it is written. Only this node cannot supply the receipt.
            self._settled(now_ns, lane, lane.settle_through(message.first_id + message.requests - 1))
        elif message.kind == "unknown_lane":
            packed.refused = True
            self._request_lane(now_ns)
        elif message.kind == "fenced":
            self.fence(now_ns)
        else:
            self._on_refused(now_ns, lane, message)

    def _on_refused(self, now_ns: int, lane: ProducerLane[PendingWrite], message: NotWritten) -> None:
        """The pack will never be written. Its ids are used up, so nothing can follow it on this lane: fence it."""
        packed = lane.in_flight[message.first_id]
        if message.kind.startswith(INVALID) and packed.sends > 1:
            packed.rejected = message  # another copy may be ordered and even succeed: the fence decides
        else:
            self._refuse(lane.take_at(packed.first_id) or packed, message)
        self.fence(now_ns)

    def _refuse(self, packed: Packed[PendingWrite], message: NotWritten) -> None:
        """End the writes of a pack with a definite refusal."""
        kind, _, statement_kind = message.kind.partition(":")
        failure = Failure.STATEMENT if kind == INVALID else refusal(kind)
        for write in packed.items:
            self.queue.refuse(write, message.reason, failure, statement_kind)

    def _pause(self, now_ns: int) -> None:
        """Wait before the next attempt, because the node has just refused a pack for a transient reason."""
        if now_ns >= self._paused_until_ns:
            self._paused_until_ns = now_ns + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, PAUSE_MAX_NS)

    # Lanes.

    def _lease(self, now_ns: int) -> None:
        """Request a new lane."""
        self._nonce = self._config_requests.new_nonce()
        self._request_lane(now_ns)

    def _request_lane(self, now_ns: int) -> None:
        """Request the lane of the present nonce, as often as necessary.

        When a node answers, it has executed the lease and therefore knows the lane.
        """
        if self._phase in (LanePhase.NONE, LanePhase.OPEN):
            self._phase = LanePhase.LEASING
            lease = LeaseLane(self._selector.acl)
            self._config_request = self._config_requests.submit(now_ns, lease, self._on_leased, self._nonce)

    def _on_leased(self, now_ns: int, decided: Decided) -> None:
        """The cluster has decided on the lease."""
        assert self._phase is LanePhase.LEASING
        self._phase, self._config_request = LanePhase.NONE, 0
        if decided.kind == "unknown_lane":  # the lane of this lease has ended: a new one needs a new nonce
            self._lease(now_ns)
            return
        if decided.kind != APPLIED or not decided.client_id:
            self._on_identity_removed(now_ns, decided.reason)
            return
        old = self._lane
        if old is not None and old.client_id == decided.client_id:
            old.rewind(old.oldest_id)
        else:
            self._lane = ProducerLane(decided.client_id, decided.last_id)
            if old is not None:
                self._fail_lane(old)
        self._phase = LanePhase.OPEN
        self._progress_ns = now_ns

    def _fail_lane(self, lane: ProducerLane[PendingWrite], why: str = "its lane has ended") -> None:
        """The lane ended without a fence: requeue the packs that are certainly not written, and fail the others.

        A pack is certainly not written if it was never sent, or if its only copy was refused. All other writes end with
        `UNKNOWN`.
        """
        reissued: list[PendingWrite] = []
        for packed in lane.take_after(0):
            if packed.sends == 0 or (packed.sends == 1 and packed.refused):
                reissued += packed.items
                continue
            for write in packed.items:
                self.queue.fail_unknown(write, f"{why}, so it is unknown whether it was written: read the stream")
        self.queue.requeue(reissued)

    def _on_identity_removed(self, now_ns: int, reason: str, last_id: int | None = None) -> None:
        """The cluster does not know this identity, or no longer: end the lane and all writes.

        Packs after `last_id`, if given, are never written. Packs up to that id may have been written by another holder
        of our key: for them, only a receipt is certain.
        """
        self._config_requests.withdraw(self._config_request)
        lane, self._lane, self._phase, self._config_request = self._lane, None, LanePhase.NONE, 0
        if lane is not None:
            unwritten = [] if last_id is None else lane.take_after(last_id)
            self._fail_lane(lane, reason)
            self.queue.requeue(write for packed in unwritten for write in packed.items)
        self.queue.refuse_unsigned(f"not written: {reason}")

    def fence(self, now_ns: int) -> None:
        """Stop writing on the present lane, and find out which of its requests are written."""
        if self._phase in (LanePhase.OPEN, LanePhase.LEASING) and self._lane is not None:
            self._config_requests.withdraw(self._config_request)
            self._phase = LanePhase.FENCING
            self._config_request = self._config_requests.submit(
                now_ns, FenceLane(self._lane.client_id), self._on_fenced
            )

    def _on_fenced(self, now_ns: int, decided: Decided) -> None:
        """The fence is decided: everything after the lane's last id is not and never will be written."""
        lane = self._lane
        assert lane is not None
        assert self._phase is LanePhase.FENCING
        self._lane, self._phase, self._config_request = None, LanePhase.NONE, 0
        if decided.kind != APPLIED:
            self._fail_lane(lane)
            return
        unwritten = lane.take_after(decided.last_id)
        self.queue.requeue(write for packed in unwritten if packed.rejected is None for write in packed.items)
        for packed in unwritten:
            if packed.rejected is not None:
                self._refuse(packed, packed.rejected)
        lane.rewind(lane.oldest_id)
        self._retiring[lane.client_id] = lane
        self._retire_if_done(now_ns, lane)

    def _retire_if_done(self, now_ns: int, lane: ProducerLane[PendingWrite]) -> None:
        """Give back a lane that is fenced or has no ids left, once all its packs are answered."""
        if lane.in_flight:
            return
        if self._retiring.pop(lane.client_id, None) is not None:
            self._retire(now_ns, lane)
        elif lane is self._lane and self._phase is LanePhase.OPEN and lane.next_id > self._ids_max:
            self._lane, self._phase = None, LanePhase.NONE
            self._retire(now_ns, lane)

    def _retire(self, now_ns: int, lane: ProducerLane[PendingWrite]) -> None:
        """Give a lane back. Nodes remember the outcomes of its requests for a while."""
        retire = RetireLane(lane.client_id, self._selector.acl)
        self._config_requests.submit(now_ns, retire, lambda now_ns, decided: None)

    # Sending.

    def _send_unsent(self, now_ns: int, session: NodeSession, lane: ProducerLane[PendingWrite]) -> None:
        """Send the packs that were not sent on this session, as far as credit allows."""
        if now_ns < self._paused_until_ns:
            return
        for packed in list(lane.unsent()):
            # Credit does not hold back the oldest unanswered pack: a node without room answers `busy`.
            if lane.cursor > lane.oldest_id and not session.has_credit_for(len(packed.raw)):
                break
            self._send_pack(now_ns, session, lane, packed)

    def _send_pack(
        self, now_ns: int, session: NodeSession, lane: ProducerLane[PendingWrite], packed: Packed[PendingWrite]
    ) -> None:
        """Send one pack."""
        if lane.cursor <= lane.oldest_id:
            self._progress_ns = now_ns
        session.used_bytes += len(packed.raw)
        lane.sent(packed)
        self._selector.send(Write(packed.stream, packed.check), packed.raw)

    def _pack(self, now_ns: int, session: NodeSession, lane: ProducerLane[PendingWrite]) -> None:
        """Sign and send queued writes, as far as the limits allow."""
        bytes_max = min(packing.PACK_BYTES, self._selector.pack_bytes_max or packing.PACK_BYTES)
        while self.queue.unsigned and self._may_pack(session, lane):
            if self._selector.pack_bytes_max is not None:
                self.queue.refuse_oversized(self._selector.pack_bytes_max)
            count = packing.choose(self.queue.unsigned_batches(), self._ids_max - lane.next_id + 1, bytes_max)
            if not count:
                if self.queue.first() is not None:
                    lane.next_id = max(lane.next_id, self._ids_max + 1)  # too few ids are left for the next write
                    self._retire_if_done(now_ns, lane)
                return
            packed = self._sign(lane, [self.queue.pop() for _ in range(count)])
            self._send_pack(now_ns, session, lane, packed)

    def _may_pack(self, session: NodeSession, lane: ProducerLane[PendingWrite]) -> bool:
        """True if another pack may be signed now."""
        unanswered = len(lane.in_flight)
        if not unanswered or session.unusable_reason:
            return not session.unusable_reason  # an unsigned write is certainly not written, so it can fail definitely
        if lane.cursor < lane.next_id or unanswered >= PACKS_MAX or lane.in_flight_bytes >= IN_FLIGHT_BYTES_MAX:
            return False
        if unanswered >= SMALL_PACKS_MAX and self.queue.unsigned_bytes < SMALL_BYTES:
            return False
        first = self.queue.first()
        return first is not None and session.has_credit_for(max(packing.PACK_BYTES, packing.packed_bytes(first.batch)))

    def _sign(self, lane: ProducerLane[PendingWrite], writes: list[PendingWrite]) -> Packed[PendingWrite]:
        """Sign these writes as one pack and add it to the lane."""
        batches = [write.batch for write in writes]
        raw = packing.make_pack(lane.client_id, lane.next_id, batches, self._signer)
        first_id = lane.next_id
        for write in writes:
            write.id = RequestId(lane.client_id, first_id)
            first_id += write.requests
        messages = len(batches[0].values) if len(batches) == 1 else sum(len(batch.values) for batch in batches)
        requests = first_id - lane.next_id
        stream = batches[0].stream
        packed = Packed(lane.next_id, requests=requests, messages=messages, stream=stream, raw=raw, items=writes)
        packed.check = requests == 1 and batches[0].check
        lane.add(packed)
        return packed

    # Look-ups.

    def is_open(self, client_id: int) -> bool:
        """True if new requests are written on this lane."""
        return self._lane is not None and self._lane.client_id == client_id

    def _lanes(self) -> list[ProducerLane[PendingWrite]]:
        return [*self._retiring.values(), *([self._lane] if self._lane is not None else [])]

    def find_lane(self, client_id: int) -> ProducerLane[PendingWrite] | None:
        """The present or retiring lane of this id."""
        if self._lane is not None and self._lane.client_id == client_id:
            return self._lane
        return self._retiring.get(client_id)

    def _answer_due_ns(self) -> int | None:
        """When the lack of an answer leads to a resend."""
        waits = self._lane is not None and bool(self._lane.in_flight)
        if not waits and self._retiring:
            waits = any(lane.in_flight for lane in self._retiring.values())
        return self._progress_ns + ANSWER_NS if waits and self._selector.chosen is not None else None

    def _delay_reason(self) -> str:
        """Error text: why a write takes so long."""
        if self._selector.chosen is None:
            return self._selector.unavailable_reason
        if lasting := self._selector.disk_full_reason or self._selector.chosen.unusable_reason:
            return lasting
        match self._phase:
            case LanePhase.LEASING:
                return "the cluster has not granted a lane to write on; does it have a master?"
            case LanePhase.FENCING:
                return "the cluster has not decided what became of earlier requests; does it have a master?"
        return self._refusal or NO_ORDER
