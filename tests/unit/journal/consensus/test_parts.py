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


def put(shelf: PayloadQueue, index: int, journal: int = 1) -> bool:
    return shelf.put(0, Reference(9, journal, index), sha256(b"%d" % index).digest(), b"%d" % index)


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
    shelf = PayloadQueue(1 << 20, IDLE_NS)
    ordered: list[int] = []
    for index in arrivals:
        put(shelf, index)
        chosen = shelf.choose(entries_max, 1 << 20)
        assert len(chosen) <= entries_max
        ordered += [one.reference.index for one in chosen]
        shelf.mark_ordered(chosen)
    assert ordered == list(range(1, len(ordered) + 1))
    assert set(ordered) <= set(arrivals)


def test_large_payload_is_proposed_alone() -> None:
    shelf = PayloadQueue(1 << 20, IDLE_NS)
    shelf.put(0, Reference(9, 1, 1), b"d" * 32, bytes(500))
    put(shelf, 2)
    assert [one.reference.index for one in shelf.choose(10, 100)] == [1]


def test_payload_queue_is_bounded_except_for_proposed_payloads() -> None:
    shelf = PayloadQueue(2 * PAYLOAD_OVERHEAD_BYTES + 10, IDLE_NS)
    assert put(shelf, 1)
    assert put(shelf, 2)
    assert not put(shelf, 3)
    assert shelf.find(entry(3)) is None
    shelf.reserve([entry(3)])
    assert put(shelf, 3)
    assert shelf.get([entry(1), entry(3)]) == (b"1", b"3")
    shelf.mark_ordered([entry(1), entry(2), entry(3)])
    assert shelf.size_bytes == 0
    assert put(shelf, 2), "what is ordered needs no room"
    assert shelf.size_bytes == 0


def test_reported_gaps_are_bounded() -> None:
    shelf = PayloadQueue(1 << 20, IDLE_NS)
    put(shelf, 2)
    put(shelf, 5)
    assert [gap.index for gap in shelf.gaps(10)] == [1, 3, 4]
    assert [gap.index for gap in shelf.gaps(2)] == [1, 3]


def test_silent_ingest_journal_is_dropped_from_memory() -> None:
    shelf = PayloadQueue(1 << 20, IDLE_NS)
    put(shelf, 2)  # 1 will never come: its node is gone
    shelf.put(IDLE_NS - 1, Reference(8, 1, 1), b"d" * 32, b"alive")
    assert shelf.expire(IDLE_NS - 1) == []
    assert shelf.expire(IDLE_NS) == [(9, 1)]
    assert shelf.gaps(10) == []
    assert [one.reference.node for one in shelf.choose(10, 100)] == [8]
    assert shelf.size_bytes == PAYLOAD_OVERHEAD_BYTES + len(b"alive")
    put(shelf, 1)
    assert len(shelf.choose(10, 100)) == 2, "it may come back"


def test_payload_with_another_digest_counts_as_missing() -> None:
    shelf = PayloadQueue(1 << 20, IDLE_NS)
    put(shelf, 1)
    other = DataEntry(Reference(9, 1, 1), b"x" * 32)
    assert shelf.find(other) is None


def test_promise_waits_for_all_earlier_writes() -> None:
    quill = PersistBarrier(1)
    quill.send_after_sync(2, Fetch(1, False))
    assert [type(effect) for effect in quill.finish()] == [SendMessage], "nothing was written: nothing to wait for"
    quill.write((Replace("a", b""),), OwnVoteSynced(1))
    quill.send_after_sync(2, Fetch(2, False))
    quill.send_now(3, Fetch(3, False))
    effects = quill.finish()
    assert [type(effect) for effect in effects] == [SendMessage, Persist]
    assert isinstance(effects[0], SendMessage)
    assert effects[0].node == 3
    quill.write((Replace("b", b""),))
    quill.finish()
    quill.send_after_sync(2, Fetch(4, False))
    assert quill.finish() == []
    assert quill.persisted(1) == [OwnVoteSynced(1)]
    assert len(quill.finish()) == 1
    quill.persisted(2)
    assert len(quill.finish()) == 1
    assert not quill.busy


def test_failed_disk_discards_waiting_promises() -> None:
    quill = PersistBarrier(1)
    quill.write((Replace("a", b""),))
    quill.send_after_sync(2, Fetch(2, False))
    quill.finish()
    quill.abandon()
    assert quill.persisted(1) == []
    assert quill.finish() == []
