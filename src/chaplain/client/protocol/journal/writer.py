"""Writing: signs what waits, keeps it until it is answered, and sends it again, octet by octet, wherever it must.

    none ──lease──▶ leasing ──▶ open ──refused, resolved, fenced by others──▶ fencing ──▶ none
                       ▲          │ unknown to the node
                       └──────────┘

Decides which lane requests go under and what to do when one cannot go on. An id is never signed twice, not even after a
refusal: then the lane is fenced, which tells for certain what of it is written, and the rest is signed under a new one.
Refuses to know callers (`jobs`), answers by id (`lane`) and sessions (`outlets`).

Invariants: at most `PACKS_MAX` packs of a lane are unanswered, which is less than nodes remember receipts of; nothing
is signed under a new lane before the fate of everything under the old one is known.
"""

from __future__ import annotations

from enum import Enum, auto

from chaplain.client.protocol.call_events import Failure
from chaplain.client.protocol.journal import packing
from chaplain.client.protocol.journal.config_requests import APPLIED, ConfigRequestClient
from chaplain.client.protocol.journal.error_kinds import ELSEWHERE, ENDED, FULL, IDENTITY, INVALID, LATER, UNREAD
from chaplain.client.protocol.journal.events import JournalEffect
from chaplain.client.protocol.journal.lane import Packed, ProducerLane
from chaplain.client.protocol.journal.node_selection import NodeOutlet, Outlets
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
"""With so many unanswered, what waits is not sent in small packs: it grows until some are answered."""
SMALL_BYTES = 32 * 1024
IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024
ANSWER_NS = 3_000_000_000
"""Without any answer for so long, everything is sent again, through another node if there is one."""
PAUSE_FIRST_NS = 5_000_000
PAUSE_MOST_NS = 500_000_000


class LanePhase(Enum):
    NONE = auto()
    LEASING = auto()
    OPEN = auto()
    FENCING = auto()


class LaneWriters:
    def __init__(
        self,
        effects: list[JournalEffect],
        outlets: Outlets,
        petitioning: ConfigRequestClient,
        signer: PackSigner,
        ids_max: int = REQUEST_ID_MAX,
    ) -> None:
        self._outlets = outlets
        self._petitioning = petitioning
        self._signer = signer
        self._ids_max = ids_max
        self.jobs = WriteQueue(effects)
        self._phase = LanePhase.NONE
        self._lane: ProducerLane[PendingWrite] | None = None
        self._nonce = b""
        """Of the present lease: asked again with it, the cluster gives the same lane."""
        self._retiring: dict[int, ProducerLane[PendingWrite]] = {}
        """Fenced lanes, of which receipts are still missing."""
        self._petition = 0
        """The lease or fence that is asked for."""
        self._hold_ns = 0
        self._pause_ns = PAUSE_FIRST_NS
        self._progress_ns = 0
        self._refusal = ""
        """Why the same octets are not taken now."""
        self._ended = ""
        """Why the cluster will have no more of this identity."""

    # From outside.

    def drained(self, now_ns: int) -> None:
        """Sign and send whatever may be sent now."""
        outlet = self._outlets.chosen
        if outlet is None:
            return
        if self._retiring:
            for retiring in self._retiring.values():
                self._send(now_ns, outlet, retiring)
        if self._phase is LanePhase.NONE and self.jobs.first() is not None:
            self._lease(now_ns)
        if self._phase is LanePhase.OPEN and self._lane is not None:
            if self._lane.cursor < self._lane.next_id:
                self._send(now_ns, outlet, self._lane)
            if self.jobs.queue:
                self._pack(now_ns, outlet, self._lane)

    def moved(self, now_ns: int) -> None:
        """Another session: there, nothing was sent yet."""
        self._hold_ns = 0
        self._progress_ns = now_ns
        for lane in self._lanes():
            lane.go_back(lane.oldest_id)

    def woken(self, now_ns: int) -> None:
        if now_ns >= self._hold_ns:
            self._hold_ns = 0
        due_ns = self._answer_due_ns()
        if due_ns is not None and now_ns >= due_ns:
            self._progress_ns = now_ns
            if not self._outlets.rotate():
                self.moved(now_ns)
        if self._outlets.full:
            self._withdraw(now_ns)
        self.jobs.expire(now_ns, self._trouble(), Failure.DISK_FULL if self._outlets.full else Failure.UNREACHABLE)

    def _withdraw(self, now_ns: int) -> None:
        """Time is up for something, and every copy of everything was turned away: so it is certain what to tell."""
        lane, due_ns = self._lane, self.jobs.due_ns()
        if lane is None or self._phase is not LanePhase.OPEN or due_ns is None or now_ns < due_ns:
            return
        if lane.in_flight and not any(packed.sends for packed in lane.in_flight.values()):
            self.jobs.put_back(job for packed in lane.take_after(0) for job in packed.things)
            self.fence(now_ns)  # their ids are used up

    def due_ns(self) -> int | None:
        held = self._hold_ns and any(True for lane in self._lanes() for _ in lane.unsent())
        return soonest((self.jobs.due_ns(), self._answer_due_ns(), self._hold_ns if held else None))

    def stop(self, now_ns: int) -> None:
        """Give back the lane, unless somebody may still want to know what became of something on it."""
        why = "the client was closed before a receipt came"
        lane = self._lane
        if lane is not None and not lane.in_flight and self._outlets.chosen is not None:
            self._retire(now_ns, lane)
        self.jobs.refuse_queued(f"not written: {why}", Failure.CLOSED)
        self._lose_all(why)

    def bar(self, reason: str) -> None:
        """No node will have us: nothing waits for better times, and what was sent is left as it is."""
        self.jobs.refuse_queued(f"not written: {self._ended or reason}")
        self._lose_all(self._ended or reason)

    def _lose_all(self, why: str) -> None:
        for lane in self._lanes():
            for packed in lane.in_flight.values():
                for job in packed.things:
                    self.jobs.lose(job, f"{why}, so it may or may not be written")

    # Answers.

    def receipts(self, now_ns: int, message: Receipts) -> None:
        for run in message.runs:
            lane = self.find_lane(run.client_id)
            if lane is not None:
                self._settled(now_ns, lane, lane.settle(run))

    def already(self, now_ns: int, message: AlreadyWritten) -> None:
        lane = self.find_lane(message.client_id)
        if lane is not None:
            self._settled(now_ns, lane, lane.settle_through(message.last_id))

    def _settled(
        self, now_ns: int, lane: ProducerLane[PendingWrite], settled: list[tuple[Packed[PendingWrite], ReceiptPlace]]
    ) -> None:
        if settled:
            self._progress_ns = now_ns
            self._pause_ns = PAUSE_FIRST_NS
            self._refusal = self._outlets.full = ""
        for packed, place in settled:
            self.jobs.written(now_ns, packed.things, place)
        self._let_go(now_ns, lane)

    def go_back(self, now_ns: int, message: GoBack) -> None:
        lane = self.find_lane(message.client_id)
        if lane is not None and lane.in_flight:
            lane.go_back(message.expected_id)
            self._pause(now_ns)

    def not_written(self, now_ns: int, message: NotWritten) -> None:
        lane = self.find_lane(message.client_id)
        packed = lane.in_flight.get(message.first_id) if lane is not None else None
        ours = (lane is not None and lane is self._lane) or not message.client_id
        if message.kind in IDENTITY and ours:
            self._ended = message.reason
            if packed is not None:
                packed.refused = True
            told = message.kind in ENDED and lane is not None and message.expected_id > 0
            self._disown(now_ns, message.reason, message.expected_id - 1 if told else None)
            return
        if lane is None or packed is None:
            return  # answered before
        if message.kind in LATER:
            self._refusal = message.reason
            packed.sends -= message.kind in UNREAD
            lane.go_back(message.first_id)
            self._pause(now_ns)
            if message.kind in ELSEWHERE:
                self._outlets.shun(now_ns, message.reason if message.kind == FULL else "")
        elif message.client_id in self._retiring:
            # Fenced and found written: only its receipt cannot be had here.
            self._settled(now_ns, lane, lane.settle_through(message.first_id + message.requests - 1))
        elif message.kind == "unknown_lane":
            packed.refused = True
            self._renew(now_ns)
        elif message.kind == "fenced":
            self.fence(now_ns)
        else:
            self._refused(now_ns, lane, message)

    def _refused(self, now_ns: int, lane: ProducerLane[PendingWrite], message: NotWritten) -> None:
        """Never to be written. Its ids are used up all the same, so nothing can follow it on this lane."""
        packed = lane.in_flight[message.first_id]
        if message.kind.startswith(INVALID) and packed.sends > 1:
            packed.doomed = message  # another copy may be ordered, and may even succeed: the fence tells
        else:
            self._refuse(lane.take_at(packed.first_id) or packed, message)
        self.fence(now_ns)

    def _refuse(self, packed: Packed[PendingWrite], message: NotWritten) -> None:
        kind, _, of = message.kind.partition(":")
        for job in packed.things:
            self.jobs.refuse(job, message.reason, Failure.STATEMENT if kind == INVALID else Failure.REFUSED, of)

    def _pause(self, now_ns: int) -> None:
        """Do not ask at once what was just answered with not yet."""
        if now_ns >= self._hold_ns:
            self._hold_ns = now_ns + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, PAUSE_MOST_NS)

    # Lanes.

    def _lease(self, now_ns: int) -> None:
        self._nonce = self._petitioning.new_nonce()
        self._renew(now_ns)

    def _renew(self, now_ns: int) -> None:
        """Ask for the lane, as often as need be; who is asked has executed it when it answers."""
        if self._phase in (LanePhase.NONE, LanePhase.OPEN):
            self._phase = LanePhase.LEASING
            lease = LeaseLane(self._outlets.acl)
            self._petition = self._petitioning.submit(now_ns, lease, self._leased, self._nonce)

    def _leased(self, now_ns: int, decided: Decided) -> None:
        assert self._phase is LanePhase.LEASING
        self._phase, self._petition = LanePhase.NONE, 0
        if decided.kind == "unknown_lane":  # the one that this lease gave is over: another needs another nonce
            self._lease(now_ns)
            return
        if decided.kind != APPLIED or not decided.client_id:
            self._disown(now_ns, decided.reason)
            return
        old = self._lane
        if old is not None and old.client_id == decided.client_id:
            old.go_back(old.oldest_id)
        else:
            self._lane = ProducerLane(decided.client_id, decided.last_id)
            if old is not None:
                self._mourn(old)
        self._phase = LanePhase.OPEN
        self._progress_ns = now_ns

    def _mourn(self, lane: ProducerLane[PendingWrite], why: str = "its lane is over") -> None:
        """The lane is over without a fence. Only what was sent once, and refused, is certainly not written."""
        reissued: list[PendingWrite] = []
        for packed in lane.take_after(0):
            if packed.sends == 0 or (packed.sends == 1 and packed.refused):
                reissued += packed.things
                continue
            for job in packed.things:
                self.jobs.lose(job, f"{why}, so nobody can tell whether it was written: read the stream")
        self.jobs.put_back(reissued)

    def _disown(self, now_ns: int, reason: str, last_id: int | None = None) -> None:
        """The cluster does not know us, or no more. What lies behind its lane's last id, if told, is never written.

        What lies before it may be somebody else's, who has our key: of that, only a receipt is certain.
        """
        self._petitioning.withdraw(self._petition)
        lane, self._lane, self._phase, self._petition = self._lane, None, LanePhase.NONE, 0
        if lane is not None:
            unwritten = [] if last_id is None else lane.take_after(last_id)
            self._mourn(lane, reason)
            self.jobs.put_back(job for packed in unwritten for job in packed.things)
        self.jobs.refuse_queued(f"not written: {reason}")

    def fence(self, now_ns: int) -> None:
        """Write no more on the present lane, and find out what of it is written."""
        if self._phase in (LanePhase.OPEN, LanePhase.LEASING) and self._lane is not None:
            self._petitioning.withdraw(self._petition)
            self._phase = LanePhase.FENCING
            self._petition = self._petitioning.submit(now_ns, FenceLane(self._lane.client_id), self._fenced)

    def _fenced(self, now_ns: int, decided: Decided) -> None:
        lane = self._lane
        assert lane is not None
        assert self._phase is LanePhase.FENCING
        self._lane, self._phase, self._petition = None, LanePhase.NONE, 0
        if decided.kind != APPLIED:
            self._mourn(lane)
            return
        unwritten = lane.take_after(decided.last_id)
        self.jobs.put_back(job for packed in unwritten if packed.doomed is None for job in packed.things)
        for packed in unwritten:
            if packed.doomed is not None:
                self._refuse(packed, packed.doomed)
        lane.go_back(lane.oldest_id)
        self._retiring[lane.client_id] = lane
        self._let_go(now_ns, lane)

    def _let_go(self, now_ns: int, lane: ProducerLane[PendingWrite]) -> None:
        """A lane that is fenced or used up, and fully answered, is given back."""
        if lane.in_flight:
            return
        if self._retiring.pop(lane.client_id, None) is not None:
            self._retire(now_ns, lane)
        elif lane is self._lane and self._phase is LanePhase.OPEN and lane.next_id > self._ids_max:
            self._lane, self._phase = None, LanePhase.NONE
            self._retire(now_ns, lane)

    def _retire(self, now_ns: int, lane: ProducerLane[PendingWrite]) -> None:
        """What became of its requests can be asked for a while."""
        retire = RetireLane(lane.client_id, self._outlets.acl)
        self._petitioning.submit(now_ns, retire, lambda now_ns, decided: None)

    # Sending.

    def _send(self, now_ns: int, outlet: NodeOutlet, lane: ProducerLane[PendingWrite]) -> None:
        if now_ns < self._hold_ns:
            return
        for packed in list(lane.unsent()):
            if lane.cursor > lane.oldest_id and not outlet.affords(len(packed.raw)):
                break
            self._utter(now_ns, outlet, lane, packed)

    def _utter(
        self, now_ns: int, outlet: NodeOutlet, lane: ProducerLane[PendingWrite], packed: Packed[PendingWrite]
    ) -> None:
        if lane.cursor <= lane.oldest_id:
            self._progress_ns = now_ns
        outlet.used_bytes += len(packed.raw)
        lane.sent(packed)
        self._outlets.say(Write(packed.stream, packed.check), packed.raw)

    def _pack(self, now_ns: int, outlet: NodeOutlet, lane: ProducerLane[PendingWrite]) -> None:
        bytes_max = min(packing.PACK_BYTES, self._outlets.pack_bytes_max or packing.PACK_BYTES)
        while self.jobs.queue and self._may_pack(outlet, lane):
            if self._outlets.pack_bytes_max is not None:
                self.jobs.refuse_beyond(self._outlets.pack_bytes_max)
            count = packing.choose(self.jobs.waiting(), self._ids_max - lane.next_id + 1, bytes_max)
            if not count:
                if self.jobs.first() is not None:
                    lane.next_id = max(lane.next_id, self._ids_max + 1)  # too few ids are left
                    self._let_go(now_ns, lane)
                return
            packed = self._sign(lane, [self.jobs.pop() for _ in range(count)])
            self._utter(now_ns, outlet, lane, packed)

    def _may_pack(self, outlet: NodeOutlet, lane: ProducerLane[PendingWrite]) -> bool:
        unanswered = len(lane.in_flight)
        if not unanswered or outlet.barred:
            return not outlet.barred  # what is not signed is certainly not written
        if lane.cursor < lane.next_id or unanswered >= PACKS_MAX or lane.in_flight_bytes >= IN_FLIGHT_BYTES_MAX:
            return False
        if unanswered >= SMALL_PACKS_MAX and self.jobs.queued_bytes < SMALL_BYTES:
            return False
        first = self.jobs.first()
        return first is not None and outlet.affords(max(packing.PACK_BYTES, packing.packed_bytes(first.batch)))

    def _sign(self, lane: ProducerLane[PendingWrite], jobs: list[PendingWrite]) -> Packed[PendingWrite]:
        batches = [job.batch for job in jobs]
        raw = packing.make_pack(lane.client_id, lane.next_id, batches, self._signer)
        first_id = lane.next_id
        for job in jobs:
            job.id = RequestId(lane.client_id, first_id)
            first_id += job.requests
        messages = len(batches[0].values) if len(batches) == 1 else sum(len(batch.values) for batch in batches)
        requests = first_id - lane.next_id
        stream = batches[0].stream
        packed = Packed(lane.next_id, requests=requests, messages=messages, stream=stream, raw=raw, things=jobs)
        packed.check = requests == 1 and batches[0].check
        lane.add(packed)
        return packed

    # Looking things up.

    def is_open(self, client_id: int) -> bool:
        """Whether this is the lane that is written on."""
        return self._lane is not None and self._lane.client_id == client_id

    def _lanes(self) -> list[ProducerLane[PendingWrite]]:
        return [*self._retiring.values(), *([self._lane] if self._lane is not None else [])]

    def find_lane(self, client_id: int) -> ProducerLane[PendingWrite] | None:
        if self._lane is not None and self._lane.client_id == client_id:
            return self._lane
        return self._retiring.get(client_id)

    def _answer_due_ns(self) -> int | None:
        waits = self._lane is not None and bool(self._lane.in_flight)
        if not waits and self._retiring:
            waits = any(lane.in_flight for lane in self._retiring.values())
        return self._progress_ns + ANSWER_NS if waits and self._outlets.chosen is not None else None

    def _trouble(self) -> str:
        if self._outlets.chosen is None:
            return self._outlets.trouble
        if lasting := self._outlets.full or self._outlets.chosen.barred:
            return lasting
        match self._phase:
            case LanePhase.LEASING:
                return "the cluster gave no lane to write on; has it a master?"
            case LanePhase.FENCING:
                return "the cluster does not decide what became of earlier requests; has it a master?"
        return self._refusal or "the cluster is slow, or has no master"
