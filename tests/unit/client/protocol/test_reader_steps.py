"""How a client reads streams, step by step, over real journal cores."""

from __future__ import annotations

import pytest

from chaplain.client.protocol.call_events import Failure, Returned
from chaplain.client.protocol.journal.events import ConfigRequestCommand
from chaplain.client.protocol.journal.reader import FROM_START, WINDOW_BYTES
from chaplain.client.protocol.journal.unpacking import messages_of
from chaplain.journal.messages.client import Chunk
from chaplain.journal.messages.config import AddIdentity
from chaplain.link.auth.identity import Identity
from tests.unit.client.journal_stage import Bench, Cluster, large_cluster

EVE = Identity(b"e" * 32)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(3)
    made.elect()
    return made


def test_read_without_stop_ends_at_the_head_of_its_start(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    for number in range(10):
        bench.end(bench.write(b"%d" % number))
    call = bench.read()
    later = bench.write(b"later")
    bench.end(later)
    read = bench.end(call)
    assert isinstance(read, Returned)
    assert sum(part.stop - part.start for part in bench.outcomes[call][:-1]) == 10
    assert [m.value for m in bench.messages()[3:5]] == [b"3", b"4"]


@pytest.mark.parametrize(
    ("start", "stop", "wanted"), [(3, 7, "3456"), (0, 99, "0123456789"), (10, None, ""), (4, 4, "")]
)
def test_range_read_returns_exactly_its_messages(cluster, start, stop, wanted) -> None:
    bench = Bench(cluster, 1, 2)
    bench.end(bench.write(*(b"%d" % number for number in range(10))))
    call = bench.read(start, stop)
    assert isinstance(bench.end(call), Returned)
    found = [m.value for portion in bench.outcomes[call][:-1] for m in messages_of("orders", portion)]
    assert b"".join(found).decode() == wanted


def test_read_beyond_the_end_or_of_an_unknown_stream_is_missing(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    bench.end(bench.write(b"a"))
    beyond, unknown = bench.end(bench.read(2)), bench.end(bench.read(stream="nope"))
    assert beyond.failure is unknown.failure is Failure.MISSING
    assert "ends before offset 1" in beyond.reason
    assert "there is no stream 'nope'" in unknown.reason


def test_slow_reader_receives_no_more_than_its_window() -> None:
    bench = Bench(large_cluster(), 1, 2)
    for _ in range(100):
        bench.write(b"x" * 100_000)
    bench.until(lambda: not bench.journal._writers.queue.has_waiters)
    call = bench.read()
    bench.settle()
    held = [len(portion.packs) for portion in bench.outcomes[call]]
    assert WINDOW_BYTES <= sum(held) <= WINDOW_BYTES + max(held)
    bench.rest(200)  # much longer than its timeout: it is not the cluster that is slow
    assert not bench.ended(call)
    bench.disconnect(next(iter(bench.sessions)))
    bench.settle()
    held = [len(portion.packs) for portion in bench.outcomes[call]]
    assert sum(held) <= WINDOW_BYTES + 2 * max(held), "not another window for another node"
    assert len(bench.messages()) == 100


def test_following_reader_continues_at_another_node(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    call = bench.read(follow=True)
    for number in range(10):
        if number == 4:
            bench.kill(1)
        if number == 7:
            bench.hurt()
        bench.end(bench.write(b"%d" % number))
        bench.settle()
    bench.until(lambda: sum(part.stop - part.start for part in bench.outcomes[call]) == 10)
    found = [m for portion in bench.outcomes[call] for m in messages_of("orders", portion)]
    assert [m.offset for m in found] == list(range(10))
    assert b"".join(m.value for m in found) == b"0123456789"
    bench.cancel(call)
    bench.settle()
    assert all(not node.core._sessions.subscriptions._readers for node in cluster.nodes.values())


def test_lost_chunk_of_a_read_is_fetched_again(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    call = bench.read(follow=True)
    lost = []

    def spoil(up: bool, message: object) -> int:
        if isinstance(message, Chunk) and len(lost) < 3:
            lost.append(message)
            return 0
        return 1 if up else 2

    bench.spoil = spoil
    for number in range(8):
        bench.end(bench.write(b"%d" % number))
        bench.settle()
    found = [m for portion in bench.outcomes[call] for m in messages_of("orders", portion)]
    assert b"".join(m.value for m in found) == b"01234567"
    assert len(lost) == 3
    assert all(portion.start < portion.stop for portion in bench.outcomes[call])


def test_read_without_progress_fails_within_its_timeout(cluster) -> None:
    bench = Bench(cluster)
    outcome = bench.end(bench.read(wait_s=3))
    assert (outcome.failure, "nothing came for 3 s" in outcome.reason) == (Failure.UNREACHABLE, True)


def test_client_without_the_right_is_refused(cluster) -> None:
    admin = Bench(cluster, 1)
    message = AddIdentity("eve", 1, EVE.key, ("orders",), ("none",))
    admin.end(admin.wish(lambda call: ConfigRequestCommand(call, message, 60 * 10**9)))
    eve = Bench(cluster, 1, identity=EVE, name="eve")
    eve.end(eve.write(b"a"))
    outcome = eve.end(eve.read())
    assert (outcome.failure, "may not read" in outcome.reason) == (Failure.NO_RIGHT, True)
    twice = admin.end(admin.wish(lambda call: ConfigRequestCommand(call, message, 60 * 10**9)))
    assert (twice.failure, "has this name" in twice.reason) == (Failure.REFUSED, True)


def test_reader_whose_next_messages_were_dropped_gets_dropped(cluster) -> None:
    """Whoever wants whatever there is begins with what is kept; from there on nothing is left out in silence."""
    bench, writer = Bench(cluster, 1), Bench(cluster, 2)
    writer.end(writer.write(b"0"))
    call = bench.read(FROM_START, follow=True)
    bench.until(lambda: len(bench.outcomes.get(call, ())) == 1)
    bench.disconnect(next(iter(bench.sessions)))
    for number in range(1, 5):
        writer.end(writer.write(b"%d" % number))
    for node in cluster.nodes.values():
        index = node.core._sessions.subscriptions._index
        index.drop_before(index.find("orders", 3))
    bench.connect(3)
    lost = bench.end(call)
    assert (lost.failure, lost.reason) == (
        Failure.DROPPED,
        "read 'orders': offset 1 was dropped: the first one kept is 3",
    )
    again = bench.read(FROM_START, 5, follow=True)
    assert isinstance(bench.end(again), Returned)
    found = [m.value for portion in bench.outcomes[again][:-1] for m in messages_of("orders", portion)]
    assert found == [b"3", b"4"]
