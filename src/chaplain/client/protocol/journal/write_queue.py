"""The writes of callers: queued, in flight, and their outcomes.

Decides how a write ends for its caller: with its place, with a definite refusal, or with `UNKNOWN` and the request's
id. Knows nothing of lanes.

A write expires when its timeout has passed. The chunk of a writer expires when no chunk of that writer was acknowledged
for the timeout, because it waits for all earlier chunks of the writer.

Invariants:
- a caller gets one outcome;
- a write that ended in `UNKNOWN` is never written under another id;
- a write that ended in any other error is definitely not written.
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
from chaplain.journal.model.reason import CONDITIONAL, REASONS, Reason, kind_of

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes that may wait to be packed; a write beyond that is refused with `BUSY`."""
WAITING_MAX = 100_000
"""Writes that may wait to be packed."""
GROUPS_MAX = 1024
"""Groups whose failure or progress is remembered."""


def conflict(call: int, place: ReceiptPlace) -> Raised:
    """The outcome of a call whose conditions did not hold."""
    reason = Reason(place.refusal) if place.refusal in CONDITIONAL else Reason.CONFLICT
    if reason is Reason.LEASE_LOST:
        return Raised(call, Failure.LEASE_LOST, REASONS[reason])
    why = f"{REASONS[reason]} (offset {place.base_offset})"
    return Raised(call, Failure.CONFLICT, why, kind=kind_of(reason), offset=place.base_offset)


class PendingWrite:
    """The requests of one caller."""

    __slots__ = ("batch", "call", "group", "id", "requests", "timeout_ns")

    def __init__(self, command: WriteCommand) -> None:
        self.batch: Batch = command.batch
        self.requests = command.batch.requests
        self.call = command.call
        """0 once the caller no longer waits."""
        self.group = command.group
        self.timeout_ns = command.timeout_ns
        self.id: RequestId | None = None
        """The id of its first request, once it is signed."""


class WriteQueue:
    """All writes without an outcome."""

    def __init__(self, effects: list[JournalEffect]) -> None:
        self._effects = effects
        self._by_call: dict[int, PendingWrite] = {}
        self._deadlines = Deadlines()
        self.due_ns = self._deadlines.next_ns
        self.outcomes = OutcomeCache()
        self._failed_groups: dict[int, str] = {}
        """The first failure of each failed group."""
        self._progress_ns: dict[int, int] = {}
        """When a write of a group was last acknowledged."""
        self.unsigned: deque[PendingWrite] = deque()
        """Writes that are not signed yet, in order."""
        self.unsigned_bytes = 0

    def add(self, now_ns: int, command: WriteCommand) -> None:
        """Queue a write, or refuse it."""
        if command.group in self._failed_groups:
            self._raise(command.call, Failure.REFUSED, self._failed_groups[command.group])
        elif self.unsigned_bytes + command.batch.size_bytes > WAITING_BYTES_MAX or len(self.unsigned) >= WAITING_MAX:
            reason = f"{self.unsigned_bytes} bytes wait to be written, close to the limit: wait for some of them first"
            self._raise(command.call, Failure.BUSY, reason)
        else:
            write = PendingWrite(command)
            self._by_call[write.call] = write
            self._deadlines.set(write.call, now_ns + write.timeout_ns)
            self.unsigned.append(write)
            self.unsigned_bytes += write.batch.size_bytes

    @property
    def has_waiters(self) -> bool:
        """True if a caller waits for an outcome."""
        return bool(self._by_call)

    def first(self) -> PendingWrite | None:
        """The next write to sign. Discards cancelled writes before it."""
        while self.unsigned and not self.unsigned[0].call:
            self.pop()
        return self.unsigned[0] if self.unsigned else None

    def unsigned_batches(self) -> Iterable[Batch]:
        """The next batches to sign, in order, up to the first cancelled write."""
        first = self.first()
        if first is None:
            return ()
        return (first.batch,) if len(self.unsigned) == 1 else self._waited_for()

    def _waited_for(self) -> Iterator[Batch]:
        for write in self.unsigned:
            if not write.call:
                return
            yield write.batch

    def pop(self) -> PendingWrite:
        write = self.unsigned.popleft()
        self.unsigned_bytes -= write.batch.size_bytes
        return write

    def requeue(self, writes: Iterable[PendingWrite]) -> None:
        """Put writes that are definitely not written back to the front of the queue, to be signed under new ids."""
        for write in reversed(list(writes)):
            old_id = write.id
            write.id = None
            if write.group in self._failed_groups:
                self.refuse(write, self._failed_groups[write.group])
            elif write.call:
                self.unsigned.appendleft(write)
                self.unsigned_bytes += write.batch.size_bytes
            if old_id is not None:
                self.outcomes.record(old_id, write.requests, None)

    # How writes end.

    def acknowledge(self, now_ns: int, writes: Iterable[PendingWrite], place: ReceiptPlace) -> None:
        """The pack of these writes is committed at this place, or its conditions did not hold."""
        if place.refusal:
            for write in writes:
                self._end(write, conflict(write.call, place))
                assert write.id is not None
                self.outcomes.record(write.id, write.requests, place)
            return
        first_id, offset = place.first_id, place.base_offset
        for write in writes:
            requests, messages = write.requests, len(write.batch.values)
            write_place = ReceiptPlace(
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
            self._end(write, WritesAcknowledged(write.call, write_place))
            if write.group:
                self._progressed(now_ns, write.group)
            assert write.id is not None
            self.outcomes.record(write.id, requests, write_place)

    def refuse(self, write: PendingWrite, reason: str, failure: Failure = Failure.REFUSED, kind: str = "") -> None:
        """End a write that is definitely not written and never will be."""
        self._fail_group(write, reason)
        self._end(write, Raised(write.call, failure, reason, kind=kind))
        if write.id is not None:
            self.outcomes.record(write.id, write.requests, None)

    def refuse_oversized(self, bytes_max: int) -> None:
        """Refuse, before signing, writes that no node would accept: signing would use up an id."""
        while (first := self.first()) is not None and packed_bytes(first.batch) > bytes_max:
            size = f"a request of {first.batch.size_bytes} bytes in {len(first.batch.values)} messages"
            self.refuse(self.pop(), f"{size} is too large for this cluster, which accepts {bytes_max} bytes")

    def _fail_group(self, write: PendingWrite, reason: str) -> None:
        if write.group:
            self._failed_groups.setdefault(write.group, reason)
            if len(self._failed_groups) > GROUPS_MAX:
                del self._failed_groups[next(iter(self._failed_groups))]

    def fail_unknown(self, write: PendingWrite, reason: str) -> None:
        """End a write that was sent and whose outcome can no longer be determined."""
        self._end(write, Raised(write.call, Failure.UNKNOWN, reason, write.id))
        for call, request in self.outcomes.take_watchers(write.id) if write.id is not None else ():
            self._raise(call, Failure.UNKNOWN, reason, request)

    def refuse_unsigned(self, reason: str, failure: Failure = Failure.REFUSED) -> None:
        """Refuse all writes that are not signed yet."""
        for write in [*self.unsigned]:
            self.refuse(write, reason, failure)
        self.unsigned.clear()
        self.unsigned_bytes = 0

    def _end(self, write: PendingWrite, effect: WritesAcknowledged | Raised) -> None:
        call, write.call = write.call, 0
        if call:
            del self._by_call[call]
            self._deadlines.clear(call)
            self._effects.append(effect)

    def _progressed(self, now_ns: int, group: int) -> None:
        self._progress_ns.pop(group, None)  # reinsert at the end, so that the oldest entry is evicted first
        self._progress_ns[group] = now_ns
        if len(self._progress_ns) > GROUPS_MAX:
            del self._progress_ns[next(iter(self._progress_ns))]

    def _raise(self, call: int, failure: Failure, reason: str, request: RequestId | None = None) -> None:
        self._effects.append(Raised(call, failure, reason, request))

    def cancel(self, call: int) -> bool:
        """The caller no longer waits. Returns False if the call is unknown."""
        write = self._by_call.pop(call, None)
        if write is not None:
            write.call = 0
            self._deadlines.clear(call)
        return write is not None

    # Time.

    def expire(self, now_ns: int, delay_reason: str, failure: Failure = Failure.UNREACHABLE) -> None:
        """End the writes whose time is up."""
        for call in self._deadlines.pop_due(now_ns):
            write = self._by_call[call]
            due_ns = self._progress_ns.get(write.group, 0) + write.timeout_ns
            if due_ns > now_ns:  # its writer makes progress: the chunk still waits behind earlier ones
                self._deadlines.set(call, due_ns)
                continue
            waited = f"waited {write.timeout_ns / 1e9:g} s; {delay_reason}"
            if write.id is None:
                self.refuse(write, f"not written: {waited}", failure)
            else:
                reason = f"no receipt came, so it may or may not be written: {waited}; resolve({tuple(write.id)}) tells"
                self._end(write, Raised(write.call, Failure.UNKNOWN, reason, write.id))
                self._fail_group(write, reason)
        self.first()  # discards cancelled writes at the front
