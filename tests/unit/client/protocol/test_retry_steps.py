"""Writing again with the id of an `Unknown`, step by step, over real journal cores: it is written once."""

from __future__ import annotations

import pytest

from chaplain.client.protocol.call_events import Failure, Returned
from chaplain.client.protocol.journal.events import WritesAcknowledged
from chaplain.client.types.journal import PLACE_UNKNOWN
from chaplain.core import Stopping
from chaplain.journal.messages.client import Write
from chaplain.journal.model.bootstrap import ExecutionPolicy
from chaplain.journal.model.records import IdentityStatus
from tests.unit.client.journal_stage import Bench, Cluster, values


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(3)
    made.elect()
    return made


def lose_writes(up: bool, message: object) -> int:
    return 0 if up and isinstance(message, Write) else 1


def unknown_of(bench: Bench, *values: bytes, transaction: bool = False) -> tuple[int, int]:
    """The id of a write that no node has seen, and that goes on being sent."""
    bench.end(bench.write(b"warm"))
    bench.spoil = lose_writes
    unknown = bench.end(bench.write(*values, transaction=transaction, wait_s=5))
    assert unknown.failure is Failure.UNKNOWN
    return tuple(unknown.request)


def unwritten(bench: Bench, value: bytes = b"x") -> tuple[int, int]:
    """The id of a write that is known not to be written."""
    request = unknown_of(bench, value)
    resolve = bench.resolve(*request)
    bench.spoil = None
    assert isinstance(bench.end(resolve), Returned)
    return request


def same(*ends: WritesAcknowledged) -> bool:
    return len({end.place for end in ends}) == 1


def test_retry_waits_for_a_request_that_is_still_under_way(cluster) -> None:
    bench = Bench(cluster, 1)
    request = unknown_of(bench, b"x")
    early = bench.end(bench.retry(request, b"x", wait_s=5))
    assert (early.failure, early.request) == (Failure.UNKNOWN, request)
    waiting = bench.retry(request, b"x")
    bench.spoil = None
    first = bench.end(waiting)
    assert (first.place.client_id, first.place.first_id) == request
    assert same(first, *[bench.end(bench.retry(request, b"x")) for _ in range(3)])
    assert values(bench) == [b"warm", b"x"]
    assert len(cluster.nodes[1].core.execution.state.lanes) == 1, "nothing was leased for it"


def test_retries_of_an_unwritten_request_write_it_once(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    request = unwritten(bench)
    ends = [bench.end(bench.retry(request, b"x")) for _ in range(3)]
    assert same(*ends)
    assert ends[0].place.base_offset == 1
    assert values(bench) == [b"warm", b"x"]
    assert isinstance(bench.end(bench.resolve(*request)), Returned), "that one is not"
    assert bench.end(bench.resolve(ends[0].place.client_id, 1)).place == ends[0].place


def test_retry_that_ended_unknown_is_not_written_twice_by_the_next(cluster) -> None:
    bench = Bench(cluster, 1)
    request = unwritten(bench)
    bench.deaf = True
    unheard = bench.end(bench.retry(request, b"x", wait_s=2))
    bench.deaf = False
    assert unheard.failure is Failure.UNKNOWN
    bench.spoil = lambda up, message: 0 if not up and type(message).__name__ == "Receipts" else 1
    lost = bench.end(bench.retry(request, b"x", wait_s=4))
    assert lost.failure is Failure.UNKNOWN
    bench.spoil = None
    ends = [bench.end(bench.retry(id_, b"x")) for id_ in (request, tuple(lost.request), request)]
    assert same(*ends)
    assert values(bench) == [b"warm", b"x"]


def test_retry_known_as_unwritten_can_be_retried_itself(cluster) -> None:
    bench, other = Bench(cluster, 1), Bench(cluster, 2)
    request = unwritten(bench)
    bench.spoil = lose_writes
    lost = bench.end(bench.retry(request, b"x", wait_s=4))
    assert tuple(lost.request) != request
    assert isinstance(other.end(other.resolve(*lost.request)), Returned)
    bench.spoil = None
    ends = [bench.end(bench.retry(tuple(lost.request), b"x")), bench.end(bench.retry(request, b"x"))]
    assert same(*ends, other.end(other.retry(request, b"x")))
    assert values(bench) == [b"warm", b"x"]


def test_retry_by_another_process_returns_the_first_receipt(cluster) -> None:
    bench = Bench(cluster, 1)
    request = unwritten(bench)
    first = bench.end(bench.retry(request, b"x"))
    bench.give(Stopping())
    cluster.settle()
    other = Bench(cluster, 2)
    assert same(first, other.end(other.retry(request, b"x")))
    assert values(other) == [b"warm", b"x"]


@pytest.mark.parametrize("second", [b"x", b"something else"])
def test_simultaneous_retries_of_two_processes_write_once(cluster, second) -> None:
    """One of them is written, and both are told where; nobody is taken for compromised."""
    bench, other = Bench(cluster, 1), Bench(cluster, 2)
    request = unwritten(bench)
    bench.spoil = other.spoil = lose_writes
    calls = bench.retry(request, b"x"), other.retry(request, second)
    for one in (bench, other, bench, other):
        one.settle()
    bench.spoil = other.spoil = None
    for one in (bench, other):
        one.hurt()
    for node in cluster.nodes.values():
        node.work()
    ends = bench.end(calls[0]), other.end(calls[1])
    assert same(*ends)
    assert values(bench) in ([b"warm", b"x"], [b"warm", second])
    clients = cluster.nodes[1].core.execution.state.clients.values()
    assert all(client.status == IdentityStatus.ACTIVE for client in clients)


def test_batch_is_retried_as_one_request(cluster) -> None:
    bench = Bench(cluster, 1)
    request = unknown_of(bench, b"x", b"y", transaction=True)
    resolve = bench.resolve(*request)
    bench.spoil = None
    assert isinstance(bench.end(resolve), Returned)
    ends = [bench.end(bench.retry(request, b"x", b"y", transaction=True)) for _ in range(2)]
    assert same(*ends)
    assert (ends[0].place.base_offset, ends[0].place.messages) == (1, 2)
    assert values(bench) == [b"warm", b"x", b"y"]


def test_request_with_undeterminable_outcome_is_not_written_again() -> None:
    cluster = Cluster(3, ExecutionPolicy(lane_idle_ns=3600 * 10**9))
    cluster.elect()
    bench, other = Bench(cluster, 1), Bench(cluster, 2)
    request = unwritten(bench)
    bench.end(bench.retry(request, b"x"))
    cluster.now_ns += 2 * 3600 * 10**9
    other.end(other.write(b"later"))
    for one in (bench, other):
        end = one.end(one.retry(request, b"x"))
        assert (end.failure, tuple(end.request)) == (Failure.UNKNOWN, request)
        assert "can no longer be determined" in end.reason
    assert values(other) == [b"warm", b"x", b"later"]


def test_retry_after_its_receipt_was_forgotten_returns_the_place() -> None:
    cluster = Cluster(3, ExecutionPolicy(remembered_packs=1))
    cluster.elect()
    bench, other = Bench(cluster, 1), Bench(cluster, 2)
    place = bench.end(bench.write(b"x", b"y", transaction=True)).place
    bench.end(bench.write(b"z"))
    end = other.end(other.retry((place.client_id, place.first_id), b"x", b"y", transaction=True))
    assert (end.place.stream, end.place.base_offset, end.place.messages) == ("orders", PLACE_UNKNOWN, 2)


def test_refused_retry_raises_the_refusal(cluster) -> None:
    bench, other = Bench(cluster, 1), Bench(cluster, 2)
    request = unwritten(bench)
    refused = other.end(other.retry(request, b"x", stream="_no"))
    assert refused.failure is Failure.NO_RIGHT
    assert bench.end(bench.retry(request, b"x")).place.base_offset == 1
    assert values(bench) == [b"warm", b"x"]


def test_retry_without_a_free_lane_writes_nothing() -> None:
    cluster = Cluster(3, ExecutionPolicy(lanes_per_identity_max=2))
    cluster.elect()
    bench, other = Bench(cluster, 1), Bench(cluster, 2)
    request = unknown_of(bench, b"x")
    other.end(other.write(b"y"))
    full = other.end(other.retry(request, b"x"))
    assert (full.failure, "not written" in full.reason) == (Failure.REFUSED, True)
    assert values(other) == [b"warm", b"y"]
    cluster.now_ns += 700 * 10**9  # the longest unused lane makes room
    assert other.end(other.retry(request, b"x")).place.base_offset == 2
    assert values(other) == [b"warm", b"y", b"x"]


def test_retry_survives_a_dead_and_a_silent_node(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    request = unwritten(bench)
    bench.spoil = lose_writes
    call = bench.retry(request, b"x")
    bench.settle()
    bench.spoil = None
    bench.kill(1)
    assert bench.end(call).place.base_offset == 1
    assert values(bench) == [b"warm", b"x"]


def test_close_leaves_a_retry_unknown(cluster) -> None:
    bench = Bench(cluster, 1)
    request = unwritten(bench)
    bench.deaf = True
    call = bench.retry(request, b"x")
    bench.work()
    bench.give(Stopping())
    end = bench.end(call)
    assert (end.failure, tuple(end.request)) == (Failure.UNKNOWN, request)
