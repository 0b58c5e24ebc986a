"""A worker of a named consumer in the simulated world, with the client's own cores.

It joins, looks at the state at any node, processes messages, acknowledges most of them and returns some. It is stopped
for a while and continues with what it believed before, is killed with messages in its hands, or leaves. One request at
a time is under way. It reads the messages that were written; how readers get them is no subject of this workload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from chaplain.client.protocol.consumers.queue_progress import QueueProgress
from chaplain.client.protocol.consumers.slot_progress import SlotProgress, slot_of
from chaplain.client.protocol.consumers.state import ConsumerPage, ConsumerState
from chaplain.journal.messages.client import AskConsumers, NodeMessage, NotWritten, Receipts
from chaplain.journal.messages.consumer import (
    CONSUMER,
    Challenge,
    Command,
    Finish,
    Join,
    Leave,
    Mode,
    Return,
    Touch,
    encode,
)
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.signing import SLOT_BYTES, SignatureType, sign_pack
from chaplain.segment.pack import Pack, encode_pack
from chaplain.units import SECOND_NS
from simulator.actors.journal_clients import SimClient

if TYPE_CHECKING:
    from simulator.workloads.consumers import Consumers
    from simulator.world.world import World

STREAM = "orders"
SLOTS = 4
LEASE_MS = 2000
PREFETCH = 6
MAX_DELIVERIES = 3
KEYS = 7
_TICK_S = 0.05
_pages = msgspec.json.Decoder(ConsumerPage)


def key_of(value: bytes) -> bytes:
    return bytes((value[-1] % KEYS,))


class SimWorker(SimClient):
    """One worker of the consumer named like its mode."""

    _workload: Consumers

    def __init__(self, *given: Any, mode: Mode) -> None:
        super().__init__(*given)
        self.mode = mode
        self.consumer = mode.name.lower()
        self._nonce_of_join = b""
        self._progress: SlotProgress | QueueProgress | None = None
        self._in_hand: list[tuple[int, tuple[int, int]]] = []
        """Messages that the application has: offset, and where the core gave them."""
        self._commands: list[Command] = []
        self._commands_id = 0
        """First id of the request under way."""
        self._doubtful: list[Command] = []
        self._index = 0
        self._read_at = 0
        self._active: dict[int, tuple[int, int]] = {}
        """For each other worker: its last activity, and since when it is known."""
        self._until_ns = 0
        """The process is stopped until then."""
        self._missed: list[tuple[Any, Any]] = []

    # Faults of the worker itself.

    def _tick(self, world: World) -> None:
        if world.now_ns < self._until_ns:
            world.after(self._until_ns - world.now_ns, self._tick, world)
            return
        missed, self._missed = self._missed, []
        for hear, message in missed:
            hear(world, message)
        super()._tick(world)

    def hear(self, world: World, message: NodeMessage) -> None:
        if world.now_ns < self._until_ns:
            self._missed.append((self.hear, message))
            return
        if isinstance(message, Receipts):
            for run in message.runs:
                if run.client_id == self.lane and run.first_id == self._commands_id and self._commands:
                    self._answered(run.index, run.base_offset)
        super().hear(world, message)

    def listed(self, world: World, payload: bytes) -> None:
        if world.now_ns < self._until_ns:
            self._missed.append((self.listed, payload))
            return
        page = _pages.decode(payload)
        if page.index >= self._index and page.consumers:
            self._take(world, page.index, page.consumers[0])

    def _lane_over(self, message: NotWritten) -> None:
        if message.client_id == self.lane:
            self._commands_id, self._doubtful = 0, [*self._doubtful, *self._commands]
            self._commands = []
        super()._lane_over(message)

    def _kill(self) -> None:
        self._progress, self._nonce_of_join = None, b""
        self._in_hand, self._commands, self._doubtful = [], [], []
        self._commands_id = 0
        self.outbox.clear()
        self.lane, self._nonce = 0, self.rng.randbytes(16)

    # Work.

    def _write(self, world: World) -> None:
        fate = self.rng.random()
        if fate < 0.01 and world.now_ns < self._workload.plan.heal_ns:
            until_ns = world.now_ns + self.rng.randrange(10 * SECOND_NS)
            self._until_ns = min(until_ns, self._workload.plan.heal_ns)
            world.counts["worker stopped"] += 1
            return
        if fate < 0.015:
            world.counts["worker killed"] += 1
            self._kill()
            return
        if self.rng.random() < 0.3 and not self._commands:
            self._ask(world)
        if self._progress is None:
            if not self.outbox and not self._nonce_of_join:
                self._join(world)
        else:
            self._work(world, self._progress)

    def _join(self, world: World) -> None:
        self._nonce_of_join = self.rng.randbytes(16)
        slots = {Mode.SINGLE: 1, Mode.KEYED: SLOTS, Mode.QUEUE: 0}[self.mode]
        deliveries = MAX_DELIVERIES if self.mode is Mode.QUEUE else 0
        self._tell(world, [Join(self.consumer, self._nonce_of_join, self.mode, slots, LEASE_MS, deliveries)])

    def _ask(self, world: World) -> None:
        self._calls += 1
        token = self._progress.token if isinstance(self._progress, QueueProgress) else 0
        self._say(world, AskConsumers(self._calls, STREAM, self.consumer, token), b"")

    def _work(self, world: World, progress: SlotProgress | QueueProgress) -> None:
        self._process(world, progress)
        if len(self._in_hand) < PREFETCH:
            self._deliver(world, progress)
        if self.outbox or self._commands or self._doubtful:
            return
        commands: list[Command] = []
        if isinstance(progress, QueueProgress):
            commands += progress.to_send()
            fetch = progress.to_fetch()
            if fetch is not None and self.rng.random() < 0.3:
                commands.append(fetch)
        else:
            found = (progress.to_send(self.rng.random() < 0.5), progress.to_release())
            commands += [one for one in found if one is not None]
        if self.rng.random() < 0.02:
            commands.append(Touch(self.consumer, progress.token))
        if self.rng.random() < 0.005:
            self._tell(world, [*commands, Leave(self.consumer, progress.token)])
            self._progress, self._nonce_of_join, self._in_hand = None, b"", []
            return
        commands += self._challenges(world, progress)
        if commands:
            self._tell(world, commands)

    def _challenges(self, world: World, progress: SlotProgress | QueueProgress) -> list[Command]:
        """Challenges of workers that were silent for a while."""
        return [
            Challenge(self.consumer, progress.token, token)
            for token, (_, since_ns) in self._active.items()
            if token != progress.token and world.now_ns - since_ns > SECOND_NS and self.rng.random() < 0.2
        ]

    def _process(self, world: World, progress: SlotProgress | QueueProgress) -> None:
        """The application finishes or returns some of its messages, mostly in order."""
        for _ in range(self.rng.randrange(4)):
            if not self._in_hand:
                return
            offset, at = self._in_hand.pop(0 if self.rng.random() < 0.9 else -1)
            if self.rng.random() < 0.05:
                delay_ms = self.rng.randrange(3000)
                if isinstance(progress, QueueProgress):
                    progress.give_back(offset, at[1], delay_ms)
                else:
                    progress.pause(*at, offset, world.now_ns / 1e9 + delay_ms / 1000)
                    self._in_hand = [one for one in self._in_hand if one[1] != at or one[0] < offset]
                continue
            self._workload.consumer_checker.processed(self.consumer, progress.token, offset, at)
            if isinstance(progress, QueueProgress):
                progress.acknowledge(offset, at[1])
            else:
                progress.acknowledge(*at, offset)

    def _deliver(self, world: World, progress: SlotProgress | QueueProgress) -> None:
        if isinstance(progress, QueueProgress):
            seen = progress.delivered | progress._finished | progress._returned.keys() | progress._sent
            unseen = sorted(progress.deliveries.keys() - seen)
            for offset in unseen[:2]:
                progress.delivered.add(offset)
                self._in_hand.append((offset, (0, progress.deliveries[offset])))
            return
        now_s = world.now_ns / 1e9
        target = progress.seek(now_s)
        if target is not None:
            progress.seeked(target, now_s)
            self._read_at = target
        rows = self._workload.rows_of(STREAM)
        for _ in range(4):
            if not progress.holds or self._read_at >= min(len(rows), self._head):
                return
            offset = self._read_at
            self._read_at += 1
            at = progress.offer(key_of(rows[offset][2]), offset)
            if at is not None:
                self._in_hand.append((offset, at))
                self._workload.consumer_checker.delivered(self.consumer, progress.token, offset, at)

    _head = 0

    # Requests and answers.

    def _tell(self, world: World, commands: list[Command]) -> None:
        values = tuple(map(encode, commands))
        slot = bytes(SLOT_BYTES[SignatureType.ED25519])
        head = (self.lane, self._next_id, values, None, None, None, CONSUMER)
        raw = encode_pack(Pack(*head, SignatureType.ED25519, slot))
        entry = IngestEntry(STREAM, sign_pack(raw, self._workload.founding.cluster, STREAM, self.identity))
        self._workload.made.append(entry)
        self._commands, self._commands_id = commands, self._next_id
        self.send(world, entry)

    def _answered(self, index: int, refused: int) -> None:
        commands, self._commands, self._commands_id = self._commands, [], 0
        self._index = max(self._index, index)
        if refused:
            self._doubtful = commands
        elif isinstance(self._progress, QueueProgress):
            self._progress.answered([one for one in commands if isinstance(one, Finish | Return)])

    def _take(self, world: World, index: int, state: ConsumerState) -> None:
        self._head = state.head
        if self._progress is None:
            member = state.member_of(self._nonce_of_join) if self._nonce_of_join else None
            if member is None:
                if self._nonce_of_join and not self.outbox and self.rng.random() < 0.1:
                    self._nonce_of_join = b""  # the join was lost: try another
                return
            if self.mode is Mode.QUEUE:
                self._progress = QueueProgress(self.consumer, member.token, PREFETCH)
                return  # the answer was not about this worker
            self._progress = SlotProgress(self.consumer, member.token, max(len(state.slots), 1))
        progress = self._progress
        if all(member.token != progress.token for member in state.members):
            world.counts["worker removed"] += 1
            self._progress, self._nonce_of_join, self._in_hand = None, b"", []
            self._doubtful = []
            return
        if self._commands:
            return  # the answer may be older than their result
        if isinstance(progress, QueueProgress):
            progress.refused([one for one in self._doubtful if isinstance(one, Finish | Return)])
            progress.assign(state)
            self._in_hand = [one for one in self._in_hand if progress.deliveries.get(one[0]) == one[1][1]]
        elif self._doubtful:
            progress.refused(state)
        else:
            progress.assign(state)
        self._doubtful = []
        self._workload.consumer_checker.told(self.consumer, progress.token, index, state)
        for member in state.members:
            if self._active.get(member.token, (0, 0))[0] != member.active:
                self._active[member.token] = (member.active, world.now_ns)
        present = {member.token for member in state.members}
        self._active = {token: seen for token, seen in self._active.items() if token in present}


__all__ = ["SimWorker", "key_of", "slot_of"]
