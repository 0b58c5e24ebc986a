"""Execution: what is stored, what comes back of it, and what executors compare."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from chaplain.errors import Malformed
from chaplain.journal.execution.state import load, stream_genesis, stream_hash
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.model.bootstrap import ExecutionPolicy
from chaplain.journal.storage import verdict
from chaplain.journal.storage.record_layout import decode_payloads
from chaplain.journal.storage.records import message_records, skeleton_of
from chaplain.journal.storage.verdict import Reason
from chaplain.segment.arrow import to_record_batches
from chaplain.segment.layout import NO_OFFSET
from chaplain.segment.pack import stated_digest
from chaplain.segment.record import Kind
from chaplain.segment.verdicts import AppliedBatch, decode_verdict, join_parts, only_batch
from tests.support.execution_stage import (
    ADMIN,
    BOB,
    CLUSTER,
    SECOND,
    Prefix,
    Stage,
    decided,
    founding,
    lease,
    log_entry,
    pack,
    packs_of,
    read_back,
    stored,
)

# What is stored, and what is compared.


def busy_stage() -> Stage:
    stage = Stage()
    lanes = [stage.lane(number) for number in range(3)]
    rng = random.Random(1)
    entries = [pack(lane, 1 + n, (b"v%d" % n,), stream=rng.choice("xyz")) for n in range(4) for lane in lanes]
    rng.shuffle(entries)
    for at in range(0, len(entries), 3):
        stage.write(*entries[at : at + 3], node=rng.choice((1, 2, 3)))
    stage.prefix.order(
        [stage.prefix.ingest(entries[:2], 2), stage.prefix.ingest(entries[5:], 3), lease(nonce=b"z" * 16)]
    )
    stage.prefix.order([])
    return stage


def test_preparing_changes_nothing_and_another_message_may_be_applied():
    stage = busy_stage()
    before = stage.execution.fingerprint()
    one = stage.prefix.propose([stage.prefix.ingest([pack(1, 100)])])
    two = stage.prefix.propose([lease(nonce=b"y" * 16)])
    expected = decided(stage.execution, two)
    for message in (one, two, one):
        stage.execution.prepare(message)
        assert stage.execution.fingerprint() == before
    assert stage.execution.apply(two) == expected
    assert stage.execution.fingerprint() != before
    assert stage.executed[-1].position.hash == two.hash


def test_stored_payloads_and_verdicts_are_read_back_unchanged():
    stage = busy_stage()
    other = JournalExecution(stage.founding)
    for message in stage.prefix.messages:
        decision = other.apply(message)
        assert read_back(message_records(log_entry(message))) == message.payloads
        decoded = verdict.decode(decision.verdict)
        assert verdict.encode(decoded) == decision.verdict
        assert len(decoded.entries) == len(message.body.entries)
    assert other.fingerprint() == stage.execution.fingerprint()


def test_stored_rows_have_consecutive_offsets_per_stream():
    stage = busy_stage()
    rows: dict[str, list[int]] = {}
    for executed in stage.executed:
        for batch in to_record_batches(executed.batches, ("topic", "offset", "value")):
            for topic, offset in zip(batch["topic"].to_pylist(), batch["offset"].to_pylist(), strict=True):
                rows.setdefault(topic, []).append(offset)
    assert {name: list(range(tail.next_offset)) for name, tail in stage.execution.state.streams.items()} == rows
    assert set(rows) == {"x", "y", "z"}


def test_stream_chains_follow_from_stored_records():
    stage = busy_stage()
    chains: dict[str, bytes] = {}
    for executed in stage.executed:
        for written in executed.verdict.streams:
            digests = [
                stated_digest(bytes(entry.raw))
                for record in executed.batches
                if record.stream == written.stream
                for entry in _packs(record)
            ]
            previous = chains.get(written.stream) or stream_genesis(CLUSTER, written.stream)
            chains[written.stream] = stream_hash(previous, written.first_offset, written.count, digests)
            assert chains[written.stream] == written.chain
    assert chains == {name: tail.chain for name, tail in stage.execution.state.streams.items()}


def _packs(record):
    from chaplain.segment.pack import heads_of

    return [IngestEntry("", bytes(record.body)[head.start : head.end]) for head in heads_of(record.body)]


def test_replay_from_disk_checks_no_signature(monkeypatch):
    stage = busy_stage()
    stage.write(pack(1, 50, signer=BOB))
    writer, reader = JournalExecution(stage.founding), JournalExecution(stage.founding)
    verdicts = [writer.apply(message).verdict for message in stage.prefix.messages]
    monkeypatch.setattr("chaplain.journal.execution.state_machine.holds", lambda check: pytest.fail("checked again"))
    for message, given in zip(stage.prefix.messages, verdicts, strict=True):
        reader.cache_stored(message.body, message.payloads, given)
        reader.apply(message)
    assert reader.fingerprint() == writer.fingerprint() == stage.execution.fingerprint()


def test_known_signature_results_are_not_checked_again(monkeypatch):
    checked = []
    stage = Stage()
    lane = stage.lane()
    from chaplain.journal.execution import state_machine

    real = state_machine.holds
    monkeypatch.setattr(
        "chaplain.journal.execution.state_machine.holds", lambda check: checked.append(1) or real(check)
    )
    entry, payload = stage.prefix.ingest([pack(lane, 1), pack(lane, 2, signer=BOB)])
    stage.execution.cache_checks(entry.digest, (True, False))
    stage.prefix.order([(entry, payload)])
    assert [one.reason for one in packs_of(stage.executed[-1])] == [Reason.APPLIED, Reason.SIGNATURE]
    assert not checked
    stage.write(pack(lane, 2))
    assert checked


def test_exported_state_is_loaded_unchanged_and_continues_identically():
    stage = busy_stage()
    data = stage.execution.state.export()
    other = JournalExecution(stage.founding, snapshot=data)
    assert other.state.export() == data
    assert other.applied_index == stage.execution.applied_index
    stage.prefix.executors.append(other)
    duplicate = pack(1, 1, (b"v0",), stream="x")
    stage.write(duplicate, pack(1, 5), pack(2, 9))
    stage.config(lease(nonce=b"z" * 16), lease(nonce=b"zz" * 8))
    assert other.fingerprint() == stage.execution.fingerprint()


def test_foreign_or_broken_state_is_refused():
    stage = busy_stage()
    data = stage.execution.state.export()
    for broken in (b"", data[:-1], data + b"\0", bytes((data[0] ^ 1,)) + data[1:]):
        with pytest.raises(Malformed):
            load(stage.founding, broken)
    with pytest.raises(Malformed, match="another initial configuration"):
        load(founding(ExecutionPolicy(streams_max=5)), data)


def test_messages_out_of_order_stop_the_node():
    stage = Stage()
    stage.lane()
    message = stage.prefix.messages[0]
    with pytest.raises(AssertionError, match="before its predecessor"):
        stage.execution.apply(message)


def test_verdicts_do_not_depend_on_batching():
    """The same packs in the same order end in the same lanes, offsets and rights, however they were cut."""
    lanes = (1, 2)
    entries = [
        pack(lane, number, stream=stream) for number in (1, 2, 4, 3) for lane, stream in zip(lanes, "xy", strict=True)
    ]
    states = []
    for size in (1, 3, 8):
        stage = Stage()
        assert (stage.lane(0), stage.lane(1)) == lanes
        for at in range(0, len(entries), size):
            stage.write(*entries[at : at + size])
        state = stage.execution.state
        states.append(
            ({lane: state.lanes[lane].last_id for lane in lanes}, {s: t.next_offset for s, t in state.streams.items()})
        )
    assert states[0] == states[1] == states[2] == ({1: 3, 2: 3}, {"x": 3, "y": 3})


def test_executors_with_different_founding_have_different_fingerprints():
    one, two = JournalExecution(founding()), JournalExecution(founding(ExecutionPolicy(lanes_max=7)))
    assert one.fingerprint() != two.fingerprint()


def test_records_contain_every_octet_once_whatever_is_decided_later():
    stage = Stage()
    lane = stage.lane()
    entry, payload = stage.prefix.ingest([pack(lane, 1, (b"x" * 1000,)), pack(lane, 9, (b"y" * 1000,))])
    message = stage.prefix.propose([(entry, payload)])
    records = message_records(log_entry(message))
    assert [(record.kind, record.first_offset) for record in records] == [
        (Kind.META, NO_OFFSET),
        (Kind.BATCH, NO_OFFSET),
    ]
    assert {record.parts for record in records} == {3}
    assert (records[1].origin_node, records[1].origin_journal, records[1].origin_index) == (1, 1, 1)
    assert sum(len(record.body) for record in records) < len(payload) + len(log_entry(message).raw) + 32
    with pytest.raises(Malformed):
        decode_payloads(skeleton_of(records[0]), ())
    with pytest.raises(Malformed):
        decode_payloads(skeleton_of(records[0]), [records[1], records[1]])
    assert not skeleton_of(message_records(log_entry(message), with_payloads=False)[0])


def test_readers_get_only_packs_that_were_applied_with_their_offsets():
    stage = Stage()
    lane = stage.lane()
    entries = [
        pack(lane, 1, (b"a", b"b")),
        pack(lane, 7, (b"gap",)),
        pack(lane, 3, (b"audit",), stream="audit"),
        pack(lane, 4, (b"c",)),
        pack(lane, 5, (b"d",)),
        IngestEntry("orders", b"too small to be a pack"),
    ]
    message = stage.prefix.propose([stage.prefix.ingest(entries), stage.prefix.ingest([pack(lane, 6)])])
    decision = decided(stage.execution, message)
    orders, audit, later = decision.batches
    sizes = [len(entry.raw) for entry in entries]
    second = sizes[0] + sizes[1]
    assert orders == AppliedBatch(1, 0, 4, ((0, sizes[0]), (second, second + sizes[3] + sizes[4])))
    assert (audit, later) == (AppliedBatch(2, 0, 1), AppliedBatch(3, 4, 1))
    records = stored(message, decision)
    assert read_back(records) == message.payloads
    shown = [record for record in join_parts(records) if record.kind == Kind.BATCH]
    assert [(one.stream, one.first_offset, one.count) for one in shown] == [
        ("orders", 0, 4),
        ("audit", 0, 1),
        ("orders", 4, 1),
    ]
    assert bytes(shown[0].body) == b"".join(bytes(entries[number].raw) for number in (0, 3, 4))
    stage.prefix.order([])  # the stage is as before
    assert decode_verdict(records[-1].body) == (decision.batches, decision.verdict)


def test_head_of_verdict_describes_a_single_batch_that_was_applied_whole():
    stage = Stage()
    lane = stage.lane()
    for entries, described in (
        ([pack(lane, 1)], True),
        ([pack(lane, 1), pack(lane, 5)], False),
        ([pack(lane, 9)], False),
    ):
        message = stage.prefix.propose([stage.prefix.ingest(entries)])
        decision = decided(stage.execution, message)
        head = replace(stored(message, decision)[-1], body=b"")
        assert (only_batch(head) is not None) is described
        assert only_batch(head) in (None, *decision.batches)


def test_two_executors_of_one_prefix_have_equal_fingerprints():
    one, two = JournalExecution(founding()), JournalExecution(founding())
    prefix = Prefix(one, two)
    prefix.order([lease()], time_ns=SECOND)
    prefix.write(pack(1, 1), pack(1, 2))
    assert one.fingerprint() == two.fingerprint()
    assert ADMIN.key in one._clients_by_key
