"""Checks named consumers from outside: what counts, who may make it count, and that nothing is skipped.

It sees the consumers after every agreed message, the commands in the message, and what the workers' applications did.
It has none of the rules of execution: it only knows who may have caused a change.

- at least once: a position passes only messages that an application processed and acknowledged;
- fencing: an acknowledgement counts only for the worker that held the slot or the message, and nobody who was told to
  hold a slot later can be overtaken by the one before;
- leases: a worker is removed only after a challenge that it left unanswered for the lease time, a slot moves only when
  its holder released it, was removed, or had the lease time to do so, and a leased message is delivered again only
  after its lease;
- order: the messages of a slot are delivered in order while one worker holds it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from chaplain.client.protocol.consumers.slot_progress import slot_of
from chaplain.client.protocol.consumers.state import ConsumerState
from chaplain.errors import Malformed
from chaplain.journal.messages import consumer as commands
from chaplain.journal.messages import ingest
from chaplain.journal.messages.consumer import (
    Acknowledge,
    Challenge,
    Command,
    Finish,
    Join,
    Leave,
    Release,
    Return,
    Touch,
)
from chaplain.journal.model.consumers import Consumer
from chaplain.journal.model.results import DataVerdict
from chaplain.journal.storage.verdict import Reason
from chaplain.segment.pack import read_head
from chaplain.units import MILLISECOND_NS, SECOND_NS
from simulator.actors.consumer_worker import LEASE_MS, MAX_DELIVERIES, SLOTS, STREAM, key_of
from simulator.checkers.base import Watcher
from simulator.checkers.requests import Settling
from simulator.world.machine import Host

if TYPE_CHECKING:
    from simulator.workloads.consumers import Consumers
    from simulator.world.world import World

_LEASE_NS = LEASE_MS * MILLISECOND_NS
_PROGRESS_NS = 25 * SECOND_NS


class ConsumerChecker(Watcher):
    name = "consumers"

    def __init__(self, workload: Consumers) -> None:
        self._workload = workload
        self.world: World | None = None
        self._index = 0
        self._last: dict[str, Consumer] = {}
        self._processed: dict[str, dict[int, set[tuple[int, tuple[int, int]]]]] = defaultdict(lambda: defaultdict(set))
        """By consumer and offset: the workers whose application processed it, and in which lease."""
        self._delivered: dict[tuple[str, int, tuple[int, int]], int] = {}
        """The last offset that a worker delivered of a slot since it got it."""
        self._told: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
        """By consumer and slot: index of the state, epoch and token of the workers that were told to hold it."""
        self._challenged: dict[tuple[str, int], int] = {}
        """When each worker was challenged first since its last command."""
        self._meant_ns: dict[tuple[str, int], int] = {}
        """When each slot was first meant for another worker than its holder."""
        self._leased_ns: dict[tuple[str, int], tuple[int, int]] = {}
        """By consumer and offset: the worker that leased it, and when the lease was last extended."""
        self._advanced_ns = 0

    # Reports of the workers.

    def processed(self, consumer: str, token: int, offset: int, at: tuple[int, int]) -> None:
        """An application has processed a message, and acknowledges it."""
        self._processed[consumer][offset].add((token, at))

    def delivered(self, consumer: str, token: int, offset: int, at: tuple[int, int]) -> None:
        """A worker of slots delivered a message. It may go back only to a message that was returned."""
        before = self._delivered.get((consumer, token, at), -1)
        self._delivered[consumer, token, at] = max(before, offset)

    def told(self, consumer: str, token: int, index: int, state: ConsumerState) -> None:
        """A worker learned what it holds after message `index`."""
        for number, (_, holder, _, since) in enumerate(state.slots):
            if holder == token:
                self._told[consumer, number].append((index, since, token))

    # Agreed messages.

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        for effect in effects:
            if isinstance(effect, Settling) and effect.message.body.index == self._index + 1:
                self._index += 1
                self._settled(effect)

    def _settled(self, effect: Settling) -> None:
        now_ns = effect.message.body.timestamp_ns
        made: dict[str, list[Command]] = defaultdict(list)
        for command in _commands_in(effect):
            made[command.name].append(command)
        after = {one.name: one for one in effect.consumers.consumers}
        for name, consumer in after.items():
            before = self._last.get(name)
            if before is not None and before != consumer:
                self._compare(before, consumer, made[name], now_ns)
            elif before is None and not any(isinstance(one, Join) for one in made[name]):
                self.complain(f"the consumer {name} appeared without a join")
            self._note(consumer, made[name], now_ns)
        self._last = after

    def _compare(self, before: Consumer, after: Consumer, made: list[Command], now_ns: int) -> None:
        assert self.world is not None
        if not made:
            self.complain(f"consumer {before.name} changed without a command in message {self._index}")
        removed = {worker.token for worker in before.workers} - {worker.token for worker in after.workers}
        for token in removed:
            self._check_removal(before, token, made, now_ns)
        if before.slots:
            for number in range(len(before.slots)):
                self._check_holder(before, after, number, now_ns, made=made, removed=removed)
                self._check_position(before, after, number, made)
        else:
            self._check_queue(before, after, made, removed, now_ns)
        if after.position > before.position:
            self._advanced_ns = self.world.now_ns
            self.world.counts[f"advanced {before.name}"] += after.position - before.position

    def _check_removal(self, before: Consumer, token: int, made: list[Command], now_ns: int) -> None:
        if any(isinstance(one, Leave) and one.token == token for one in made):
            return
        since_ns = self._challenged.get((before.name, token))
        if since_ns is None or now_ns < since_ns + _LEASE_NS:
            self.complain(f"worker {token} of {before.name} was removed in message {self._index} within its lease")

    def _check_holder(
        self, before: Consumer, after: Consumer, number: int, now_ns: int, *, made: list[Command], removed: set[int]
    ) -> None:
        """Who made this slot move."""
        old, new = before.slots[number], after.slots[number]
        if old.holder and new.holder != old.holder and old.holder not in removed:
            released = any(isinstance(one, Release) and one.token == old.holder and number in one.slots for one in made)
            meant_ns = self._meant_ns.get((before.name, number))
            overdue = meant_ns is not None and now_ns >= meant_ns + _LEASE_NS
            if not released and not overdue:
                self.complain(f"slot {number} of {before.name} was taken from {old.holder} in message {self._index}")
        if new.holder and after.worker(new.holder) is None:
            self.complain(f"slot {number} of {before.name} is held by {new.holder}, who is no worker")

    def _check_position(self, before: Consumer, after: Consumer, number: int, made: list[Command]) -> None:
        """Who made this position advance, and whether its application processed what is passed."""
        old, new = before.slots[number], after.slots[number]
        if new.position < old.position:
            self.complain(f"the position of slot {number} of {before.name} decreased in message {self._index}")
        if new.position == old.position:
            return
        tokens = {
            one.token
            for one in made
            if isinstance(one, Acknowledge) and max(one.through, dict(one.slots).get(number, 0)) >= new.position
        }
        holders = tokens & {old.holder, new.holder}
        if not holders:
            self.complain(f"slot {number} of {before.name} advanced without its holder in message {self._index}")
        for index, since, token in self._told[before.name, number]:
            if index < self._index and token not in holders and since > old.since:
                self.complain(f"an acknowledgement of {holders} counted after {token} had got slot {number}")
        rows = self._workload.rows_of(STREAM)
        count = len(before.slots)
        if new.position > len(rows):
            self.complain(f"slot {number} of {before.name} passed the end of the stream")
        for offset in range(old.position, new.position):
            if count > 1 and slot_of(key_of(rows[offset][2]), offset, count) != number:
                continue
            if not any(token in holders for token, _ in self._processed[before.name][offset]):
                self.complain(f"offset {offset} of {before.name} counts for {holders}, who did not process it")

    def _check_queue(
        self, before: Consumer, after: Consumer, made: list[Command], removed: set[int], now_ns: int
    ) -> None:
        """Who ended or moved the lease of each message, and whether a finished message was processed."""
        old, new = dict(_leases(before)), dict(_leases(after))
        finished = _offsets(one for one in made if isinstance(one, Finish))
        returned = _offsets(one for one in made if isinstance(one, Return))
        dropped = 0
        for offset, (token, due_ns, deliveries) in old.items():
            now = new.get(offset)
            if now is None:
                if (token, offset) in finished:
                    self._check_processed(before, token, offset)
                elif deliveries >= MAX_DELIVERIES and (not token or due_ns <= now_ns or (token, offset) in returned):
                    dropped += 1
                else:
                    self.complain(
                        f"offset {offset} of {before.name}, of worker {token}, ended in message {self._index}"
                    )
            elif now[0] != token and token and now[0] and now[2] > deliveries:
                free = token in removed or (token, offset) in returned or now_ns >= self._until_ns(before, offset)
                if not free:
                    self.complain(f"offset {offset} of {before.name} was taken from {token} within its lease")
            elif now[0] != token and now[0] and now[2] <= deliveries:
                self.complain(f"a delivery of offset {offset} of {before.name} is not counted in message {self._index}")
            elif now[0] != token and now[0] and due_ns > now_ns:
                self.complain(f"offset {offset} of {before.name} was delivered before its delay was over")
        ended = len(old.keys() - new.keys())  # some of them in refused commands, and dropped after all
        if not dropped <= after.dropped - before.dropped <= ended:
            self.complain(f"{dropped} messages of {before.name} were dropped, and {after.dropped} are counted")
        for offset, (_, _, deliveries) in new.items():
            if offset not in old and offset < before.next_offset:
                self.complain(f"offset {offset} of {before.name} was finished, and is leased again")
            if deliveries > MAX_DELIVERIES:
                self.complain(f"offset {offset} of {before.name} is delivered {deliveries} times")
        for offset in range(before.next_offset, after.next_offset):
            if offset not in new:
                self.complain(f"offset {offset} of {before.name} was skipped in message {self._index}")

    def _until_ns(self, before: Consumer, offset: int) -> int:
        """When the lease of the message ends."""
        return self._leased_ns.get((before.name, offset), (0, 0))[1] + _LEASE_NS

    def _check_processed(self, before: Consumer, token: int, offset: int) -> None:
        if all(worker != token for worker, _ in self._processed[before.name][offset]):
            self.complain(f"offset {offset} of {before.name} counts for {token}, who did not process it")

    def _note(self, consumer: Consumer, made: list[Command], now_ns: int) -> None:
        """Remember when things began, for the next message."""
        for worker in consumer.workers:
            if worker.active_ns == now_ns:  # a command of it was accepted; a refused one does not answer a challenge
                self._challenged.pop((consumer.name, worker.token), None)
        for command in made:
            if isinstance(command, Challenge):
                self._challenged.setdefault((consumer.name, command.other), now_ns)
        for number, slot in enumerate(consumer.slots):
            key = (consumer.name, number)
            if slot.holder == slot.target:
                self._meant_ns.pop(key, None)
            else:
                self._meant_ns.setdefault(key, now_ns)
        extended = {one.token for one in made if isinstance(one, Touch)}
        for offset, (token, _, deliveries) in _leases(consumer):
            key = (consumer.name, offset)
            lease = (token << 16) + deliveries
            if token and (self._leased_ns.get(key, (0, 0))[0] != lease or token in extended):
                self._leased_ns[key] = (lease, now_ns)

    # The end.

    def is_satisfied(self, healed: Sequence[Host], /) -> bool:
        return self._advanced_ns > self._workload.plan.heal_ns

    def finish(self, healed: Sequence[Host], /) -> None:
        assert self.world is not None
        for name, consumer in self._last.items():
            counts = Counter(slot.holder for slot in consumer.slots)
            assert len(counts) <= SLOTS, name
        for name, _, (_, _) in self._delivered:
            self.world.counts[f"slots worked {name}"] += 1


def _commands_in(effect: Settling) -> Iterator[Command]:
    """The commands of the packs that were executed."""
    datas = [entry for entry in effect.executed.verdict.entries if isinstance(entry, DataVerdict)]
    for payload, decided in zip(effect.message.payloads, datas, strict=True):
        if decided.malformed:
            continue
        for entry, pack in zip(ingest.decode(payload).entries, decided.packs, strict=True):
            if pack.reason is Reason.COMMITTED and entry.stream == STREAM:
                try:
                    if read_head(entry.raw, 0).message_type == commands.CONSUMER:
                        yield from commands.commands_of(entry.raw)
                except Malformed:
                    continue


def _leases(consumer: Consumer) -> Iterator[tuple[int, tuple[int, int, int]]]:
    for span in consumer.spans:
        for offset in range(span.first, span.last + 1):
            yield offset, (span.token, span.due_ns, span.deliveries)


def _offsets(made: Iterable[Finish | Return]) -> set[tuple[int, int]]:
    """Worker and offset of every message in these commands."""
    return {(one.token, offset) for one in made for first, last in one.ranges for offset in range(first, last + 1)}
