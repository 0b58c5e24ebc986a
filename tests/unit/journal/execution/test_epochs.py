"""A signed configuration request is applied at most once, whoever brings a copy of it and however late."""

from __future__ import annotations

import pytest

from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.cluster import ConfigEntry
from chaplain.journal.messages.config import (
    EPOCH_BYTES,
    AddIdentity,
    FenceLane,
    LeaseLane,
    MakeCheckpoint,
    ReleaseLane,
    RemoveIdentity,
    RetireLane,
)
from chaplain.journal.messages.membership import AddNode, EntryType, NewSet, RemoveNode, StageStep, encode_step
from chaplain.journal.messages.membership import Stage as St
from chaplain.journal.model.bootstrap import ExecutionPolicy
from chaplain.journal.model.epochs import EpochBounds, token_of
from chaplain.journal.model.reason import Reason
from chaplain.journal.model.results import ConfigVerdict
from tests.support.execution_stage import ADMIN_ACL, BOB, FIRST_EPOCH, Stage, founding, lease, pack, petition

KEPT, MESSAGES, REQUESTS = 3, 10, 4
SHORT = ExecutionPolicy(epochs=EpochBounds(KEPT, MESSAGES, REQUESTS))


def decide(stage: Stage, entry: ConfigEntry) -> ConfigVerdict:
    (verdict,) = stage.config(entry)
    return verdict


def epoch(stage: Stage) -> bytes:
    """The token with which clients sign now."""
    return stage.execution.state.epochs.token


def pass_messages(stage: Stage, count: int) -> None:
    for _ in range(count):
        stage.prefix.order([])


def finish(stage: Stage, *stages: St) -> None:
    """Take the open change through these stages, as a master does."""
    (change,) = (one for one in stage.execution.cluster_config.changes if one.open)
    for one in stages:
        step = encode_step(StageStep(EntryType(change.entry_type), one, change.nodes, change.id))
        assert decide(stage, ConfigEntry(change.entry_type, one, step)).reason is Reason.APPLIED


def replace_serializers(stage: Stage, entry: ConfigEntry) -> None:
    assert decide(stage, entry).reason is Reason.APPLIED
    finish(stage, St.IMPLEMENT, St.CONFIRM)


def give_and_take_a_role(stage: Stage, number: int) -> None:
    remove, add = EntryType.REMOVE_EXECUTOR_NODE, EntryType.ADD_EXECUTOR_NODE
    nonces = [b"%15dr" % number, b"%15da" % number]
    token = epoch(stage)
    assert decide(stage, petition(RemoveNode(remove, 3), nonce=nonces[0], epoch=token)).reason is Reason.APPLIED
    assert decide(stage, petition(AddNode(add, 3), nonce=nonces[1], epoch=token)).reason is Reason.APPLIED
    finish(stage, St.LIVE)


def test_replayed_serializer_set_changes_nothing_after_many_other_changes() -> None:
    stage = Stage()
    old = petition(NewSet((1, 2)), nonce=b"the old one     ")
    replace_serializers(stage, old)
    replace_serializers(stage, petition(NewSet((1, 2, 3)), nonce=b"back again      "))
    for number in range(40):
        give_and_take_a_role(stage, number)
    decide(stage, old)
    assert not [change for change in stage.execution.cluster_config.changes if change.open]
    assert stage.execution.cluster_config.serializers == (1, 2, 3)


def test_replayed_request_is_expired_once_its_epoch_is_not_kept() -> None:
    stage = Stage(SHORT)
    old = petition(NewSet((1, 2)), nonce=b"the old one     ")
    replace_serializers(stage, old)
    replace_serializers(stage, petition(NewSet((1, 2, 3)), nonce=b"back again      "))
    for number in range(40):
        give_and_take_a_role(stage, number)
    assert decide(stage, old).reason is Reason.EXPIRED
    assert stage.execution.cluster_config.serializers == (1, 2, 3)


def test_replayed_request_is_remembered_as_long_as_its_epoch_is_kept() -> None:
    stage = Stage(SHORT)
    old = lease()
    assert decide(stage, old).client_id == 1
    assert decide(stage, petition(ReleaseLane(1))).reason is Reason.APPLIED
    pass_messages(stage, KEPT * MESSAGES - stage.execution.applied_index - 1)
    assert decide(stage, old).reason is Reason.UNKNOWN_LANE
    assert decide(stage, old).reason is Reason.EXPIRED


def test_request_is_accepted_while_its_epoch_is_kept_and_expired_afterwards() -> None:
    for passed, reason in ((KEPT * MESSAGES - 1, Reason.APPLIED), (KEPT * MESSAGES, Reason.EXPIRED)):
        stage = Stage(SHORT)
        pass_messages(stage, passed)
        assert decide(stage, lease()).reason is reason


def test_epoch_ends_early_when_many_requests_are_decided() -> None:
    stage = Stage(SHORT)
    for number in range(KEPT * REQUESTS):
        assert decide(stage, lease(nonce=b"%16d" % number)).reason is Reason.APPLIED
    assert decide(stage, lease(nonce=b"one more        ")).reason is Reason.EXPIRED
    assert len(stage.execution.state.epochs.decisions) <= KEPT * REQUESTS


def test_remembered_decisions_are_bounded_whatever_the_number_of_requests() -> None:
    stage = Stage(SHORT)
    for number in range(100):
        token = epoch(stage)
        stage.config(petition(FenceLane(number + 7), nonce=b"%16d" % number, epoch=token))
        assert len(stage.execution.state.epochs.decisions) <= KEPT * REQUESTS
        assert len(stage.execution.state.epochs.kept) <= KEPT


@pytest.mark.parametrize("token", [bytes(EPOCH_BYTES), b"\xff" * EPOCH_BYTES])
def test_request_that_names_no_epoch_is_refused(token: bytes) -> None:
    stage = Stage()
    assert decide(stage, petition(LeaseLane(ADMIN_ACL), epoch=token)).reason is Reason.EXPIRED


def test_epoch_token_cannot_be_known_before_its_first_message() -> None:
    """Its token is the hash of that message."""
    stage = Stage(SHORT)
    pass_messages(stage, MESSAGES)
    assert epoch(stage) == token_of(stage.prefix.messages[MESSAGES - 1].hash)


@pytest.mark.parametrize("over", [ReleaseLane(1), RetireLane(1, ADMIN_ACL)])
def test_replayed_lease_gives_no_lane_once_its_lane_ended(over: ReleaseLane | RetireLane) -> None:
    stage = Stage()
    old = lease(nonce=b"the old one     ")
    assert decide(stage, old).client_id == 1
    assert decide(stage, petition(over)).reason is Reason.APPLIED
    for _ in range(3):
        verdict = decide(stage, old)
        assert (verdict.reason, verdict.client_id) == (Reason.UNKNOWN_LANE, 0)
    assert stage.execution.state.next_client == 2


def test_lease_signed_in_a_later_epoch_gives_the_existing_lane() -> None:
    stage = Stage(SHORT)
    lane = decide(stage, lease()).client_id
    stage.write(pack(lane, 1))
    pass_messages(stage, 2 * MESSAGES)
    assert epoch(stage) != FIRST_EPOCH
    again = decide(stage, petition(LeaseLane(ADMIN_ACL), epoch=epoch(stage)))
    assert (again.reason, again.client_id, again.last_id) == (Reason.APPLIED, lane, 1)


def test_lease_signed_after_its_decision_was_forgotten_gives_the_existing_lane() -> None:
    stage = Stage(SHORT)
    lane = decide(stage, lease()).client_id
    pass_messages(stage, (KEPT + 1) * MESSAGES)
    assert not stage.execution.state.epochs.decisions
    assert decide(stage, petition(LeaseLane(ADMIN_ACL), epoch=epoch(stage))).client_id == lane
    assert stage.execution.state.next_client == lane + 1


def test_refused_lease_is_decided_again() -> None:
    """Whoever retries a request leases a lane with a nonce that is made of the request."""
    stage = Stage(ExecutionPolicy(lanes_per_identity_max=1))
    assert decide(stage, lease(nonce=b"first           ")).client_id == 1
    assert decide(stage, lease(nonce=b"second          ")).reason is Reason.LANES_FULL
    decide(stage, petition(ReleaseLane(1)))
    assert decide(stage, lease(nonce=b"second          ")).client_id == 2


def test_refused_request_stays_refused_when_it_is_replayed() -> None:
    stage = Stage()
    replaced = petition(NewSet((1, 2)), nonce=b"refused         ")
    decide(stage, petition(NewSet((2, 3)), nonce=b"granted         "))
    assert decide(stage, replaced).reason is Reason.CHANGE_UNDER_WAY
    finish(stage, St.IMPLEMENT, St.CONFIRM)
    assert decide(stage, replaced).reason is Reason.CHANGE_UNDER_WAY
    assert not [change for change in stage.execution.cluster_config.changes if change.open]


def test_refused_request_signed_in_a_later_epoch_is_decided_again() -> None:
    stage = Stage(SHORT)
    decide(stage, petition(NewSet((2, 3)), nonce=b"granted         "))
    assert decide(stage, petition(NewSet((1, 2)))).reason is Reason.CHANGE_UNDER_WAY
    finish(stage, St.IMPLEMENT, St.CONFIRM)
    pass_messages(stage, MESSAGES)
    assert decide(stage, petition(NewSet((1, 2)), epoch=epoch(stage))).reason is Reason.APPLIED


def test_removal_refused_for_the_last_admin_is_not_granted_by_a_replay() -> None:
    stage = Stage()
    removal = petition(RemoveIdentity(ADMIN_ACL), nonce=b"leave           ")
    assert decide(stage, removal).reason is Reason.LAST_ADMIN
    assert decide(stage, petition(AddIdentity("bob", 1, BOB.key, ("*",), ("*",), admin=True))).reason is Reason.APPLIED
    assert decide(stage, removal).reason is Reason.LAST_ADMIN


def test_replayed_checkpoint_makes_no_other() -> None:
    stage = Stage()
    made = decide(stage, petition(MakeCheckpoint(0)))
    assert stage.executed[-1].checkpoint
    assert decide(stage, petition(MakeCheckpoint(0))).acl == made.acl
    assert not stage.executed[-1].checkpoint


def test_idempotent_requests_are_answered_equally_when_repeated() -> None:
    stage = Stage()
    lane = stage.lane(5)
    stage.write(pack(lane, 1))
    added = petition(AddIdentity("bob", 1, BOB.key, ("*",), ("*",)))
    for entry in (added, petition(FenceLane(lane)), petition(RetireLane(lane, ADMIN_ACL))):
        first, second = decide(stage, entry), decide(stage, entry)
        assert first.reason is Reason.APPLIED
        assert first == second


def test_forged_request_is_not_remembered() -> None:
    """Otherwise anybody could have a request of another refused before it comes."""
    stage = Stage()
    true = lease()
    forged = ConfigEntry(true.entry_type, true.stage, true.data[:-1] + bytes((true.data[-1] ^ 1,)))
    assert decide(stage, forged).reason is Reason.SIGNATURE
    assert decide(stage, true).reason is Reason.APPLIED


def test_snapshot_contains_epochs_and_decisions() -> None:
    stage = Stage(SHORT)
    stage.config(petition(NewSet((2, 3)), nonce=b"granted         "), petition(NewSet((1, 2))))
    pass_messages(stage, MESSAGES)
    stage.config(lease(nonce=b"another         "))
    again = JournalExecution(founding(SHORT), snapshot=stage.execution.state.export())
    assert again.fingerprint() == stage.execution.fingerprint()
    message = stage.prefix.propose([petition(NewSet((2, 3)), nonce=b"granted         ")])
    assert again.apply(message).verdict == stage.execution.apply(message).verdict
