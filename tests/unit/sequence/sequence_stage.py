"""Sequences that talk to each other without a network: every whisper arrives, in order, unless it is held back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from chaplain.core import Drained, Woken
from chaplain.gossip.events import GossipParcel
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.sequence.core import SequenceCore
from chaplain.sequence.events import Delivered, Publish, Published, Unpublished
from chaplain.sequence.messages.peer import Message, decode
from chaplain.sequence.settings import SequenceSettings
from chaplain.wire import parcel

MS = 10**6
SECOND = 10**9


class Stage:
    def __init__(self, count: int = 3, seed: int = 1, **settings: Any) -> None:
        self.now_ns = 0
        self.chance = Random(seed)
        self.settings = settings
        self.numbers = tuple(range(1, count + 1))
        self.cores: dict[int, SequenceCore] = {}
        self.peers: dict[int, Peer] = {}
        self.belonging: Callable[[], tuple[int, ...]] | None = None
        """Who belongs to the cluster, if that is agreed on; else all of the stage do."""
        self.removed: dict[int, set[int]] = {}
        """Whom each node knows to be removed from the cluster."""
        self.wire: deque[tuple[int, int, bytes]] = deque()
        self.cut: set[tuple[int, int]] = set()
        """Directions in which nothing arrives."""
        self.loses: Callable[[int, Message], bool] = lambda to, message: False
        """What never arrives, by whom it is for and what it is."""
        self.said: list[tuple[int, int, Message]] = []
        self.effects: list[tuple[int, Any]] = []
        self._token = 0

    # Lives.

    def start(self, *numbers: int, **settings: Any) -> Stage:
        for number in numbers or self.numbers:
            listed = tuple(other for other in self.numbers if other != number)
            values = {"listed": listed, **self.settings, **settings}
            made = SequenceSettings(number, **values)
            removed = self.removed.setdefault(number, set())
            chance = Random(self.chance.random())
            self.cores[number] = SequenceCore(made, chance, 0, self.belonging, lambda removed=removed: removed)
            self.peers[number] = Peer(self.chance.randbytes(16), number, bytes(32), f"tcp://127.0.0.1:{number}")
            for other in [other for other in self.cores if other != number]:
                self.feed(number, Entered(self.peers[other], {}))
                self.feed(other, Entered(self.peers[number], {}))
        return self

    def kill(self, number: int) -> None:
        del self.cores[number]
        gone = self.peers.pop(number)
        for other in list(self.cores):
            self.feed(other, Exited(gone, "gone"))

    def remove(self, *numbers: int, knowing: tuple[int, ...] = ()) -> None:
        """The cluster agreed that these belong to it no more; all, or those who are `knowing`, have heard of it."""
        for number in knowing or self.numbers:
            self.removed.setdefault(number, set()).update(numbers)

    # Time and talk.

    def feed(self, number: int, event: object) -> list[Any]:
        effects = self.cores[number].step(self.now_ns, event)  # type: ignore[arg-type]
        for effect in effects:
            if isinstance(effect, Whisper):
                to = next((who for who, peer in self.peers.items() if peer.instance == effect.instance), 0)
                self.wire.append((number, to, effect.content))
            else:
                self.effects.append((number, effect))
        check_short_cuts(self.cores[number])
        return effects

    def deliver(self) -> None:
        """Everything that is on its way, one node's share at a time, each followed by `Drained`."""
        for _ in range(10_000):
            for number in list(self.cores):
                self.feed(number, Drained())
            if not self.wire:
                return
            waiting, self.wire = self.wire, deque()
            for sender, to, content in waiting:
                self._arrive(sender, to, content)
        raise AssertionError("they never stop talking")

    def _arrive(self, sender: int, to: int, content: bytes) -> None:
        if to not in self.cores or sender not in self.peers or (sender, to) in self.cut:
            return
        opened = parcel.decode(content)
        message = decode(opened.body, opened.payload)
        if self.loses(to, message):
            return
        self.said.append((sender, to, message))
        self.feed(to, GossipParcel(self.peers[sender], opened))

    def run(self, seconds: float) -> Stage:
        end_ns = self.now_ns + int(seconds * SECOND)
        self.deliver()
        while self.now_ns < end_ns:
            due = min(when for core in self.cores.values() if (when := core.deadline()) is not None)
            self.now_ns = min(max(due, self.now_ns + MS), end_ns)
            for number in list(self.cores):
                self.feed(number, Woken())
            self.deliver()
        return self

    def split(self, *sides: tuple[int, ...]) -> None:
        """Nothing passes between these sides."""
        self.cut = {(a, b) for one in sides for other in sides if one != other for a in one for b in other}

    # Publishing.

    def publish(self, number: int, *values: bytes, stream: str = "s") -> int:
        self._token += 1
        self.feed(number, Publish(self._token, stream, f"c{number}", values))
        return self._token

    def outcome(self, token: int) -> Published | Unpublished | None:
        found = [e for _, e in self.effects if isinstance(e, Published | Unpublished) and e.token == token]
        assert len(found) <= 1, "a token ends once"
        return found[0] if found else None

    def delivered(self, number: int, stream: str = "s") -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for who, effect in self.effects:
            if who == number and isinstance(effect, Delivered) and effect.run.stream == stream:
                found.update(enumerate(effect.run.values(), effect.first))
        return found

    def states(self) -> dict[int, str]:
        return {number: core.context.state.name for number, core in self.cores.items()}

    def members(self, number: int) -> list[int]:
        return [member.identifier for member in self.cores[number].context.log.members]

    def histories(self) -> set[int]:
        return {core.context.history for core in self.cores.values()}

    def holder(self) -> int:
        [found] = [number for number, core in self.cores.items() if core.lock.holds]
        return found


def check_short_cuts(core: SequenceCore) -> None:
    """What is kept because it is asked for with every event is what looking for it would find."""
    context = core.context
    log, queue = context.log, context.publish_queue
    assert context.is_member is (context.me in log.members)
    assert context.is_learning is (bool(log.members) and not context.is_member)
    assert context.peers.wanting == sum(fellow.last_state.wants for fellow in context.peers.by_id.values())
    assert bool(queue) is (queue.pending_bytes > 0)
    assert log.decided_hash == (log.base.hash if log.decided == log.base.index else log.base_at(log.decided).hash)
    last = log.base_at(log.head.index)
    assert (log.head.ballot, log.head_hash, log.next_seat) == (last.ballot, last.hash, last.next)
    fellows = context.peers.by_id
    known = sorted({member.identifier for members in log.sets() for member in members} & set(fellows))
    assert context.members() == [fellows[who] for who in known if fellows[who].connected]
    due_ns, rests = core.deadline(), core._is_idle
    core._is_idle = False
    assert core.deadline() == due_ns
    core._is_idle = rests
