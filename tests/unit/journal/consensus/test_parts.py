"""The small pieces: who counts, what is offered, and when a promise may leave."""

from __future__ import annotations

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from chaplain.core import Persist, Replace
from chaplain.journal.consensus.acks import AckTally
from chaplain.journal.consensus.events import OwnVoteSynced, SendMessage
from chaplain.journal.consensus.payload_queue import PAYLOAD_OVERHEAD_BYTES, PayloadQueue
from chaplain.journal.consensus.persist_barrier import PersistBarrier
from chaplain.journal.messages.cluster import DataEntry, Reference
from chaplain.journal.messages.consensus import Fetch
from chaplain.journal.model.quorum import Quorum

IDLE_NS = 10


def entry(index: int, journal: int = 1) -> DataEntry:
    return DataEntry(Reference(9, journal, index), sha256(b"%d" % index).digest())


def put(queue: PayloadQueue, index: int, journal: int = 1) -> bool:
    return queue.put(0, Reference(9, journal, index), sha256(b"%d" % index).digest(), b"%d" % index)


def test_quorum_needs_more_than_half_and_counts_members_once() -> None:
    tally = AckTally(Quorum(((1, 2, 3, 4),)))
    for node in (1, 1, 2, 99):
        tally.add(node, 0, {})
    assert not tally.reached({})
    tally.add(3, 0, {})
    assert tally.reached({})


def test_acknowledgement_of_a_known_ended_incarnation_does_not_count() -> None:
    tally = AckTally(Quorum(((1, 2, 3),)))
    tally.add(1, 0, {})
    tally.add(2, 0, {})
    assert tally.reached({})
    assert not tally.reached({2: 1}), "we know it ourselves"
    tally.add(1, 0, {2: 1})
    assert not tally.reached({}), "another one counted knows it"
    tally.add(2, 1, {})
    assert tally.reached({2: 1})


def test_older_acknowledgement_does_not_replace_a_newer_one() -> None:
    tally = AckTally(Quorum(((1, 2, 3),)))
    tally.add(2, 2, {})
    tally.add(2, 1, {})
    tally.add(1, 0, {2: 2})
    assert tally.reached({})


@given(st.lists(st.integers(1, 12), max_size=30), st.integers(1, 5))
def test_references_are_offered_in_order_without_gaps(arrivals: list[int], entries_max: int) -> None:
    queue = PayloadQueue(1 << 20, IDLE_NS)
    ordered: list[int] = []
    for index in arrivals:
        put(queue, index)
        chosen = queue.choose(entries_max, 1 << 20)
        assert len(chosen) <= entries_max
        ordered += [one.reference.index for one in chosen]
        queue.mark_ordered(chosen)
    assert ordered == list(range(1, len(ordered) + 1))
    assert set(ordered) <= set(arrivals)


def test_large_payload_is_proposed_alone() -> None:
    queue = PayloadQueue(1 << 20, IDLE_NS)
    queue.put(0, Reference(9, 1, 1), b"d" * 32, bytes(500))
    put(queue, 2)
    assert [one.reference.index for one in queue.choose(10, 100)] == [1]


def test_payload_queue_is_bounded_except_for_proposed_payloads() -> None:
    queue = PayloadQueue(2 * PAYLOAD_OVERHEAD_BYTES + 10, IDLE_NS)
    assert put(queue, 1)
    assert put(queue, 2)
    assert not put(queue, 3)
    assert queue.find(entry(3)) is None
    queue.reserve([entry(3)])
    assert put(queue, 3)
    assert queue.get([entry(1), entry(3)]) == (b"1", b"3")
    queue.mark_ordered([entry(1), entry(2), entry(3)])
    assert queue.size_bytes == 0
    assert put(queue, 2), "what is ordered needs no room"
    assert queue.size_bytes == 0


def test_reported_gaps_are_bounded() -> None:
    queue = PayloadQueue(1 << 20, IDLE_NS)
    put(queue, 2)
    put(queue, 5)
    assert [gap.index for gap in queue.gaps(10)] == [1, 3, 4]
    assert [gap.index for gap in queue.gaps(2)] == [1, 3]


def test_silent_ingest_journal_is_dropped_from_memory() -> None:
    queue = PayloadQueue(1 << 20, IDLE_NS)
    put(queue, 2)  # 1 will never come: its node is gone
    queue.put(IDLE_NS - 1, Reference(8, 1, 1), b"d" * 32, b"alive")
    assert queue.expire(IDLE_NS - 1) == []
    assert queue.expire(IDLE_NS) == [(9, 1)]
    assert queue.gaps(10) == []
    assert [one.reference.node for one in queue.choose(10, 100)] == [8]
    assert queue.size_bytes == PAYLOAD_OVERHEAD_BYTES + len(b"alive")
    put(queue, 1)
    assert len(queue.choose(10, 100)) == 2, "it may come back"


def test_payload_with_another_digest_counts_as_missing() -> None:
    queue = PayloadQueue(1 << 20, IDLE_NS)
    put(queue, 1)
    other = DataEntry(Reference(9, 1, 1), b"x" * 32)
    assert queue.find(other) is None


def test_promise_waits_for_all_earlier_writes() -> None:
    barrier = PersistBarrier(1)
    barrier.send_after_sync(2, Fetch(1, False))
    assert [type(effect) for effect in barrier.finish()] == [SendMessage], "nothing was written: nothing to wait for"
    barrier.write((Replace("a", b""),), OwnVoteSynced(1))
    barrier.send_after_sync(2, Fetch(2, False))
    barrier.send_now(3, Fetch(3, False))
    effects = barrier.finish()
    assert [type(effect) for effect in effects] == [SendMessage, Persist]
    assert isinstance(effects[0], SendMessage)
    assert effects[0].node == 3
    barrier.write((Replace("b", b""),))
    barrier.finish()
    barrier.send_after_sync(2, Fetch(4, False))
    assert barrier.finish() == []
    assert barrier.persisted(1) == [OwnVoteSynced(1)]
    assert len(barrier.finish()) == 1
    barrier.persisted(2)
    assert len(barrier.finish()) == 1
    assert not barrier.busy


def test_failed_disk_discards_waiting_promises() -> None:
    barrier = PersistBarrier(1)
    barrier.write((Replace("a", b""),))
    barrier.send_after_sync(2, Fetch(2, False))
    barrier.finish()
    barrier.abandon()
    assert barrier.persisted(1) == []
    assert barrier.finish() == []
