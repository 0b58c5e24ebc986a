"""Whatever happens to sessions, nodes and answers: each request once, in order, and everybody is told the truth."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaplain.client.protocol.call_events import Failure, Raised, Returned
from chaplain.client.protocol.journal.events import WritesAcknowledged
from chaplain.journal.messages.client import Opened
from chaplain.journal.model.records import IdentityStatus
from tests.unit.client.journal_stage import Bench, Cluster

ACTIONS = ("write", "write", "write", "burst", "many", "tick", "tick", "time", "switch", "lose", "hurt", "deaf", "hear")
RARE = ("cut", "heal", "refused", "resolve", "retry", "retry", "rival", "stranger", "kill")


class World:
    """One client under attack, and what it was told."""

    def __init__(self, seed: int, ids: int) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(3)
        self.cluster.elect()
        self.bench = Bench(self.cluster, 1, 2, ids=ids)
        self.bench.spoil = self._spoil
        self.loss = self.random.choice((0.0, 0.0, 0.1, 0.3))
        self.doubling = self.random.choice((0.0, 0.3))
        self.written: dict[int, tuple[bytes, ...]] = {}
        self.resolved: dict[int, int] = {}
        self.streams: dict[int, str] = {}
        """Of writes that may be retried."""
        self.retried: dict[int, int] = {}
        self.rivalled: set[int] = set()
        """Writes that another process retried."""
        self.count = 0

    def _spoil(self, up: bool, message: object) -> int:
        """What is lost on the way up is lost with its session, and told; answers are lost and doubled at will."""
        if up or isinstance(message, Opened):
            return 1
        chance = self.random.random()
        return 0 if chance < self.loss else 2 if chance < self.loss + self.doubling else 1

    def act(self, action: str) -> None:
        getattr(self, f"_{action}")()

    def _values(self, count: int) -> tuple[bytes, ...]:
        self.count += count
        return tuple(b"%d" % number for number in range(self.count - count, self.count))

    def _note(self, call: int, values: tuple[bytes, ...]) -> None:
        self.written[call] = values

    def _write(self, count: int = 1, **how: object) -> None:
        values = self._values(count)
        wait_s, stream = self.random.choice((0.5, 5, 120)), self.random.choice("ab")
        call = self.bench.write(*values, wait_s=wait_s, stream=stream, **how)
        self._note(call, values)
        if count == 1 or how:
            self.streams[call] = stream

    def _burst(self) -> None:
        for _ in range(self.random.randrange(2, 12)):
            self._write(self.random.choice((1, 1, 3)))

    def _many(self) -> None:
        self._write(3, transaction=True)

    def _refused(self) -> None:
        values = self._values(1)
        self._note(self.bench.write(*values, stream="_no"), values)

    def _tick(self) -> None:
        for node in list(self.cluster.nodes.values()):
            node.work()
        self.bench.work()

    def _time(self) -> None:
        self.cluster.now_ns += self.random.choice((10**6, 10**7, 10**8, 4 * 10**9))
        self.bench.wake()

    def _switch(self) -> None:
        if self.bench.sessions:
            self.bench.disconnect(self.random.choice(list(self.bench.sessions)))
        self._connect()

    def _connect(self) -> None:
        if len(self.bench.sessions) < 2:
            self.bench.connect(self.random.choice(list(self.cluster.nodes)))

    def _lose(self) -> None:
        """What nodes said is lost, unnoticed."""
        for session in self.bench.sessions.values():
            session.inbox.clear()

    def _hurt(self) -> None:
        self._lose()
        self.bench.hurt()

    def _deaf(self) -> None:
        self.bench.deaf = True

    def _hear(self) -> None:
        self.bench.deaf = False
        self._tick()

    def _cut(self) -> None:
        node = self.random.choice((1, 2, 3))
        self.cluster.cut |= {(node, other) for other in (1, 2, 3)} | {(other, node) for other in (1, 2, 3)}

    def _heal(self) -> None:
        self.cluster.cut.clear()

    def _kill(self) -> None:
        if len(self.cluster.nodes) == 3:
            self.bench.kill(self.random.choice((1, 2, 3)))

    def _resolve(self) -> None:
        unknown = self._unknown()
        if unknown:
            call = self.random.choice(unknown)
            self.resolved[self.bench.resolve(*self._end(call).request)] = call

    def _retry(self) -> None:
        """Of a write, or of a retry of it."""
        unknown = self._unknown((*self.streams, *self.retried))
        if unknown:
            self._retry_call(self.random.choice(unknown), wait_s=self.random.choice((0.5, 5, 120)))

    def _retry_call(self, call: int, wait_s: float) -> None:
        self.retried[self._send_retry(self.bench, call, wait_s)] = self._first(call)

    def _rival(self) -> None:
        """Another process with this identity retries, too, as far as it gets at this moment."""
        unknown = self._unknown((*self.streams, *self.retried))
        if unknown and len(self.cluster.nodes) == 3:
            call = self.random.choice(unknown)
            self.rivalled.add(self._first(call))
            rival = Bench(self.cluster, 3)
            self._send_retry(rival, call, 60)
            rival.settle()

    def _send_retry(self, bench: Bench, call: int, wait_s: float) -> int:
        first = self._first(call)
        values, stream = self.written[first], self.streams[first]
        return bench.retry(self._end(call).request, *values, stream=stream, transaction=len(values) > 1, wait_s=wait_s)

    def _first(self, call: int) -> int:
        return self.retried.get(call, call)

    def _stranger(self) -> None:
        """Another process with this identity fences the lane."""
        lane = self.bench.journal._writers._lane
        if lane is not None and len(self.cluster.nodes) == 3:
            Bench(self.cluster, 3).resolve(lane.client_id, lane.next_id)

    def _end(self, call: int):
        return self.bench.outcomes[call][-1]

    def _unknown(self, calls: Iterable[int] | None = None) -> list[int]:
        ended = [call for call in (self.written if calls is None else calls) if self.bench.ended(call)]
        return [call for call in ended if getattr(self._end(call), "failure", None) is Failure.UNKNOWN]

    # Afterwards.

    def recover(self) -> None:
        self.loss = self.doubling = 0.0
        self.bench.deaf = False
        self.cluster.cut.clear()
        for number in (1, 2, 3):
            if number not in self.cluster.nodes:
                self.cluster.start(number)
        self._connect()
        self.bench.hurt()
        for call in (*self.written, *self.retried):
            self.bench.end(call)
        for call in self._unknown(tuple(self.retried)):
            self._retry_call(call, 60)
            assert isinstance(self.bench.end(max(self.retried)), WritesAcknowledged), "in the end it is written"
        for call in self._unknown():
            self.resolved[self.bench.resolve(*self._end(call).request)] = call
        for call in self.resolved:
            self.bench.end(call)
        extra = self._values(1)
        call = self.bench.write(*extra, stream="a")
        self._note(call, extra)
        assert isinstance(self.bench.end(call), WritesAcknowledged), "it goes on"

    def check(self) -> None:
        streams = {name: [m.value for m in self.bench.messages(name)] for name in "ab"}
        everything = [value for values in streams.values() for value in values]
        assert len(everything) == len(set(everything)), "something was written twice"
        assert all(
            client.status == IdentityStatus.ACTIVE
            for client in self.cluster.nodes[1].core.execution.state.clients.values()
        )
        for call, first in self.retried.items():
            if isinstance(self._end(call), WritesAcknowledged):
                assert set(self.written[first]) <= set(everything)
        for call, values in self.written.items():
            self._check_call(call, values, streams, set(everything))
        for name in "ab":
            self._check_order(name, streams[name])

    def _check_call(
        self, call: int, values: tuple[bytes, ...], streams: dict[str, list[bytes]], there: set[bytes]
    ) -> None:
        assert len(self.bench.outcomes[call]) == 1, "told twice"
        end = self._end(call)
        if isinstance(end, WritesAcknowledged):
            place = end.place
            if place.base_offset >= 0:
                found = streams[place.stream][place.base_offset : place.base_offset + place.messages]
                assert tuple(found) == values
            assert set(values) <= there
        elif end.failure is Failure.UNKNOWN:
            outcomes = {type(self._end(asked)) for asked, about in self.resolved.items() if about == call}
            retried = call in self.rivalled or call in self.retried.values()
            answers = {
                WritesAcknowledged: set(values) <= there,
                Returned: retried or not there & set(values),
                Raised: True,
            }
            assert all(answers[outcome] for outcome in outcomes), (outcomes, values)
        else:
            assert not there & set(values), "told that it is not written, but it is"

    def _check_order(self, name: str, found: list[bytes]) -> None:
        """Whatever one caller writes to a stream stands in the order in which it was wished."""
        late = {value for first in (*self.retried.values(), *self.rivalled) for value in self.written[first]}
        numbers = [int(value) for value in found if value not in late]
        assert numbers == sorted(numbers)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from(ACTIONS * 3 + RARE), min_size=5, max_size=60),
    st.sampled_from((2**32 - 1, 2**32 - 1, 40)),
)
def test_random_faults_write_each_request_exactly_once(seed: int, actions: list[str], ids: int) -> None:
    world = World(seed, ids)
    for action in actions:
        world.act(action)
    world.recover()
    world.check()


@pytest.mark.parametrize("seed", range(12))
def test_long_random_runs_write_each_request_exactly_once(seed: int) -> None:
    world = World(seed, 2**32 - 1 if seed % 3 else 100)
    chance = Random(seed)
    for _ in range(300):
        world.act(chance.choice(ACTIONS * 6 + RARE))
    world.recover()
    world.check()
