"""Decides about named consumers: who has which slots and messages, and which acknowledgements count.

    Join ──▶ worker (a token) ──▶ holder of slots, or lessee of messages ──Leave, or Challenge without an answer──▶ gone

The state is in `model.consumers`; this module has the rules, as functions of one consumer and one command. They run at
execution, so every node decides alike, and the clock is that of the cluster message. Does not know sessions, readers or
the content of messages.

- A lease has no time limit by itself. It ends if another worker challenges the holder, and the holder sends no command
  for the lease time. An idle consumer therefore writes nothing to the journal.
- A worker that was removed has lost its token for ever, so its acknowledgements do not count (fencing).
- Slots are divided evenly among workers. A slot moves when its holder releases it, or when the lease time has passed
  since the division changed. `epoch` separates acknowledgements from before and after such a move.
- In a queue, a message is leased to one worker for the lease time. After it, the next `Fetch` may lease it to another.

Invariants: a slot has at most one holder. A position never decreases, except by `Reset`. An acknowledgement counts only
for what its worker holds. A consumer's state is bounded by `WORKERS_MAX`, `SLOTS_MAX` and `SPANS_MAX`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias, assert_never

from msgspec.structs import replace

from chaplain.core import Frozen
from chaplain.journal.messages.consumer import (
    LATEST,
    UNDELIVERED,
    Acknowledge,
    Challenge,
    Command,
    Fetch,
    Finish,
    Join,
    Leave,
    Release,
    Remove,
    Reset,
    Return,
    Touch,
)
from chaplain.journal.model.consumers import Consumer, ConsumerKey, ConsumersRecord, Slot, Span, Worker
from chaplain.journal.model.set_hash import MappingHash
from chaplain.units import MILLISECOND_NS

CONSUMERS_MAX = 1024
"""Bound of consumers. At the bound, `Join` creates none."""
CONSUMERS_IDENTITY_MAX = 256
"""Bound of the consumers that one identity created."""
WORKERS_MAX = 64
"""Bound of the workers of one consumer. At the bound, a new one replaces the one that was idle for the longest time."""
WORKER_SPARE_NS = 600 * 1_000_000_000
"""The least time for which the replaced worker was idle. If there is none, `Join` is refused."""
LEASE_MIN_NS = 1000 * MILLISECOND_NS
"""The minimum lease time. `Join` with a shorter one gets this one."""
SPANS_MAX = 1024
"""Bound of the spans of one queue. A command that would split a span beyond the bound is refused."""
SPANS_FETCH_MAX = 512
"""At this number of spans, `Fetch` leases no new messages and splits no span. The spans beyond it are reserved for
acknowledgements, which may split spans.
"""
IN_HAND_MAX = 65_536
"""Bound of the messages of a queue that are leased or wait for another delivery."""
DELIVERIES_MAX = 65_535


class Context(Frozen, frozen=True):
    """The circumstances of a command."""

    acl: bytes
    """The identity that signed it."""
    admin: bool
    stream: str
    now_ns: int
    """Time of the cluster message."""
    head: int
    """The next offset of the stream."""


class ConsumerStates:
    """All consumers of the cluster. Only `ConsumersDraft.commit` changes them."""

    def __init__(self, record: ConsumersRecord | None = None) -> None:
        record = record or ConsumersRecord()
        self.consumers: dict[ConsumerKey, Consumer] = {}
        self.keys: list[ConsumerKey] = []
        """The keys of `consumers`, sorted."""
        self.next_token = record.next_token
        self.hash: MappingHash[ConsumerKey, Consumer] = MappingHash(lambda: self.consumers)
        self.owned: Counter[bytes] = Counter()
        """Number of consumers that each identity created."""
        for consumer in record.consumers:
            self.put(consumer.key, consumer)

    def put(self, key: ConsumerKey, consumer: Consumer | None) -> None:
        self.hash.note(key)
        before = self.consumers.pop(key, None)
        if before is not None:
            self.owned[before.owner] -= 1
            if consumer is None:
                del self.keys[bisect_left(self.keys, key)]
        if consumer is not None:
            self.consumers[key] = consumer
            self.owned[consumer.owner] += 1
            if before is None:
                insort(self.keys, key)

    def export(self) -> ConsumersRecord:
        return ConsumersRecord(tuple(self.consumers[key] for key in self.keys), self.next_token)


class ConsumersDraft:
    """The changes that one message would make."""

    def __init__(self, base: ConsumerStates) -> None:
        self._base = base
        self._changed: dict[ConsumerKey, Consumer | None] = {}
        self.next_token = base.next_token

    def find(self, key: ConsumerKey) -> Consumer | None:
        return self._changed[key] if key in self._changed else self._base.consumers.get(key)

    def put(self, key: ConsumerKey, consumer: Consumer | None) -> None:
        self._changed[key] = consumer

    def count(self, owner: bytes | None = None) -> int:
        """Number of consumers, of all identities or of one."""
        owners: Counter[bytes] = Counter()
        for key, changed in self._changed.items():
            before = self._base.consumers.get(key)
            if before is not None:
                owners[before.owner] -= 1
            if changed is not None:
                owners[changed.owner] += 1
        if owner is None:
            return len(self._base.consumers) + sum(owners.values())
        return self._base.owned[owner] + owners[owner]

    def commit(self) -> None:
        for key, consumer in self._changed.items():
            self._base.put(key, consumer)
        self._base.next_token = self.next_token


def execute(draft: ConsumersDraft, context: Context, commands: Sequence[Command]) -> int:
    """Execute the commands of one pack. Returns how many of them were refused."""
    return sum(not _execute(draft, context, command) for command in commands)


def acknowledge(draft: ConsumersDraft, context: Context, command: Acknowledge | Finish) -> bool:
    """Execute the acknowledgement in the header of a pack. Returns False, and changes nothing, if it is refused."""
    return _execute(draft, context, command)


def _execute(draft: ConsumersDraft, context: Context, command: Command) -> bool:
    """Execute one command. Returns False, and changes nothing, if it is refused."""
    key = (context.stream, command.name)
    before = draft.find(key)
    match command:
        case Join():
            after = _join(draft, context, before, command)
        case Remove():
            if before is None or not _may_manage(before, context):
                return False
            draft.put(key, None)
            return True
        case _:
            after = None if before is None else _change(before, context, command)
    if after is None:
        return False
    assert not before or not after.slots or isinstance(command, Reset) or before.position <= after.position
    draft.put(key, after)
    return True


_WorkerCommand: TypeAlias = Leave | Touch | Challenge | Acknowledge | Release | Fetch | Finish | Return


def _change(consumer: Consumer, context: Context, command: _WorkerCommand | Reset) -> Consumer | None:
    """The consumer after the command; None if it is refused."""
    if isinstance(command, Reset):
        return _reset(consumer, context, command.offset) if _may_manage(consumer, context) else None
    worker = consumer.worker(command.token)
    if worker is None or worker.acl != context.acl:
        return None
    consumer = _shown_alive(consumer, worker, context.now_ns)
    consumer = _move_overdue(consumer, context.now_ns)
    match command:
        case Leave():
            return _without(consumer, worker.token, context.now_ns)
        case Touch():
            return _extend(consumer, worker.token, context.now_ns)
        case Challenge():
            return _challenge(consumer, command.other, context.now_ns)
        case Acknowledge():
            return _acknowledge(consumer, command, context.head)
        case Release():
            return _release(consumer, command)
        case Fetch():
            return _fetch(consumer, command, context)
        case Finish():
            return _take(consumer, command.token, command.ranges, None)
        case Return():
            due_ns = context.now_ns + command.delay_ms * MILLISECOND_NS
            waiting = Span(0, 0, 0, due_ns, -1 if command.flags & UNDELIVERED else 0)
            return _take(consumer, command.token, command.ranges, waiting)
        case _:
            assert_never(command)


def _may_manage(consumer: Consumer, context: Context) -> bool:
    return context.admin or consumer.owner == context.acl


# Workers.


def _join(draft: ConsumersDraft, context: Context, before: Consumer | None, command: Join) -> Consumer | None:
    consumer = before or _created(draft, context, command)
    if consumer is None or consumer.mode != command.mode or len(consumer.slots) != command.slots:
        return None
    lease_ns = max(command.lease_ms * MILLISECOND_NS, LEASE_MIN_NS)
    settings = (lease_ns, command.max_deliveries, command.dead_letter)
    consumer = replace(consumer, lease_ns=settings[0], max_deliveries=settings[1], dead_letter=settings[2])
    if len(consumer.workers) >= WORKERS_MAX:
        idle = min(consumer.workers, key=lambda worker: (worker.active_ns, worker.token))
        if context.now_ns - idle.active_ns < WORKER_SPARE_NS:
            return None
        consumer = _without(consumer, idle.token, context.now_ns)
    worker = Worker(draft.next_token, context.acl, command.nonce, context.now_ns)
    draft.next_token += 1
    consumer = replace(consumer, workers=(*consumer.workers, worker))
    return _balanced(consumer, context.now_ns)


def _created(draft: ConsumersDraft, context: Context, command: Join) -> Consumer | None:
    """A new consumer; None at a bound."""
    if draft.count() >= CONSUMERS_MAX or draft.count(context.acl) >= CONSUMERS_IDENTITY_MAX:
        return None
    start = context.head if command.start == LATEST else command.start
    names = (context.stream, command.name, context.acl, int(command.mode))
    slots = (Slot(start),) * command.slots
    return Consumer(*names, 0, 0, "", next_offset=0 if slots else start, slots=slots)


def _shown_alive(consumer: Consumer, worker: Worker, now_ns: int) -> Consumer:
    """The consumer after any command of the worker: it answers a challenge."""
    alive = replace(worker, active_ns=now_ns, challenged_until_ns=0)
    return _with_worker(consumer, alive)


def _with_worker(consumer: Consumer, worker: Worker) -> Consumer:
    workers = tuple(worker if one.token == worker.token else one for one in consumer.workers)
    return replace(consumer, workers=workers)


def _challenge(consumer: Consumer, token: int, now_ns: int) -> Consumer | None:
    """Challenge the worker, or remove it if it did not answer the last challenge in time."""
    other = consumer.worker(token)
    if other is None:
        return None
    if not other.challenged_until_ns:
        return _with_worker(consumer, replace(other, challenged_until_ns=now_ns + consumer.lease_ns))
    if now_ns < other.challenged_until_ns:
        return consumer
    return _without(consumer, token, now_ns)


def _without(consumer: Consumer, token: int, now_ns: int) -> Consumer:
    """The consumer without this worker. Its slots are divided among the others; its messages wait for delivery."""
    workers = tuple(worker for worker in consumer.workers if worker.token != token)
    spans = tuple(replace(span, token=0, due_ns=now_ns) if span.token == token else span for span in consumer.spans)
    return _balanced(replace(consumer, workers=workers, spans=spans), now_ns)


def _reset(consumer: Consumer, context: Context, offset: int) -> Consumer:
    position = min(offset, context.head)  # also for `LATEST`
    slots = (Slot(position, since=consumer.epoch + 1),) * len(consumer.slots)
    next_offset = 0 if slots else position
    return replace(
        consumer, next_offset=next_offset, epoch=consumer.epoch + 1, workers=(), slots=slots, spans=(), balanced_ns=0
    )


# Slots.


def _balanced(consumer: Consumer, now_ns: int) -> Consumer:
    """Divide the slots evenly among the workers, with as few moves as possible. Free slots move at once."""
    if not consumer.slots:
        return consumer
    targets = _targets([slot.target for slot in consumer.slots], [worker.token for worker in consumer.workers])
    present = {worker.token for worker in consumer.workers}
    epoch = consumer.epoch + 1
    slots: list[Slot] = []
    for slot, target in zip(consumer.slots, targets, strict=True):
        if slot.holder in present:
            slots.append(replace(slot, target=target))
        else:
            slots.append(replace(slot, holder=target, target=target, since=epoch))
    moved = any(slot.holder != slot.target for slot in slots)
    return replace(consumer, slots=tuple(slots), epoch=epoch, balanced_ns=now_ns if moved else consumer.balanced_ns)


def _targets(targets: list[int], tokens: list[int]) -> list[int]:
    """The new target of each slot: the old one, if that worker is present and has no more than its share."""
    if not tokens:
        return [0] * len(targets)
    least, more = divmod(len(targets), len(tokens))
    held = Counter(target for target in targets if target in tokens)
    ranked = sorted(tokens, key=lambda token: (-held[token], token))
    free = {token: least + (rank < more) for rank, token in enumerate(ranked)}
    divided: list[int] = []
    for target in targets:
        kept = free.get(target, 0) > 0
        free[target] = free.get(target, 0) - kept
        divided.append(target if kept else 0)
    spare = [token for token in tokens for _ in range(free[token])]
    return [target or spare.pop() for target in divided]


def _move_overdue(consumer: Consumer, now_ns: int) -> Consumer:
    """Move slots whose holder has not released them within the lease time after they got another target."""
    if now_ns < consumer.balanced_ns + consumer.lease_ns:
        return consumer
    return _moved(consumer, lambda number, slot: slot.holder != slot.target)


def _release(consumer: Consumer, command: Release) -> Consumer:
    """Move the named slots that this worker holds, and that are meant for another one."""
    named = {*command.slots}
    return _moved(
        consumer,
        lambda number, slot: number in named and slot.holder == command.token and slot.target != command.token,
    )


def _moved(consumer: Consumer, moves: Callable[[int, Slot], bool]) -> Consumer:
    moving = [number for number, slot in enumerate(consumer.slots) if moves(number, slot)]
    if not moving:
        return consumer
    epoch, slots = consumer.epoch + 1, list(consumer.slots)
    for number in moving:
        slots[number] = replace(slots[number], holder=slots[number].target, since=epoch)
    return replace(consumer, slots=tuple(slots), epoch=epoch)


def _acknowledge(consumer: Consumer, command: Acknowledge, head: int) -> Consumer | None:
    """Advance the positions of the slots that the worker holds, and knows to hold.

    A worker does not know yet of a slot that it got after `command.epoch`: `through` does not cover that slot.
    """
    offsets = dict(command.slots)
    if command.through > head or any(offset > head for offset in offsets.values()):
        return None
    known = {
        number
        for number, slot in enumerate(consumer.slots)
        if slot.holder == command.token and slot.since <= command.epoch
    }
    if not offsets.keys() <= known:
        return None
    slots = tuple(
        replace(slot, position=max(slot.position, command.through, offsets.get(number, 0))) if number in known else slot
        for number, slot in enumerate(consumer.slots)
    )
    return replace(consumer, slots=slots) if known else None


# The queue.


def _extend(consumer: Consumer, token: int, now_ns: int) -> Consumer:
    """Extend the leases of the worker's messages."""
    due_ns = now_ns + consumer.lease_ns
    spans = tuple(replace(span, due_ns=due_ns) if span.token == token else span for span in consumer.spans)
    return replace(consumer, spans=spans)


def _fetch(consumer: Consumer, command: Fetch, context: Context) -> Consumer | None:
    """Lease messages to the worker: first those that are due again, then new ones."""
    if consumer.slots:
        return None
    now_ns, due_ns = context.now_ns, context.now_ns + consumer.lease_ns
    left, spans, dropped = command.count, [*consumer.spans], consumer.dropped
    for number, span in enumerate(consumer.spans):
        if not left:
            break
        if span.due_ns > now_ns or (span.last - span.first >= left and len(spans) >= SPANS_FETCH_MAX):
            continue
        at = number + len(spans) - len(consumer.spans)
        leased = replace(span, last=min(span.last, span.first + left - 1))
        rest = [replace(span, first=leased.last + 1)] if leased.last < span.last else []
        count = leased.last - leased.first + 1
        if consumer.max_deliveries and span.deliveries >= consumer.max_deliveries and not consumer.dead_letter:
            dropped += count
            spans[at : at + 1] = rest
            continue
        left -= count
        deliveries = min(span.deliveries + 1, DELIVERIES_MAX)
        spans[at : at + 1] = [replace(leased, token=command.token, due_ns=due_ns, deliveries=deliveries), *rest]
    waiting = sum(span.last - span.first + 1 for span in spans)
    count = min(left, max(context.head - consumer.next_offset, 0), IN_HAND_MAX - waiting)
    if count > 0 and len(spans) < SPANS_FETCH_MAX:
        first = consumer.next_offset
        spans.append(Span(first, first + count - 1, command.token, due_ns, 1))
        consumer = replace(consumer, next_offset=first + count)
    return replace(consumer, spans=tuple(spans), dropped=dropped)


def _take(consumer: Consumer, token: int, ranges: Sequence[tuple[int, int]], waiting: Span | None) -> Consumer | None:
    """Take the messages of these ranges from the worker. They count as processed; with `waiting`, they wait for another
    delivery until the time in that span, and its deliveries are added to theirs.

    None if the worker does not have all of them, or if too many spans would remain.
    """
    spans, missing = [*consumer.spans], sum(last - first + 1 for first, last in ranges)
    for first, last in ranges:
        at = bisect_left(spans, first, key=lambda span: span.last)
        while at < len(spans) and spans[at].first <= last:
            span = spans[at]
            if span.token != token:
                return None
            start, end = max(first, span.first), min(last, span.last)
            pieces = [replace(span, last=start - 1)] if span.first < start else []
            if waiting is not None:
                deliveries = span.deliveries + waiting.deliveries
                pieces.append(replace(waiting, first=start, last=end, deliveries=deliveries))
            if end < span.last:
                pieces.append(replace(span, first=end + 1))
            spans[at : at + 1] = pieces
            missing -= end - start + 1
            at += len(pieces)
    if missing or len(spans) > SPANS_MAX:
        return None
    return replace(consumer, spans=tuple(spans))
