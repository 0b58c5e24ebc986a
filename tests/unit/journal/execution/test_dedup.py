"""Lanes: the rule of ids, and when a lane is over."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaplain.journal.execution.dedup import PackStatus, classify, record_applied
from chaplain.journal.execution.state import stream_genesis
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.config import RetireLane, retry_nonce
from chaplain.journal.messages.write_request import Heading
from chaplain.journal.model.bootstrap import ExecutionPolicy
from chaplain.journal.model.records import AppliedRequest, LaneState, LogPosition
from chaplain.journal.storage.records import verdict_of
from chaplain.journal.storage.verdict import Reason
from tests.support.execution_stage import (
    ADMIN_ACL,
    BOB,
    SECOND,
    Prefix,
    Stage,
    founding,
    give,
    lease,
    pack,
    packs_of,
    petition,
    read_back,
    stored,
)

MOMENT = LogPosition(1, 1, 1, b"h" * 32)


def remembered(first_id: int, requests: int, digest: bytes = b"d") -> AppliedRequest:
    return AppliedRequest(first_id, requests, digest, "s", 0, requests, MOMENT, 0, 0)


def heading(first_id: int, requests: int) -> Heading:
    return Heading(1, first_id, requests, requests, 1, b"", 0)


LANE = LaneState(1, ADMIN_ACL, b"", 0, last_id=9, recent=(remembered(4, 2), remembered(6, 4)))


@pytest.mark.parametrize(
    ("first_id", "requests", "digest", "standing"),
    [
        (10, 1, b"d", PackStatus.NEXT),
        (11, 1, b"d", PackStatus.GAP),
        (6, 4, b"d", PackStatus.SEEN),
        (6, 4, b"e", PackStatus.CONFLICT),
        (4, 2, b"d", PackStatus.SEEN),
        (5, 1, b"e", PackStatus.CONFLICT),
        (1, 3, b"d", PackStatus.OLD),
        (1, 3, b"e", PackStatus.OLD),
        (3, 2, b"e", PackStatus.CONFLICT),
        (9, 2, b"e", PackStatus.CONFLICT),
        (1, 99, b"e", PackStatus.CONFLICT),
    ],
)
def test_pack_status_follows_from_lane_id_and_digest(first_id, requests, digest, standing):
    assert classify(LANE, heading(first_id, requests), digest).status is standing


def test_lane_remembers_only_its_last_packs():
    lane = LaneState(1, ADMIN_ACL, b"", 0)
    for number in range(1, 100):
        lane = record_applied(lane, remembered(number, 1), ExecutionPolicy(remembered_packs=5))
    assert (lane.last_id, len(lane.recent), lane.recent[0].first_id) == (99, 5, 95)
    with pytest.raises(AssertionError, match="out of its turn"):
        record_applied(lane, remembered(101, 1), ExecutionPolicy())


# When lanes are over.


def test_idle_lane_expires_by_cluster_time_and_its_id_is_not_reused():
    stage = Stage(ExecutionPolicy(lane_idle_ns=10 * SECOND))
    used, idle = stage.lane(0), stage.lane(1)
    stage.write(pack(used, 1), time_ns=10 * SECOND)
    stage.write(pack(used, 2), pack(idle, 1), time_ns=12 * SECOND)
    assert [one.reason for one in packs_of(stage.executed[-1])] == [Reason.APPLIED, Reason.APPLIED]
    stage.write(pack(used, 3), pack(idle, 2), time_ns=23 * SECOND)
    assert [one.reason for one in packs_of(stage.executed[-1])] == [Reason.UNKNOWN_LANE] * 2
    assert not stage.execution.state.lanes
    assert not stage.execution.state.leases
    assert stage.lane(2) == 3


def test_repeated_lease_gives_the_same_lane():
    stage = Stage()
    stage.write(pack(stage.lane(5), 1), pack(1, 2))
    assert stage.lane(5) == 1
    assert stage.config(lease(nonce=b"%16d" % 5))[0].last_id == 2
    assert stage.lane(6) == 2


def test_lease_repeated_within_one_message_gives_one_lane():
    stage = Stage()
    one, two = stage.config(lease(), lease())
    assert one.client_id == two.client_id == 1


def test_full_lane_table_replaces_only_a_long_idle_lane():
    stage = Stage(ExecutionPolicy(lanes_per_identity_max=2, lane_spare_ns=100 * SECOND))
    stage.lane(0)
    stage.lane(1)
    stage.write(pack(1, 1), time_ns=50 * SECOND)
    (full,) = stage.config(lease(nonce=b"c" * 16), time_ns=60 * SECOND)
    assert full.reason is Reason.LANES_FULL
    (granted,) = stage.config(lease(nonce=b"c" * 16), time_ns=120 * SECOND)
    assert granted.client_id == 3
    assert list(stage.execution.state.lanes) == [1, 3]


def test_returned_lane_is_replaced_before_any_other():
    stage = Stage(ExecutionPolicy(lanes_per_identity_max=3))
    old, given_back, young = stage.lane(0), stage.lane(1), stage.lane(2)
    stage.config(petition(RetireLane(given_back, ADMIN_ACL)))
    assert stage.lane(3) == young + 1
    assert list(stage.execution.state.lanes) == [old, young, young + 1]
    assert stage.config(lease(nonce=b"c" * 16))[0].reason is Reason.LANES_FULL


def test_returning_a_lane_does_not_count_as_use():
    """So it is over before a lane that was leased because of what it told."""
    stage = Stage(ExecutionPolicy(lane_idle_ns=10 * SECOND))
    first, later = stage.lane(0), stage.lane(1)
    stage.config(petition(RetireLane(first, ADMIN_ACL)), time_ns=9 * SECOND)
    assert list(stage.execution.state.lanes) == [first, later]
    snapshot = JournalExecution(stage.founding, snapshot=stage.execution.state.export()).state
    for state in (snapshot, stage.execution.state):
        assert list(state.lanes) == [first, later]
        assert (list(state.leases.values()), state.lane_counts) == ([later], {ADMIN_ACL: 1})
    stage.write(time_ns=12 * SECOND - 1)
    assert list(stage.execution.state.lanes) == [later]


def test_retries_of_one_request_get_one_lane_and_write_once():
    stage = Stage()
    (one,) = stage.config(lease(nonce=retry_nonce(7, 3)))
    (two,) = stage.config(lease(nonce=retry_nonce(7, 3)))
    (other,) = stage.config(lease(nonce=retry_nonce(7, 4)))
    assert one.client_id == two.client_id != other.client_id
    stage.write(pack(one.client_id, 1, (b"a",)))
    for again in (pack(one.client_id, 1, (b"b", b"c"), counts=(2,)), pack(one.client_id, 1, (b"a",), stream="x")):
        (seen,) = stage.write(again)
        assert (seen.reason, seen.original.base_offset) == (Reason.DUPLICATE, 0)
    assert stage.execution.state.streams["orders"].next_offset == 1
    assert not stage.execution.state.proofs


def test_lanes_of_all_identities_are_bounded():
    stage = Stage(ExecutionPolicy(lanes_max=1))
    stage.lane(0)
    assert stage.config(lease(nonce=b"c" * 16))[0].reason is Reason.LANES_FULL


# Any traffic.


@st.composite
def traffic(draw):
    """Packs of some lanes, cut anyhow, then lost, doubled, and brought by any ingest node in any order."""
    lanes = draw(st.integers(1, 3))
    packs = []
    for lane in range(1, lanes + 1):
        number = 1
        for _ in range(draw(st.integers(1, 5))):
            counts = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
            values = [b"%d/%d/%d" % (lane, number, at) for at in range(sum(counts))]
            stream = draw(st.sampled_from("xy"))
            packs.append(pack(lane, number, values, counts=counts, stream=stream))
            number += len(counts)
    sent = draw(st.lists(st.sampled_from(packs), min_size=1, max_size=30))
    if draw(st.booleans()):
        sent = packs + sent
    if draw(st.integers(0, 5)) == 0:
        sent.insert(draw(st.integers(0, len(sent))), pack(1, draw(st.integers(1, 4)), (b"other",), stream="x"))
    if draw(st.integers(0, 5)) == 0:
        sent.insert(draw(st.integers(0, len(sent))), pack(1, draw(st.integers(1, 4)), signer=BOB))
    cuts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=40))
    return lanes, sent, cuts, draw(st.randoms(use_true_random=False))


@given(traffic())
@settings(max_examples=120, deadline=None)
def test_random_traffic_applies_each_request_once_in_order(case):
    lanes, sent, cuts, rng = case
    given_to = founding(ExecutionPolicy(remembered_packs=3))
    executed = []
    one = JournalExecution(given_to, on_applied=executed.append)
    prefix = Prefix(one)
    prefix.order([lease(nonce=b"%16d" % lane) for lane in range(lanes)])
    at = 0
    while at < len(sent):
        payloads = []
        for _ in range(rng.randrange(1, 4)):
            size = cuts[at % len(cuts)]
            payloads.append(prefix.ingest(sent[at : at + size], rng.randrange(1, 4)))
            at += size
        prefix.order(payloads)
    _check_once_in_order(executed)
    _check_same_everywhere(given_to, prefix, one, rng)


def _check_once_in_order(executed):
    last: dict[int, int] = {}
    offsets: dict[str, int] = {}
    for message in executed:
        for done in packs_of(message):
            if done.reason is not Reason.APPLIED:
                assert done.base_offset == (1 << 64) - 1
                continue
            assert done.first_id == last.get(done.client_id, 0) + 1, "a request was left out or applied twice"
            last[done.client_id] = done.first_id + done.requests - 1
            assert done.base_offset == offsets.get(done.stream, 0), "offsets are not dense"
            offsets[done.stream] = done.base_offset + done.messages
        for record in message.batches:
            assert record.first_offset + record.count <= offsets[record.stream]


def _check_same_everywhere(given_to, prefix: Prefix, one: JournalExecution, rng: random.Random):
    """An executor that was there, one that reads files, and one that begins in the middle."""
    middle = rng.randrange(len(prefix.messages) + 1)
    other, reader, late = JournalExecution(given_to), JournalExecution(given_to), None
    for number, message in enumerate(prefix.messages):
        if number == middle:
            late = JournalExecution(given_to, snapshot=other.state.export())
        records = stored(message, other.apply(message))
        assert read_back(records) == message.payloads
        reader.cache_stored(message.body, message.payloads, verdict_of(records[-1]))
        reader.apply(message)
        if late is not None:
            give(late, message)
    fingerprints = {one.fingerprint(), other.fingerprint(), reader.fingerprint()}
    if late is not None:
        fingerprints.add(late.fingerprint())
    assert len(fingerprints) == 1
    for name, tail in one.state.streams.items():
        assert tail.chain != stream_genesis("stage", name)
