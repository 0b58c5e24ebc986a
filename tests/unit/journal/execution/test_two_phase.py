"""Two phases at execution: what is staged has no place, what is committed gets one, once, in order, on every node."""

from __future__ import annotations

import pytest

from chaplain.errors import Malformed
from chaplain.journal.clients.receipts import LaneSubscriptions
from chaplain.journal.execution import two_phase
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.execution.two_phase import COMMIT, DISCARD, STAGED, STAGED_NS, TRANSACTIONS, Commit, RequestRange
from chaplain.journal.messages.client import AlreadyWritten, Receipts
from chaplain.journal.messages.config import AddIdentity, ReleaseLane, RemoveIdentity
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.signing import SignatureType
from chaplain.journal.storage.pack_lookup import PackLookup
from chaplain.journal.storage.verdict import Reason
from chaplain.segment.layout import NO_OFFSET
from tests.support.execution_stage import ADMIN, ADMIN_ACL, BOB, SECOND, Stage, pack, petition, stored

JOB = "job-7"


def staged(lane: int, first_id: int, values: list[bytes], **more) -> IngestEntry:
    return pack(lane, first_id, values, message_type=STAGED, **more)


def commit(lane: int, first_id: int, version: int, *spans: tuple[int, int, int], app: str = JOB, **more) -> IngestEntry:
    value = two_phase.encode(Commit(app, version, tuple(RequestRange(*span) for span in spans)))
    return pack(lane, first_id, [value], stream=TRANSACTIONS, message_type=COMMIT, **more)


def discard(lane: int, first_id: int, *spans: tuple[int, int, int], **more) -> IngestEntry:
    value = two_phase.encode(Commit("", 0, tuple(RequestRange(*span) for span in spans)))
    return pack(lane, first_id, [value], stream=TRANSACTIONS, message_type=DISCARD, **more)


def heads(stage: Stage) -> dict[str, int]:
    return {name: tail.next_offset for name, tail in stage.execution.state.streams.items()}


def one(stage: Stage, entry: IngestEntry, **more) -> tuple[Reason, int]:
    (verdict,) = stage.write(entry, **more)
    return verdict.reason, verdict.base_offset


def test_staged_batch_receives_offsets_once_after_its_commit():
    stage = Stage()
    left, right, driver = stage.lane(1), stage.lane(2), stage.lane(3)
    a, b, c = staged(left, 1, [b"a0", b"a1"]), staged(left, 3, [b"b"]), staged(right, 1, [b"c"], stream="audit")
    assert [one(stage, entry)[0] for entry in (a, b, c)] == [Reason.STAGED] * 3
    assert heads(stage) == {}
    assert one(stage, a)[0] is Reason.DUPLICATE
    assert one(stage, commit(driver, 1, 0, (right, 1, 1), (left, 1, 3))) == (Reason.COMMITTED, 3)
    assert one(stage, a)[0] is Reason.DUPLICATE, "another one's turn"
    assert heads(stage) == {}
    stage.config(petition(ReleaseLane(left)), petition(ReleaseLane(right)))
    assert [one(stage, entry) for entry in (c, a, b)] == [(Reason.APPLIED, 0), (Reason.APPLIED, 0), (Reason.APPLIED, 2)]
    assert heads(stage) == {"audit": 1, "orders": 3}
    assert one(stage, a)[0] is Reason.UNKNOWN_LANE
    holding = stage.execution.state.staged_packs
    assert (holding.replayed, holding.committed_total, len(holding.staged)) == (3, 3, 0)


def test_version_of_an_app_is_committed_once():
    stage = Stage()
    lane = stage.lane()
    assert one(stage, staged(lane, 1, [b"a"]))[0] is Reason.STAGED
    assert one(stage, commit(lane, 2, 5, (lane, 1, 1))) == (Reason.COMMITTED, 1)
    assert one(stage, staged(lane, 3, [b"again"]))[0] is Reason.STAGED
    assert one(stage, commit(lane, 4, 4, (lane, 9, 9))) == (Reason.COMMITTED, 1), "the ticket of the first"
    assert len(stage.execution.state.staged_packs.staged) == 1
    assert one(stage, commit(lane, 5, 5, (lane, 3, 3))) == (Reason.COMMITTED, 1)
    assert stage.execution.state.staged_packs.committed_total == 1
    assert not stage.execution.state.staged_packs.staged, "the repetition takes no place until it expires"
    assert one(stage, staged(lane, 6, [b"new"]))[0] is Reason.STAGED
    assert one(stage, commit(lane, 7, 0, (lane, 6, 6), app="other")) == (Reason.COMMITTED, 2)


def test_commit_without_an_app_is_not_remembered():
    stage = Stage()
    lane = stage.lane()
    stage.write(staged(lane, 1, [b"a"]), staged(lane, 2, [b"b"]))
    assert one(stage, commit(lane, 3, 0, (lane, 1, 1), app="")) == (Reason.COMMITTED, 1)
    assert one(stage, commit(lane, 4, 0, (lane, 2, 2), app="")) == (Reason.COMMITTED, 2)
    assert not stage.execution.state.staged_packs.transactions


@pytest.mark.parametrize(
    "spans",
    [((9, 1, 1),), ((1, 1, 1),), ((1, 2, 2),), ((1, 1, 3),), ((1, 1, 2), (1, 1, 2)), ((1, 4, 4),)],
    ids=["no such lane", "half a pack", "its other half", "more than is there", "twice", "not staged but written"],
)
def test_commit_of_a_partly_staged_batch_is_refused(spans):
    stage = Stage()
    lane = stage.lane()
    assert lane == 1
    stage.write(staged(lane, 1, [b"a", b"b"]), pack(lane, 3), pack(lane, 4))
    assert one(stage, commit(lane, 5, 0, *spans))[0] is Reason.NOT_STAGED
    assert not stage.execution.state.staged_packs.committed
    assert one(stage, commit(lane, 5, 0, (lane, 1, 2)))[0] is Reason.COMMITTED


def test_client_cannot_commit_packs_staged_by_another():
    stage = Stage()
    rights = (("*",), ("*",))
    (added,) = stage.config(petition(AddIdentity("bob", SignatureType.ED25519, BOB.key, *rights)))
    mine, his = stage.lane(), stage.lane(1, BOB, added.acl)
    stage.write(staged(mine, 1, [b"a"]))
    assert one(stage, commit(his, 1, 0, (mine, 1, 1), signer=BOB))[0] is Reason.NOT_STAGED
    assert one(stage, commit(mine, 2, 0, (mine, 1, 1)))[0] is Reason.COMMITTED
    assert {key[0] for key in stage.execution.state.staged_packs.transactions} == {ADMIN_ACL}


def test_committed_pack_is_written_even_if_its_writer_is_removed():
    stage = Stage()
    (added,) = stage.config(petition(AddIdentity("bob", SignatureType.ED25519, BOB.key, ("*",), ())))
    lane = stage.lane(1, BOB, added.acl)
    entry = staged(lane, 1, [b"a"], signer=BOB)
    stage.write(entry, commit(lane, 2, 0, (lane, 1, 1), signer=BOB))
    stage.config(petition(RemoveIdentity(added.acl)))
    assert one(stage, entry) == (Reason.APPLIED, 0)


def test_committed_pack_with_changed_octets_gets_no_offsets():
    """The copy that a node brings has the same head, stated digest and signature as the staged pack."""
    stage = Stage()
    lane, driver = stage.lane(1), stage.lane(2)
    true = staged(lane, 1, [b"pay bob 1"])
    assert one(stage, true)[0] is Reason.STAGED
    assert one(stage, commit(driver, 1, 0, (lane, 1, 1)))[0] is Reason.COMMITTED
    raw = bytes(true.raw)
    assert raw.count(b"pay bob 1") == 1
    forged = IngestEntry(true.stream, raw.replace(b"pay bob 1", b"pay eve 9"))
    assert one(stage, forged) == (Reason.SIGNATURE, NO_OFFSET)
    other_signer = staged(lane, 1, [b"pay bob 1"], signer=BOB)
    assert one(stage, other_signer) == (Reason.SIGNATURE, NO_OFFSET)
    assert not stage.executed[-1].batches
    assert heads(stage) == {}
    assert one(stage, true) == (Reason.APPLIED, 0)


def test_commit_stream_accepts_only_commits():
    stage = Stage()
    lane = stage.lane()
    value = two_phase.encode(Commit(JOB, 0, (RequestRange(lane, 1, 1),)))
    assert one(stage, pack(lane, 1, [value], message_type=COMMIT))[0] is Reason.NO_RIGHT
    assert one(stage, pack(lane, 1, [b"x"], stream=TRANSACTIONS))[0] is Reason.NO_RIGHT
    assert one(stage, staged(lane, 1, [b"x"], stream=TRANSACTIONS))[0] is Reason.NO_RIGHT
    assert one(stage, pack(lane, 1, [value], message_type=DISCARD))[0] is Reason.NO_RIGHT
    for message_type in (COMMIT, DISCARD):
        nonsense = pack(lane, 1, [b"?"], stream=TRANSACTIONS, message_type=message_type)
        assert one(stage, nonsense)[0] is Reason.NOT_STAGED


def test_uncommitted_packs_expire():
    stage = Stage()
    lane = stage.lane()
    stage.write(staged(lane, 1, [b"a"]), time_ns=10 * SECOND)
    stage.write(staged(lane, 2, [b"b"]), time_ns=20 * SECOND)
    late_ns = 10 * SECOND + STAGED_NS
    assert one(stage, pack(lane, 3), time_ns=late_ns)[0] is Reason.APPLIED
    assert len(stage.execution.state.staged_packs.staged) == 2
    assert one(stage, commit(lane, 4, 0, (lane, 1, 2)), time_ns=late_ns + 1)[0] is Reason.NOT_STAGED
    assert list(stage.execution.state.staged_packs.staged) == [(lane, 2)]


def test_staged_packs_and_transactions_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(two_phase, "STAGED_MAX", 2)
    monkeypatch.setattr(two_phase, "TRANSACTIONS_MAX", 1)
    stage = Stage()
    lane = stage.lane()
    packs = [staged(lane, number, [b"a"]) for number in (1, 2, 3)]
    assert [verdict.reason for verdict in stage.write(*packs)] == [Reason.STAGED, Reason.STAGED, Reason.STAGED_FULL]
    assert one(stage, commit(lane, 3, 0, (lane, 1, 1)))[0] is Reason.COMMITTED
    second = commit(lane, 4, 0, (lane, 2, 2), app="b")
    assert one(stage, second)[0] is Reason.TRANSACTIONS_FULL
    monkeypatch.setattr(two_phase, "TRANSACTION_SPARE_NS", -SECOND)
    assert one(stage, second)[0] is Reason.COMMITTED
    assert [app for _, app in stage.execution.state.staged_packs.transactions] == ["b"]


def test_discarded_packs_free_their_places_and_cannot_be_committed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(two_phase, "STAGED_MAX", 2)
    stage = Stage()
    lane, driver = stage.lane(1), stage.lane(2)
    stage.write(staged(lane, 1, [b"a", b"b"]), staged(lane, 3, [b"c"]))
    assert one(stage, staged(lane, 4, [b"d"]))[0] is Reason.STAGED_FULL
    gone, half = (lane, 7, 9), (lane, 1, 1)
    assert one(stage, discard(driver, 1, gone, half, (lane, 2, 2)))[0] is Reason.COMMITTED
    assert len(stage.execution.state.staged_packs.staged) == 2, "only whole packs that are there"
    spans = (lane, 1, 2), (lane, 1, 2), (lane, 3, 9)
    assert one(stage, discard(driver, 2, *spans)) == (Reason.COMMITTED, 0)
    assert not stage.execution.state.staged_packs.staged
    assert one(stage, commit(driver, 3, 0, (lane, 1, 3)))[0] is Reason.NOT_STAGED
    assert stage.write(staged(lane, 4, [b"d"]), staged(lane, 5, [b"e"]))[1].reason is Reason.STAGED


def test_committed_packs_are_not_discarded():
    stage = Stage()
    lane = stage.lane()
    entry = staged(lane, 1, [b"a"])
    stage.write(entry, commit(lane, 2, 0, (lane, 1, 1)), discard(lane, 3, (lane, 1, 1)))
    assert one(stage, entry) == (Reason.APPLIED, 0)


def test_one_identity_neither_fills_the_places_of_others_nor_discards_their_packs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(two_phase, "STAGED_MAX", 4)
    monkeypatch.setattr(two_phase, "STAGED_IDENTITY_MAX", 2)
    stage = Stage()
    (added,) = stage.config(petition(AddIdentity("bob", SignatureType.ED25519, BOB.key, ("*",), ("*",))))
    mine, his = stage.lane(), stage.lane(1, BOB, added.acl)
    reasons = [one(stage, staged(mine, number, [b"a"], signer=ADMIN))[0] for number in (1, 2, 3)]
    assert reasons == [Reason.STAGED, Reason.STAGED, Reason.STAGED_FULL]
    assert one(stage, staged(his, 1, [b"b"], signer=BOB))[0] is Reason.STAGED
    assert one(stage, discard(his, 2, (mine, 1, 2), signer=BOB))[0] is Reason.COMMITTED
    copy = JournalExecution(stage.founding, snapshot=stage.execution.state.export())
    stage.prefix.executors.append(copy)
    assert one(stage, staged(mine, 3, [b"a"]))[0] is Reason.STAGED_FULL
    assert one(stage, discard(mine, 3, (mine, 1, 2)))[0] is Reason.COMMITTED
    assert one(stage, staged(mine, 4, [b"a"]))[0] is Reason.STAGED
    assert copy.fingerprint() == stage.execution.fingerprint()


def test_snapshot_with_staged_packs_continues_identically():
    stage = Stage()
    lane = stage.lane()
    first, second = staged(lane, 1, [b"a"]), staged(lane, 2, [b"b"])
    stage.write(first, second, staged(lane, 3, [b"c"]))
    stage.write(commit(lane, 4, 7, (lane, 1, 2)))
    stage.write(first)
    copy = JournalExecution(stage.founding, snapshot=stage.execution.state.export())
    stage.prefix.executors.append(copy)
    stage.write(second, commit(lane, 5, 7, (lane, 3, 3)), commit(lane, 6, 8, (lane, 3, 3)))
    assert copy.fingerprint() == stage.execution.fingerprint()
    assert heads(stage) == {"orders": 2}


def test_staged_pack_is_found_in_the_log():
    stage = Stage()
    lane = stage.lane()
    entries = [pack(lane, 1), staged(lane, 2, [b"a"]), staged(lane, 3, [b"b"], stream="audit")]
    replay = JournalExecution(stage.founding)
    stage.write(*entries)
    for settled in stage.prefix.messages[:-1]:
        replay.apply(settled)
    last = stage.prefix.messages[-1]
    excerpt = PackLookup(stored(last, replay.apply(last)))
    for found in stage.execution.state.staged_packs.staged.values():
        assert excerpt.pack(found.index, found.entry, found.pack) in [entry.raw for entry in entries[1:]]
    with pytest.raises(Malformed, match="has no pack 3"):
        excerpt.pack(last.body.index, 0, 3)
    with pytest.raises(Malformed, match="not in the log"):
        excerpt.pack(99, 0, 0)


def test_answers_report_staging_and_the_state_of_the_commit():
    stage = Stage()
    lane = stage.lane()
    attendance = LaneSubscriptions()
    attendance.subscribe(b"me", lane)
    stage.write(pack(lane, 1), staged(lane, 2, [b"a", b"b"]))
    stage.write(staged(lane, 2, [b"a", b"b"]), commit(lane, 4, 0, (lane, 2, 3)))
    first, second = ([answer for _, answer in attendance.answers(one)] for one in stage.executed[-2:])
    assert [type(answer) for answer in first] == [Receipts, AlreadyWritten]
    assert first[1] == AlreadyWritten(lane, 3)
    again, run = second
    assert again == AlreadyWritten(lane, 3)
    assert isinstance(run, Receipts)
    assert [(one.first_id, one.stream, one.base_offset) for one in run.runs] == [(4, TRANSACTIONS, 1)]


def test_commit_messages_round_trip_or_are_malformed():
    commit_ = Commit(JOB, 3, (RequestRange(1, 2, 3), RequestRange(4, 5, 5)))
    data = two_phase.encode(commit_)
    assert two_phase.decode(data) == commit_
    for broken in (data[:-1], data + b"\0", b"\2" + data[1:], data[:15] + bytes(4)):
        with pytest.raises(Malformed):
            two_phase.decode(broken)
