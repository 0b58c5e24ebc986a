"""Requests of clients that wait: who is next, and how much may wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaplain.node.fair_queue import ITEM_BYTES, FairQueue

MIB = 1 << 20
owners = st.sampled_from([b"ann", b"bob", b"eve"])
requests = st.lists(st.tuples(owners, st.integers(0, 2)), max_size=80)


def filled(wanted: list[tuple[bytes, int]]) -> FairQueue[tuple[bytes, int, int]]:
    queue: FairQueue[tuple[bytes, int, int]] = FairQueue(MIB, MIB, MIB)
    for number, (owner, session) in enumerate(wanted):
        assert queue.put(owner, owner + b"%d" % session, (owner, session, number), 100)
    return queue


def taken(queue: FairQueue[tuple[bytes, int, int]]) -> list[tuple[bytes, int, int]]:
    served = []
    while queue:
        served.append(queue.take())
    return served


@given(requests)
def test_every_request_is_served_once_and_in_order_per_session(wanted: list[tuple[bytes, int]]) -> None:
    queue = filled(wanted)
    served = taken(queue)
    assert sorted(number for _, _, number in served) == list(range(len(wanted)))
    for which in {(owner, session) for owner, session, _ in served}:
        numbers = [number for owner, session, number in served if (owner, session) == which]
        assert numbers == sorted(numbers)
    assert queue.size_bytes == 0


@given(requests)
def test_waiting_clients_are_served_between_two_requests_of_one_client(
    wanted: list[tuple[bytes, int]],
) -> None:
    served = [owner for owner, _, _ in taken(filled(wanted))]
    for at, owner in enumerate(served):
        later = set(served[at + 1 :])
        turn = served[at + 1 : at + 1 + len(later - {owner})]
        assert set(turn) == later - {owner}


def test_client_with_one_request_waits_for_one_of_each_other_client() -> None:
    queue = filled([(b"eve", number % 3) for number in range(500)])
    queue.put(b"ann", b"ann0", (b"ann", 0, 500), 100)
    assert b"ann" in [queue.take()[0] for _ in range(2)]


def test_session_with_one_request_waits_for_one_of_each_sister_session() -> None:
    queue = filled([(b"ann", 0)] * 500)
    queue.put(b"ann", b"ann1", (b"ann", 1, 500), 100)
    assert 1 in [queue.take()[1] for _ in range(2)]


def test_queue_searches_for_a_light_client_once_between_two_changes() -> None:
    queue = filled([(b"%d" % number, 0) for number in range(100)])
    for number in range(100):
        queue.charge(0, b"%d" % number, 1_000_000)
    searched = []
    is_light = queue.is_light
    queue.is_light = lambda now_ns, owner: searched.append(owner) or is_light(now_ns, owner)  # type: ignore[method-assign, func-returns-value]
    assert not queue.has_light(1)
    assert not queue.has_light(1)
    assert queue.take(1, light=True) is None
    assert len(searched) == 100
    queue.put(b"ann", b"ann0", (b"ann", 0, 100), 100)
    assert queue.has_light(1)
    assert queue.take(1, light=True) == (b"ann", 0, 100)
    assert len(searched) == 201


def test_waiting_requests_are_bounded_per_session_client_and_in_total() -> None:
    size = 1000 - ITEM_BYTES
    queue: FairQueue[int] = FairQueue(2000, 3000, 5000)
    assert [queue.put(b"eve", b"e1", 0, size) for _ in range(3)] == [True, True, False]
    assert [queue.put(b"eve", b"e2", 0, size) for _ in range(2)] == [True, False]
    assert [queue.put(b"ann", b"a1", 0, size) for _ in range(3)] == [True, True, False]
    assert not queue.put(b"bob", b"b1", 0, size)
    assert queue.drop(b"eve", b"e1") == 2
    assert queue.put(b"bob", b"b1", 0, size)
    assert queue.drop(b"eve", b"nobody") == 0
