"""Named consumers at execution: who has which slots and messages, and which acknowledgements count."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from chaplain.errors import Malformed
from chaplain.journal.execution import consumers
from chaplain.journal.execution.state import load
from chaplain.journal.messages.conditions import HEADER as CONDITIONS_HEADER
from chaplain.journal.messages.conditions import Condition, NextOffset
from chaplain.journal.messages.conditions import encode as encode_conditions
from chaplain.journal.messages.config import AddIdentity, RemoveIdentity
from chaplain.journal.messages.consumer import (
    CONSUMER,
    HEADER,
    LATEST,
    UNDELIVERED,
    Acknowledge,
    Challenge,
    Command,
    Fetch,
    Finish,
    Join,
    Leave,
    Mode,
    Release,
    Remove,
    Reset,
    Return,
    Touch,
    encode,
    encode_header,
)
from chaplain.journal.messages.signing import SignatureType
from chaplain.journal.messages.write_request import STATEMENTS
from chaplain.journal.model.consumers import Consumer
from chaplain.journal.storage.verdict import Reason
from chaplain.link.auth.identity import Identity
from chaplain.segment.headers import encode_headers
from tests.support.execution_stage import ADMIN, BOB, SECOND, Stage, pack, petition

LEASE_S = 10
NAME = "billing"


class ConsumerStage(Stage):
    """A stage with a lane, and a clock that only the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self._lanes = {ADMIN.key: self.lane(1)}
        self._ids = {ADMIN.key: 1}
        self.now_s = 1000

    def add(self, identity: Identity, reads: tuple[str, ...]) -> bytes:
        """Add an identity with a lane. Returns its ACL id."""
        (added,) = self.config(
            petition(AddIdentity("bob", SignatureType.ED25519, identity.key, ("*",), reads), nonce=identity.key[:16])
        )
        self._lanes[identity.key], self._ids[identity.key] = self.lane(2, identity, added.acl), 1
        return added.acl

    def _write(self, values: Sequence[bytes], *, signer: Identity = ADMIN, **more: object) -> tuple[Reason, int]:
        entry = pack(self._lanes[signer.key], self._ids[signer.key], values, signer=signer, **more)  # type: ignore[arg-type]
        self.now_s += 1
        last_ns = self.prefix.messages[-1].body.timestamp_ns
        (verdict,) = self.write(entry, time_ns=max(self.now_s * SECOND, last_ns + 1))
        if verdict.reason in (Reason.APPLIED, Reason.COMMITTED, Reason.LEASE_LOST):
            self._ids[signer.key] += len(values)
        return verdict.reason, verdict.base_offset

    def messages(self, count: int) -> None:
        assert self._write([b"value"] * count)[0] is Reason.APPLIED

    def tell(self, *commands: Command, signer: Identity = ADMIN, stream: str = "orders") -> int:
        """Execute a pack of commands. Returns how many were refused."""
        reason, refused = self._write(
            [encode(command) for command in commands], signer=signer, stream=stream, message_type=CONSUMER
        )
        assert reason is Reason.COMMITTED
        return refused

    def statements(self, cell: bytes | None, *, signer: Identity = ADMIN) -> Reason:
        return self._write(
            [b"insert", b"update"], signer=signer, stream="main", message_type=STATEMENTS, headers=(cell, None)
        )[0]

    @property
    def consumer(self) -> Consumer:
        return self.execution.state.consumers.consumers["orders", NAME]

    def join(
        self, mode: Mode, slots: int = 0, *, signer: Identity = ADMIN, nonce: bytes = b"n" * 16, **more: object
    ) -> int:
        """Join, and return the token."""
        command = Join(NAME, nonce, mode, slots, LEASE_S * 1000, **more)  # type: ignore[arg-type]
        assert not self.tell(command, signer=signer)
        return self.consumer.workers[-1].token

    def holders(self) -> list[int]:
        return [slot.holder for slot in self.consumer.slots]

    def positions(self) -> list[int]:
        return [slot.position for slot in self.consumer.slots]

    def acknowledge(self, token: int, through: int = 0, *slots: tuple[int, int], epoch: int | None = None) -> int:
        epoch = self.consumer.epoch if epoch is None else epoch
        return self.tell(Acknowledge(NAME, token, epoch, through, slots))

    def spans(self) -> list[tuple[int, int, int, int]]:
        return [(span.first, span.last, span.token, span.deliveries) for span in self.consumer.spans]


@pytest.fixture
def stage() -> ConsumerStage:
    stage = ConsumerStage()
    stage.messages(100)
    return stage


def test_single_worker_holds_the_lease_and_advances_the_position(stage: ConsumerStage) -> None:
    token = stage.join(Mode.SINGLE, 1)
    assert stage.holders() == [token]
    assert stage.acknowledge(token, 30) == 0
    assert stage.positions() == [30]
    assert stage.acknowledge(token, 20) == 0
    assert stage.positions() == [30], "a position does not decrease"
    assert stage.acknowledge(token, 101) == 1, "beyond the head"


def test_standby_takes_over_only_after_an_unanswered_challenge(stage: ConsumerStage) -> None:
    holder, standby = stage.join(Mode.SINGLE, 1), stage.join(Mode.SINGLE, 1)
    stage.now_s += 10 * LEASE_S
    stage.tell(Challenge(NAME, standby, holder))
    assert stage.holders() == [holder], "an idle holder keeps the lease until it is challenged"
    stage.tell(Touch(NAME, holder))
    stage.now_s += 10 * LEASE_S
    stage.tell(Challenge(NAME, standby, holder))
    assert stage.holders() == [holder], "it has answered"
    stage.now_s += LEASE_S // 2
    stage.tell(Challenge(NAME, standby, holder))
    assert stage.holders() == [holder], "its time is not over"
    stage.now_s += LEASE_S
    stage.tell(Challenge(NAME, standby, holder))
    assert stage.holders() == [standby]


def test_removed_worker_cannot_acknowledge(stage: ConsumerStage) -> None:
    paused, successor = stage.join(Mode.SINGLE, 1), stage.join(Mode.SINGLE, 1)
    stage.tell(Challenge(NAME, successor, paused))
    stage.now_s += LEASE_S
    stage.tell(Challenge(NAME, successor, paused))
    assert stage.acknowledge(paused, 50) == 1
    assert stage.tell(Touch(NAME, paused), Leave(NAME, paused)) == 2
    assert stage.positions() == [0]
    assert stage.acknowledge(successor, 10) == 0


def test_standby_cannot_acknowledge(stage: ConsumerStage) -> None:
    stage.join(Mode.SINGLE, 1)
    assert stage.acknowledge(stage.join(Mode.SINGLE, 1), 10) == 1
    assert stage.positions() == [0]


def test_leaving_holder_is_succeeded_at_once(stage: ConsumerStage) -> None:
    holder, standby = stage.join(Mode.SINGLE, 1), stage.join(Mode.SINGLE, 1)
    stage.acknowledge(holder, 7)
    stage.tell(Leave(NAME, holder))
    assert (stage.holders(), stage.positions()) == ([standby], [7])


def test_slots_are_divided_evenly_with_few_moves(stage: ConsumerStage) -> None:
    first = stage.join(Mode.KEYED, 8)
    second = stage.join(Mode.KEYED, 8)
    assert stage.holders() == [first] * 8, "slots move when they are released"
    targets = [slot.target for slot in stage.consumer.slots]
    assert sorted(targets) == [first] * 4 + [second] * 4
    given = tuple(number for number, target in enumerate(targets) if target == second)
    stage.tell(Release(NAME, first, given))
    assert stage.holders() == targets
    third = stage.join(Mode.KEYED, 8)
    after = [slot.target for slot in stage.consumer.slots]
    assert sorted(map(after.count, (first, second, third))) == [2, 3, 3]
    assert all(new in (old, third) for old, new in zip(targets, after, strict=True)), "no move between old workers"


def test_slot_that_is_not_released_moves_after_the_lease(stage: ConsumerStage) -> None:
    first = stage.join(Mode.KEYED, 4)
    second = stage.join(Mode.KEYED, 4)
    stage.tell(Touch(NAME, second))
    assert stage.holders() == [first] * 4
    stage.now_s += LEASE_S
    stage.tell(Touch(NAME, second))
    assert sorted(stage.holders()) == [first] * 2 + [second] * 2


def test_release_moves_only_slots_that_are_meant_for_others(stage: ConsumerStage) -> None:
    first = stage.join(Mode.KEYED, 4)
    second = stage.join(Mode.KEYED, 4)
    stage.tell(Release(NAME, first, (0, 1, 2, 3)))
    assert sorted(stage.holders()) == [first] * 2 + [second] * 2
    stage.tell(Release(NAME, second, tuple(number for number in range(4) if stage.holders()[number] == first)))
    assert sorted(stage.holders()) == [first] * 2 + [second] * 2, "nobody releases the slots of another worker"


def test_acknowledgement_does_not_cover_slots_that_its_worker_does_not_know(stage: ConsumerStage) -> None:
    first = stage.join(Mode.KEYED, 4)
    second = stage.join(Mode.KEYED, 4)
    stage.acknowledge(first, 10)
    known = stage.consumer.epoch
    stage.tell(Leave(NAME, first))
    assert stage.holders() == [second] * 4
    assert stage.acknowledge(second, 90, epoch=known) == 1
    assert stage.positions() == [10] * 4
    assert stage.acknowledge(second, 0, (2, 50), epoch=known) == 1
    assert stage.acknowledge(second, 20, (2, 50)) == 0
    assert stage.positions() == [20, 20, 50, 20]


def test_acknowledgement_of_a_slot_of_another_worker_changes_nothing(stage: ConsumerStage) -> None:
    first = stage.join(Mode.KEYED, 2)
    second = stage.join(Mode.KEYED, 2)
    stage.tell(Release(NAME, first, (0, 1)))
    theirs, mine = stage.holders().index(second), stage.holders().index(first)
    pairs = tuple(sorted({mine: 30, theirs: 40}.items()))
    assert stage.acknowledge(first, 20, *pairs) == 1
    assert stage.positions() == [0, 0]


def test_queue_leases_each_message_to_one_worker(stage: ConsumerStage) -> None:
    first, second = stage.join(Mode.QUEUE), stage.join(Mode.QUEUE)
    stage.tell(Fetch(NAME, first, 10))
    stage.tell(Fetch(NAME, second, 200))
    assert stage.spans() == [(0, 9, first, 1), (10, 99, second, 1)]
    assert stage.tell(Finish(NAME, first, ((0, 3),)), Finish(NAME, second, ((5, 5),))) == 1
    assert stage.spans() == [(4, 9, first, 1), (10, 99, second, 1)]
    stage.tell(Finish(NAME, first, ((5, 6), (9, 9))))
    assert stage.spans() == [(4, 4, first, 1), (7, 8, first, 1), (10, 99, second, 1)]
    assert stage.consumer.position == 4


def test_acknowledgement_of_a_queue_counts_entirely_or_not_at_all(stage: ConsumerStage) -> None:
    token = stage.join(Mode.QUEUE)
    stage.tell(Fetch(NAME, token, 10))
    assert stage.tell(Finish(NAME, token, ((0, 3), (8, 12)))) == 1
    assert stage.spans() == [(0, 9, token, 1)]


def test_message_is_delivered_again_after_its_lease(stage: ConsumerStage) -> None:
    slow, other = stage.join(Mode.QUEUE), stage.join(Mode.QUEUE)
    stage.tell(Fetch(NAME, slow, 100))
    stage.tell(Fetch(NAME, other, 5))
    assert stage.spans() == [(0, 99, slow, 1)]
    stage.now_s += LEASE_S
    stage.tell(Fetch(NAME, other, 5))
    assert stage.spans() == [(0, 4, other, 2), (5, 99, slow, 1)]
    assert stage.tell(Finish(NAME, slow, ((0, 4),))) == 1, "its lease is over, and another worker has them"
    assert stage.tell(Finish(NAME, slow, ((5, 9),))) == 0, "nobody else has them"


def test_touch_extends_the_leases_of_a_queue(stage: ConsumerStage) -> None:
    busy, other = stage.join(Mode.QUEUE), stage.join(Mode.QUEUE)
    stage.tell(Fetch(NAME, busy, 100))
    stage.now_s += LEASE_S - 2
    stage.tell(Touch(NAME, busy))
    stage.now_s += LEASE_S - 3
    stage.tell(Fetch(NAME, other, 5))
    assert stage.spans() == [(0, 99, busy, 1)]


def test_returned_message_waits_for_its_delay(stage: ConsumerStage) -> None:
    token = stage.join(Mode.QUEUE)
    stage.tell(Fetch(NAME, token, 100))
    stage.tell(Return(NAME, token, 5000, 0, ((3, 4),)), Return(NAME, token, 0, UNDELIVERED, ((50, 99),)))
    stage.tell(Fetch(NAME, token, 2))
    assert stage.spans() == [(0, 2, token, 1), (3, 4, 0, 1), (5, 49, token, 1), (50, 51, token, 1), (52, 99, 0, 0)]
    stage.now_s += 5
    stage.tell(Fetch(NAME, token, 3))
    assert stage.spans()[1:2] == [(3, 4, token, 2)]
    assert stage.spans()[4:] == [(52, 52, token, 1), (53, 99, 0, 0)]


def test_dead_messages_without_a_stream_for_them_are_dropped(stage: ConsumerStage) -> None:
    token = stage.join(Mode.QUEUE, max_deliveries=1)
    stage.tell(Fetch(NAME, token, 2), Return(NAME, token, 0, 0, ((0, 0),)), Fetch(NAME, token, 1))
    assert (stage.spans(), stage.consumer.dropped) == ([(1, 1, token, 1), (2, 2, token, 1)], 1)


def test_dead_messages_are_delivered_for_the_dead_letter_stream(stage: ConsumerStage) -> None:
    token = stage.join(Mode.QUEUE, max_deliveries=1, dead_letter="dead")
    stage.tell(Fetch(NAME, token, 1), Return(NAME, token, 0, 0, ((0, 0),)), Fetch(NAME, token, 1))
    assert (stage.spans(), stage.consumer.dropped) == ([(0, 0, token, 2)], 0)


def test_messages_of_a_worker_that_left_wait_for_delivery(stage: ConsumerStage) -> None:
    first, second = stage.join(Mode.QUEUE), stage.join(Mode.QUEUE)
    stage.tell(Fetch(NAME, first, 5), Leave(NAME, first), Fetch(NAME, second, 5))
    assert stage.spans() == [(0, 4, second, 2)]


def test_start_chooses_the_first_message_of_a_new_consumer_only(stage: ConsumerStage) -> None:
    stage.join(Mode.SINGLE, 1, start=LATEST)
    assert stage.positions() == [100]
    stage.join(Mode.SINGLE, 1, start=5)
    assert stage.positions() == [100]


def test_join_with_another_mode_is_refused(stage: ConsumerStage) -> None:
    stage.join(Mode.KEYED, 8)
    assert stage.tell(Join(NAME, b"n" * 16, Mode.KEYED, 4, 1000), Join(NAME, b"n" * 16, Mode.QUEUE, 0, 1000)) == 2


def test_reset_moves_the_position_and_removes_the_workers(stage: ConsumerStage) -> None:
    token = stage.join(Mode.SINGLE, 1)
    stage.acknowledge(token, 50)
    assert stage.tell(Reset(NAME, 20)) == 0
    assert stage.positions() == [20]
    assert stage.acknowledge(token, 60) == 1
    stage.tell(Reset(NAME, LATEST))
    assert stage.positions() == [100]


def test_tokens_are_never_reused(stage: ConsumerStage) -> None:
    token = stage.join(Mode.SINGLE, 1)
    stage.tell(Remove(NAME))
    assert stage.join(Mode.SINGLE, 1) > token
    assert stage.acknowledge(token, 60) == 1


def test_only_readers_of_the_stream_may_command(stage: ConsumerStage) -> None:
    stage.add(BOB, ("other",))
    command = encode(Join(NAME, b"n" * 16, Mode.SINGLE, 1, 1000))
    assert stage._write([command], signer=BOB, message_type=CONSUMER)[0] is Reason.NO_RIGHT
    assert ("orders", NAME) not in stage.execution.state.consumers.consumers


def test_only_the_owner_or_an_admin_may_reset_and_remove(stage: ConsumerStage) -> None:
    stage.join(Mode.SINGLE, 1)
    stage.add(BOB, ("*",))
    assert stage.tell(Reset(NAME, 20), Remove(NAME), signer=BOB) == 2
    assert stage.tell(Remove(NAME)) == 0


def test_token_belongs_to_the_identity_that_joined(stage: ConsumerStage) -> None:
    token = stage.join(Mode.SINGLE, 1)
    stage.add(BOB, ("*",))
    epoch = stage.consumer.epoch
    assert stage.tell(Acknowledge(NAME, token, epoch, 5), Leave(NAME, token), signer=BOB) == 2


def test_statements_are_executed_only_with_their_acknowledgement(stage: ConsumerStage) -> None:
    token = stage.join(Mode.SINGLE, 1)

    def statements(offset: int) -> Reason:
        command = Acknowledge(NAME, token, stage.consumer.epoch, offset)
        return stage.statements(encode_headers({HEADER: encode_header("orders", command)}))

    assert statements(5) is Reason.APPLIED
    assert (stage.positions(), stage.execution.state.streams["main"].next_offset) == ([5], 2)
    stage.tell(Leave(NAME, token))
    assert statements(9) is Reason.LEASE_LOST
    assert stage.execution.state.streams["main"].next_offset == 2
    assert stage.statements(encode_headers({HEADER: b"?"})) is Reason.BAD_COMMAND
    assert stage.statements(encode_headers({"trace": b"7"})) is Reason.APPLIED
    assert stage.statements(None) is Reason.APPLIED


def test_message_is_written_only_with_its_acknowledgement(stage: ConsumerStage) -> None:
    token = stage.join(Mode.SINGLE, 1)

    def write(offset: int, *conditions: Condition) -> Reason:
        command = Acknowledge(NAME, token, stage.consumer.epoch, offset)
        headers = {CONDITIONS_HEADER: encode_conditions(conditions), HEADER: encode_header("orders", command)}
        return stage._write([b"copy"], stream="copies", conditional=True, headers=(encode_headers(headers),))[0]

    assert write(5) is Reason.APPLIED
    assert write(7, NextOffset(1)) is Reason.APPLIED
    stage._ids[ADMIN.key] += write(9, NextOffset(1)) is Reason.CONFLICT
    assert stage.positions() == [7], "a conflict acknowledges nothing"
    stage.tell(Leave(NAME, token))
    assert write(9) is Reason.LEASE_LOST
    assert stage.execution.state.streams["copies"].next_offset == 2


def test_lost_lease_uses_up_the_id_so_that_a_copy_is_not_executed_later(stage: ConsumerStage) -> None:
    token = stage.join(Mode.QUEUE)
    cell = encode_headers({HEADER: encode_header("orders", Finish(NAME, token, ((0, 0),)))})
    first_id = stage._ids[ADMIN.key]
    assert stage.statements(cell) is Reason.LEASE_LOST
    assert stage.tell(Fetch(NAME, token, 1)) == 0
    stage._ids[ADMIN.key] = first_id
    assert stage.statements(cell) is Reason.DUPLICATE
    assert "main" not in stage.execution.state.streams


def test_statements_cannot_acknowledge_without_the_right_to_read(stage: ConsumerStage) -> None:
    acl = stage.add(BOB, ("orders",))
    token = stage.join(Mode.SINGLE, 1, signer=BOB)
    command = Acknowledge(NAME, token, stage.consumer.epoch, 5)
    cell = encode_headers({HEADER: encode_header("audit", command)})
    assert stage.statements(cell, signer=BOB) is Reason.NO_RIGHT
    stage.config(petition(RemoveIdentity(acl)))


def test_pack_with_a_malformed_command_executes_nothing(stage: ConsumerStage) -> None:
    entry = [encode(Join(NAME, b"n" * 16, Mode.SINGLE, 1, 1000)), b"?"]
    assert stage._write(entry, message_type=CONSUMER)[0] is Reason.BAD_COMMAND
    assert not stage.execution.state.consumers.consumers


def test_consumers_are_part_of_snapshot_and_fingerprint(stage: ConsumerStage) -> None:
    before = stage.execution.fingerprint()
    token = stage.join(Mode.QUEUE)
    stage.tell(Fetch(NAME, token, 7))
    state = stage.execution.state
    restored = load(stage.founding, state.export())
    assert restored.fingerprint() == state.fingerprint() != before
    assert restored.consumers.consumers == state.consumers.consumers
    fingerprint = state.fingerprint()
    state.consumers.put(stage.consumer.key, msgspec.structs.replace(stage.consumer, next_offset=8))
    changed = state.fingerprint()
    state.consumers.next_token += 1
    assert len({fingerprint, changed, state.fingerprint()}) == 3


def test_bounds_of_consumers_and_workers(stage: ConsumerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "CONSUMERS_IDENTITY_MAX", 2)
    monkeypatch.setattr(consumers, "WORKERS_MAX", 2)
    joins = [Join(f"c{number}", b"n" * 16, Mode.SINGLE, 1, 1000) for number in range(3)]
    assert stage.tell(*joins) == 1
    first = joins[0]
    assert stage.tell(first, first) == 1
    stage.now_s += consumers.WORKER_SPARE_NS // SECOND + 1
    assert stage.tell(first) == 0
    assert len(stage.execution.state.consumers.consumers["orders", "c0"].workers) == 2


def test_spans_of_a_queue_are_bounded(stage: ConsumerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "SPANS_MAX", 5)
    monkeypatch.setattr(consumers, "SPANS_FETCH_MAX", 3)
    token = stage.join(Mode.QUEUE)
    stage.tell(Fetch(NAME, token, 10))
    for offset in (1, 3, 5, 7):
        assert stage.tell(Finish(NAME, token, ((offset, offset),))) == 0
    assert stage.tell(Finish(NAME, token, ((9, 9),)), Finish(NAME, token, ((8, 8),))) == 0
    assert stage.tell(Fetch(NAME, token, 10)) == 0
    assert len(stage.spans()) == 4, "nothing new is leased"


def test_commands_that_contradict_themselves_are_malformed() -> None:
    with pytest.raises(Malformed):
        encode(Touch("", 1))
