"""Execution: each refusal, each answer, and that nothing else than the prefix matters."""

from __future__ import annotations

import pytest

from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.cluster import DataEntry, Reference
from chaplain.journal.messages.config import AddIdentity, FenceLane, RemoveIdentity
from chaplain.journal.messages.ingest import IngestEntry, digest_of
from chaplain.journal.messages.signing import SignatureType
from chaplain.journal.model.bootstrap import ExecutionPolicy
from chaplain.journal.model.records import IdentityStatus
from chaplain.journal.model.results import DataVerdict
from chaplain.journal.storage.verdict import Reason
from chaplain.segment.layout import NO_OFFSET
from chaplain.segment.record import Kind
from chaplain.segment.verdicts import join_parts
from tests.support.execution_stage import (
    ADMIN_ACL,
    BOB,
    WRAPPING,
    Stage,
    give,
    lease,
    pack,
    packs_of,
    petition,
    read_back,
    resigned,
    sealed_pack,
    stored,
)


def test_next_pack_is_applied_and_receives_offsets():
    stage = Stage()
    lane = stage.lane()
    first, second = stage.write(pack(lane, 1, (b"a", b"b")), pack(lane, 3, (b"c", b"d", b"e"), counts=(3,)))
    assert (first.reason, first.base_offset, second.reason, second.base_offset) == (0, 0, 0, 2)
    assert stage.execution.state.lanes[lane].last_id == 3
    assert stage.execution.state.streams["orders"].next_offset == 5


def test_streams_have_separate_offsets_and_one_lane_writes_to_many():
    stage = Stage()
    lane = stage.lane()
    verdicts = stage.write(pack(lane, 1), pack(lane, 2, stream="b"), pack(lane, 3), pack(lane, 4, stream="b"))
    assert [one.base_offset for one in verdicts] == [0, 0, 1, 1]


def test_duplicate_takes_no_offset_and_names_the_original():
    stage = Stage()
    lane = stage.lane()
    entry = pack(lane, 1, (b"a", b"b"))
    stage.write(entry)
    (again,) = stage.write(entry, node=2)
    assert (again.reason, again.base_offset, again.expected_id) == (Reason.DUPLICATE, NO_OFFSET, 3)
    assert again.original is not None
    assert (again.original.base_offset, again.original.position.index) == (0, 2)
    assert stage.execution.state.streams["orders"].next_offset == 2


def test_duplicate_within_one_message_is_recognized():
    stage = Stage()
    lane = stage.lane()
    entry = pack(lane, 1)
    assert [one.reason for one in stage.write(entry, entry)] == [Reason.APPLIED, Reason.DUPLICATE]


def test_forgotten_pack_of_a_lane_counts_as_written():
    stage = Stage(ExecutionPolicy(remembered_packs=2))
    lane = stage.lane()
    entries = [pack(lane, number) for number in range(1, 5)]
    stage.write(*entries)
    assert [one.reason for one in stage.write(*entries)] == [Reason.OLD, Reason.OLD, *[Reason.DUPLICATE] * 2]
    (other,) = stage.write(pack(lane, 1, (b"other",)))
    assert other.reason is Reason.OLD
    assert stage.execution.state.clients[ADMIN_ACL].status == IdentityStatus.ACTIVE


def test_gap_is_void_and_names_the_expected_id():
    stage = Stage()
    lane = stage.lane()
    (void,) = stage.write(pack(lane, 2))
    assert (void.reason, void.base_offset, void.expected_id) == (Reason.GAP, NO_OFFSET, 1)
    assert "orders" not in stage.execution.state.streams
    assert [one.reason for one in stage.write(pack(lane, 1), pack(lane, 2))] == [0, 0]


def test_pack_of_an_unknown_lane_is_void():
    (void,) = Stage().write(pack(5, 1))
    assert void.reason is Reason.UNKNOWN_LANE


def test_pack_with_another_identitys_signature_is_void():
    stage = Stage()
    lane = stage.lane()
    (void,) = stage.write(pack(lane, 1, signer=BOB))
    assert void.reason is Reason.SIGNATURE
    assert stage.execution.state.lanes[lane].last_id == 0


def test_pack_signed_for_another_stream_or_cluster_is_void():
    stage = Stage()
    lane = stage.lane()
    moved = IngestEntry("elsewhere", pack(lane, 1).raw)
    foreign = pack(lane, 1, cluster="other")
    assert [one.reason for one in stage.write(moved, foreign)] == [Reason.SIGNATURE] * 2


def test_malformed_pack_is_void():
    stage = Stage()
    lane = stage.lane()
    broken = bytearray(pack(lane, 1).raw)
    broken[20] = 9
    changed = bytearray(pack(lane, 1).raw)
    changed[-8] ^= 1
    entries = [IngestEntry("orders", bytes(broken)), IngestEntry("orders", bytes(changed)), IngestEntry("orders", b"")]
    assert [one.reason for one in stage.write(*entries)] == [Reason.MALFORMED, Reason.SIGNATURE, Reason.MALFORMED]


def test_malformed_ingest_message_is_void_and_stored():
    stage = Stage()
    lane = stage.lane()
    good, payload = stage.prefix.ingest([pack(lane, 1)])
    bad = DataEntry(Reference(2, 1, 1), digest_of(b"nonsense"))
    other = DataEntry(Reference(3, 1, 1), good.digest)
    message = stage.prefix.order([(bad, b"nonsense"), (other, payload), (good, payload)])
    verdicts = stage.executed[-1].verdict.entries
    assert [isinstance(one, DataVerdict) and one.malformed for one in verdicts] == [True, True, False]
    parts = JournalExecution(stage.founding)
    for settled in stage.prefix.messages[:-1]:
        give(parts, settled)
    records = stored(message, parts.apply(message))
    assert read_back(records) == message.payloads
    assert [record.origin_node for record in records if record.kind == Kind.BATCH] == [3, 1]
    (shown,) = [record for record in join_parts(records) if record.kind == Kind.BATCH]
    assert (shown.part, shown.first_offset, shown.count) == (2, 0, 1)


def bob(stage: Stage, writes=("bob-*",), reads=(), *, admin=False, kind=SignatureType.ED25519, key=BOB.key) -> bytes:
    (added,) = stage.config(petition(AddIdentity("bob", kind, key, writes, reads, admin), nonce=b"bob's nonce 0000"))
    assert added.reason is Reason.APPLIED
    return added.acl


def test_client_writes_only_streams_within_its_rights():
    stage = Stage()
    acl = bob(stage)
    lane = stage.lane(signer=BOB, acl=acl)
    reasons = [
        one.reason
        for one in stage.write(
            pack(lane, 1, stream="orders", signer=BOB),
            pack(lane, 1, stream="bob-1", signer=BOB),
            pack(lane, 2, stream="_bob-1", signer=BOB),
            pack(lane, 2, stream="bob-", signer=BOB),
        )
    ]
    assert reasons == [Reason.NO_RIGHT, Reason.APPLIED, Reason.NO_RIGHT, Reason.APPLIED]


def test_reserved_stream_names_cannot_be_written():
    stage = Stage()
    assert stage.write(pack(stage.lane(), 1, stream="_config"))[0].reason is Reason.NO_RIGHT


def test_removed_client_is_refused():
    stage = Stage()
    acl = bob(stage)
    lane = stage.lane(signer=BOB, acl=acl)
    stage.config(petition(RemoveIdentity(acl)))
    (void,) = stage.write(pack(lane, 1, stream="bob-1", signer=BOB))
    assert void.reason is Reason.REMOVED


def test_streams_and_sizes_are_bounded():
    stage = Stage(ExecutionPolicy(streams_max=1, pack_bytes_max=400))
    lane = stage.lane()
    entries = pack(lane, 1), pack(lane, 2, stream="b"), pack(lane, 2, (b"x" * 500,)), pack(lane, 2)
    reasons = [one.reason for one in stage.write(*entries)]
    assert reasons == [Reason.APPLIED, Reason.STREAMS_FULL, Reason.TOO_LARGE, Reason.APPLIED]


def test_fenced_lane_applies_no_new_pack_but_repeats_receipts():
    stage = Stage()
    lane = stage.lane()
    entry = pack(lane, 1)
    stage.write(entry)
    (fenced,) = stage.config(petition(FenceLane(lane)))
    assert (fenced.reason, fenced.last_id) == (Reason.APPLIED, 1)
    reasons = [one.reason for one in stage.write(entry, pack(lane, 2), pack(lane, 5))]
    assert reasons == [Reason.DUPLICATE, Reason.FENCED, Reason.FENCED]


def test_pack_ordered_before_its_fence_is_applied():
    stage = Stage()
    lane = stage.lane()
    data = stage.prefix.ingest([pack(lane, 1)])
    stage.prefix.order([data, petition(FenceLane(lane))])
    assert [one.reason for one in packs_of(stage.executed[-1])] == [Reason.APPLIED]


# Two signatures for one id.


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1, (b"a",), "orders"), (1, (b"b",), "orders")),
        ((1, (b"a",), "orders"), (1, (b"a",), "other")),
        ((1, (b"a",), "orders"), (1, (b"a", b"b"), "orders")),
        ((1, (b"a", b"b"), "orders"), (2, (b"b",), "orders")),
    ],
)
def test_two_requests_signed_for_one_id_end_the_identity(first, second):
    stage = Stage()
    lane, other = stage.lane(0), stage.lane(1)
    one, two = (pack(lane, number, values, stream=stream) for number, values, stream in (first, second))
    stage.write(one)
    (void,) = stage.write(two, node=2)
    assert (void.reason, void.base_offset) == (Reason.COMPROMISED, NO_OFFSET)
    state = stage.execution.state
    assert state.clients[ADMIN_ACL].status == IdentityStatus.COMPROMISED
    proof = state.proofs[ADMIN_ACL]
    assert (proof.client_id, proof.first.index, proof.second.index) == (lane, 3, 4)
    assert (proof.first.stream, proof.second.stream) == (one.stream, two.stream)
    assert [pack.reason for pack in stage.write(one, pack(lane, 2), pack(other, 1))] == [Reason.COMPROMISED] * 3
    assert stage.config(lease(nonce=b"m" * 16))[0].reason is Reason.UNKNOWN_SIGNER


def test_invalid_signature_over_other_octets_is_no_evidence():
    stage = Stage()
    lane = stage.lane()
    stage.write(pack(lane, 1, (b"a",)))
    (void,) = stage.write(pack(lane, 1, (b"b",), signer=BOB))
    assert void.reason is Reason.SIGNATURE
    assert stage.execution.state.clients[ADMIN_ACL].status == IdentityStatus.ACTIVE


def test_same_octets_with_another_signature_are_the_same_request():
    """Who makes two signatures for one message has not said two things."""
    stage = Stage()
    lane = stage.lane()
    entry = pack(lane, 1)
    again = resigned(entry)
    assert again.raw != entry.raw
    stage.write(entry)
    (void,) = stage.write(again)
    assert void.reason is Reason.DUPLICATE
    assert stage.execution.state.clients[ADMIN_ACL].status == IdentityStatus.ACTIVE


def test_refused_pack_is_no_evidence():
    """What could never apply may be replaced by something else with the same id."""
    stage = Stage()
    acl = bob(stage)
    lane = stage.lane(signer=BOB, acl=acl)
    refused = pack(lane, 1, stream="orders", signer=BOB)
    stage.write(refused)
    stage.write(pack(lane, 1, stream="bob-1", signer=BOB))
    (late,) = stage.write(refused, node=3)
    assert late.reason is Reason.NO_RIGHT
    assert stage.execution.state.clients[acl].status == IdentityStatus.ACTIVE


def test_hmac_packs_are_verified_with_wrapped_secrets():
    stage = Stage(wrapping=WRAPPING)
    key = BOB.key + WRAPPING.wrap(b"s" * 32, BOB.key, b"n" * 12)
    acl = bob(stage, ("*",), kind=SignatureType.HMAC_SHA256, key=key)
    lane = stage.lane(signer=BOB, acl=acl)
    entries = pack(lane, 1, signer=BOB), sealed_pack(lane, 1, b"t" * 32), sealed_pack(lane, 1, b"s" * 32)
    assert [one.reason for one in stage.write(*entries)] == [Reason.SIGNATURE, Reason.SIGNATURE, Reason.APPLIED]
    assert b"s" * 32 not in stage.execution.state.export()
