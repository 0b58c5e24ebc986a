"""What callers want written, and what each of them was told.

Decides how a write ends for its caller: with its place, with a refusal that is definite, or with `UNKNOWN` and the
request's id. Refuses to know lanes.

A call is given up when its time is over; a chunk of a writer, when for so long nothing of that writer was written: it
was handed over behind all that the writer has under way, and waits for that first.

Invariants: a caller is told once; whoever was told `UNKNOWN` is never written under another id; only what is definitely
not written is told as anything else than `UNKNOWN`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from chaplain.client.protocol.call_events import Failure, Raised
from chaplain.client.protocol.deadlines import Deadlines
from chaplain.client.protocol.journal.events import Batch, JournalEffect, WriteCommand, WritesAcknowledged
from chaplain.client.protocol.journal.outcome_cache import OutcomeCache
from chaplain.client.protocol.journal.packing import packed_bytes
from chaplain.client.types.journal import PLACE_UNKNOWN, RequestId
from chaplain.client.types.receipts import ReceiptPlace

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""What may wait to be packed; more is refused with `BUSY`."""
WAITING_MAX = 100_000
GROUPS_MAX = 1024


class PendingWrite:
    """The requests of one caller."""

    __slots__ = ("batch", "call", "group", "id", "requests", "timeout_ns")

    def __init__(self, wish: WriteCommand) -> None:
        self.batch: Batch = wish.batch
        self.requests = wish.batch.requests
        self.call = wish.call
        """0 when nobody waits any more."""
        self.group = wish.group
        self.timeout_ns = wish.timeout_ns
        self.id: RequestId | None = None
        """Of its first request, once it was signed."""


class WriteQueue:
    def __init__(self, effects: list[JournalEffect]) -> None:
        self._effects = effects
        self._by_call: dict[int, PendingWrite] = {}
        self._deadlines = Deadlines()
        self.due_ns = self._deadlines.next_ns
        self.fates = OutcomeCache()
        self._failed_groups: dict[int, str] = {}
        self._progress_ns: dict[int, int] = {}
        """When something of a group was written last."""
        self.queue: deque[PendingWrite] = deque()
        """Not yet signed, in order."""
        self.queued_bytes = 0

    def take(self, now_ns: int, wish: WriteCommand) -> None:
        if wish.group in self._failed_groups:
            self._raise(wish.call, Failure.REFUSED, self._failed_groups[wish.group])
        elif self.queued_bytes + wish.batch.size_bytes > WAITING_BYTES_MAX or len(self.queue) >= WAITING_MAX:
            reason = f"{self.queued_bytes} bytes wait to be written, close to the bound: wait for some of them first"
            self._raise(wish.call, Failure.BUSY, reason)
        else:
            job = PendingWrite(wish)
            self._by_call[job.call] = job
            self._deadlines.set(job.call, now_ns + job.timeout_ns)
            self.queue.append(job)
            self.queued_bytes += job.batch.size_bytes

    @property
    def waits(self) -> bool:
        """Whether somebody waits to be told."""
        return bool(self._by_call)

    def first(self) -> PendingWrite | None:
        """The job to be signed next. Those before it that nobody waits for any more are dropped here."""
        while self.queue and not self.queue[0].call:
            self.pop()
        return self.queue[0] if self.queue else None

    def waiting(self) -> Iterable[Batch]:
        """What is to be signed next, in order, up to something that nobody waits for any more."""
        first = self.first()
        if first is None:
            return ()
        return (first.batch,) if len(self.queue) == 1 else self._wanted()

    def _wanted(self) -> Iterator[Batch]:
        for job in self.queue:
            if not job.call:
                return
            yield job.batch

    def pop(self) -> PendingWrite:
        job = self.queue.popleft()
        self.queued_bytes -= job.batch.size_bytes
        return job

    def put_back(self, jobs: Iterable[PendingWrite]) -> None:
        """These are definitely not written: sign them anew, before all others, if somebody still waits."""
        for job in reversed(list(jobs)):
            told = job.id
            job.id = None
            if job.group in self._failed_groups:
                self.refuse(job, self._failed_groups[job.group])
            elif job.call:
                self.queue.appendleft(job)
                self.queued_bytes += job.batch.size_bytes
            if told is not None:
                self.fates.know(told, job.requests, None)

    # How jobs end.

    def written(self, now_ns: int, jobs: Iterable[PendingWrite], place: ReceiptPlace) -> None:
        """The pack of these jobs is written there."""
        first_id, offset = place.first_id, place.base_offset
        for job in jobs:
            requests, messages = job.requests, len(job.batch.values)
            mine = ReceiptPlace(
                place.client_id,
                first_id,
                requests,
                place.stream,
                offset,
                messages,
                place.index,
                place.regime,
                place.timestamp_ns,
                place.hash,
            )
            first_id += requests
            offset = offset if offset == PLACE_UNKNOWN else offset + messages
            self._end(job, WritesAcknowledged(job.call, mine))
            if job.group:
                self._progressed(now_ns, job.group)
            assert job.id is not None
            self.fates.know(job.id, requests, mine)

    def refuse(self, job: PendingWrite, reason: str, failure: Failure = Failure.REFUSED, kind: str = "") -> None:
        """Definitely not written, and it will not be."""
        self._fail_group(job, reason)
        self._end(job, Raised(job.call, failure, reason, kind=kind))
        if job.id is not None:
            self.fates.know(job.id, job.requests, None)

    def refuse_beyond(self, bytes_max: int) -> None:
        """What no node would take is not signed: an id would be lost with it."""
        while (first := self.first()) is not None and packed_bytes(first.batch) > bytes_max:
            size = f"a request of {first.batch.size_bytes} bytes in {len(first.batch.values)} messages"
            self.refuse(self.pop(), f"{size} is too much for this cluster, which takes {bytes_max} in all")

    def _fail_group(self, job: PendingWrite, reason: str) -> None:
        if job.group:
            self._failed_groups.setdefault(job.group, reason)
            if len(self._failed_groups) > GROUPS_MAX:
                del self._failed_groups[next(iter(self._failed_groups))]

    def lose(self, job: PendingWrite, reason: str) -> None:
        """It was sent, and nobody can tell any more."""
        self._end(job, Raised(job.call, Failure.UNKNOWN, reason, job.id))
        for call, request in self.fates.watchers(job.id) if job.id is not None else ():
            self._raise(call, Failure.UNKNOWN, reason, request)

    def refuse_queued(self, reason: str, failure: Failure = Failure.REFUSED) -> None:
        for job in [*self.queue]:
            self.refuse(job, reason, failure)
        self.queue.clear()
        self.queued_bytes = 0

    def _end(self, job: PendingWrite, effect: WritesAcknowledged | Raised) -> None:
        call, job.call = job.call, 0
        if call:
            del self._by_call[call]
            self._deadlines.clear(call)
            self._effects.append(effect)

    def _progressed(self, now_ns: int, group: int) -> None:
        self._progress_ns.pop(group, None)  # the oldest is the first to be forgotten
        self._progress_ns[group] = now_ns
        if len(self._progress_ns) > GROUPS_MAX:
            del self._progress_ns[next(iter(self._progress_ns))]

    def _raise(self, call: int, failure: Failure, reason: str, request: RequestId | None = None) -> None:
        self._effects.append(Raised(call, failure, reason, request))

    def cancelled(self, call: int) -> bool:
        job = self._by_call.pop(call, None)
        if job is not None:
            job.call = 0
            self._deadlines.clear(call)
        return job is not None

    # Time.

    def expire(self, now_ns: int, trouble: str, failure: Failure = Failure.UNREACHABLE) -> None:
        for call in self._deadlines.pop_due(now_ns):
            job = self._by_call[call]
            patient_ns = self._progress_ns.get(job.group, 0) + job.timeout_ns
            if patient_ns > now_ns:
                self._deadlines.set(call, patient_ns)
                continue
            waited = f"waited {job.timeout_ns / 1e9:g} s; {trouble}"
            if job.id is None:
                self.refuse(job, f"not written: {waited}", failure)
            else:
                reason = f"no receipt came, so it may or may not be written: {waited}; resolve({tuple(job.id)}) tells"
                self._end(job, Raised(job.call, Failure.UNKNOWN, reason, job.id))
                self._fail_group(job, reason)
        self.first()  # lets go of those at the front that nobody waits for
