"""Conditional writes step by step, over real journal cores: a refusal is final, whatever is lost on the way."""

from __future__ import annotations

import pytest

from chaplain.client.api.conditions import terms, with_terms
from chaplain.client.protocol.call_events import Failure, Raised, Returned
from chaplain.client.protocol.journal.events import Batch, RetryCommand, WriteCommand, WritesAcknowledged
from chaplain.client.protocol.journal.lane import Packed, ProducerLane
from chaplain.journal.messages.client import Receipts, Run, Write
from chaplain.journal.model.reason import Reason
from tests.unit.client.journal_stage import Bench, Cluster, values

WAIT_NS = 60 * 10**9


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(3)
    made.elect()
    return made


def conditional(expect_offset: int, value: bytes = b"x") -> Batch:
    batch = Batch("orders", [value], size_bytes=len(value))
    return with_terms(batch, terms(expect_offset))


def write(bench: Bench, expect_offset: int, wait_ns: int = WAIT_NS) -> int:
    return bench.wish(lambda call: WriteCommand(call, conditional(expect_offset), wait_ns))


def retry(bench: Bench, request: tuple[int, int], expect_offset: int) -> int:
    return bench.wish(lambda call: RetryCommand(call, conditional(expect_offset), *request, WAIT_NS))


def is_conflict(outcome: object, offset: int) -> bool:
    return isinstance(outcome, Raised) and (outcome.failure, outcome.offset) == (Failure.CONFLICT, offset)


def lose_receipts(up: bool, message: object) -> int:
    return 0 if not up and isinstance(message, Receipts) else 1


def test_conflict_is_reported_and_the_lane_continues(cluster: Cluster) -> None:
    bench = Bench(cluster, 1)
    calls = [write(bench, offset) for offset in (0, 0, 1, 9)]
    ends = [bench.end(call) for call in calls]
    assert isinstance(ends[0], WritesAcknowledged)
    assert is_conflict(ends[1], 1)
    assert isinstance(ends[2], WritesAcknowledged)
    assert is_conflict(ends[3], 2)
    assert values(bench) == [b"x", b"x"]
    assert len(cluster.nodes[1].core.execution.state.lanes) == 1


def test_conflict_whose_answer_was_lost_stays_a_conflict_although_the_condition_holds_later(cluster: Cluster) -> None:
    bench, other = Bench(cluster, 1), Bench(cluster, 2)
    bench.end(bench.write(b"warm"))
    bench.spoil = lose_receipts
    call = write(bench, 2)
    bench.rest(1)
    other.end(other.write(b"now it would hold"))
    bench.spoil = None
    assert is_conflict(bench.end(call), 1)
    assert values(bench) == [b"warm", b"now it would hold"]


def test_resolve_says_that_a_refused_write_is_not_written_and_a_retry_says_why(cluster: Cluster) -> None:
    bench = Bench(cluster, 1)
    bench.end(bench.write(b"warm"))
    bench.spoil = lose_receipts
    unknown = bench.end(write(bench, 7, 2 * 10**9))
    assert isinstance(unknown, Raised)
    assert unknown.failure is Failure.UNKNOWN
    assert unknown.request is not None
    bench.spoil = None
    other = Bench(cluster, 2)
    assert isinstance(other.end(other.resolve(*unknown.request)), Returned)
    assert is_conflict(other.end(retry(other, unknown.request, 7)), 1)
    assert values(other) == [b"warm"]


def test_retry_of_an_unwritten_request_is_decided_anew_and_once(cluster: Cluster) -> None:
    bench, other = Bench(cluster, 1), Bench(cluster, 2)
    bench.end(bench.write(b"warm"))
    bench.spoil = lambda up, message: 0 if up and isinstance(message, Write) else 1
    unknown = bench.end(write(bench, 2, 2 * 10**9))
    assert isinstance(unknown, Raised)
    assert unknown.request is not None
    bench.spoil = None
    assert is_conflict(other.end(retry(other, unknown.request, 2)), 1)
    other.end(other.write(b"now it would hold"))
    assert is_conflict(other.end(retry(other, unknown.request, 2)), 1)
    assert values(other) == [b"warm", b"now it would hold"]


@pytest.mark.parametrize("refusal", [Reason.CONFLICT, 200])
def test_refusal_settles_its_own_pack_alone(refusal: int) -> None:
    lane: ProducerLane[str] = ProducerLane(1)
    for number in (1, 2, 3):
        lane.add(Packed(number, requests=1, messages=2, stream="s", raw=b"x", items=[str(number)]))
    assert lane.settle(Run(1, 2, 1, "other", 9, 0, 5, 1, 9, b"h", refusal)) == []
    assert lane.settle(Run(1, 2, 2, "s", 9, 0, 5, 1, 9, b"h", refusal)) == []
    ((packed, place),) = lane.settle(Run(1, 2, 1, "s", 9, 0, 5, 1, 9, b"h", refusal))
    assert (packed.items, place.base_offset, place.refusal) == (["2"], 9, refusal)
    assert [place.base_offset for _, place in lane.settle(Run(1, 3, 1, "s", 9, 2, 6, 1, 9, b"h"))] == [9]
    assert list(lane.in_flight) == [1]
