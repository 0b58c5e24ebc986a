"""The configuration stream: who may ask for what, and what asking again does."""

from __future__ import annotations

import msgspec
import pytest

from chaplain.errors import Malformed
from chaplain.journal.messages import config
from chaplain.journal.messages.cluster import ConfigEntry
from chaplain.journal.messages.config import (
    NO_ACL,
    AddIdentity,
    EntryType,
    FenceLane,
    LeaseLane,
    ReleaseLane,
    RemoveIdentity,
    RetireLane,
    acl_id,
)
from chaplain.journal.messages.signing import SignatureType
from chaplain.journal.model.bootstrap import ExecutionPolicy
from chaplain.journal.model.records import ClientIdentity, IdentityStatus
from chaplain.journal.storage.verdict import Reason
from chaplain.link.auth.identity import Identity
from chaplain.rights import may_read, may_write
from tests.support.execution_stage import (
    ADMIN,
    ADMIN_ACL,
    BOB,
    CLUSTER,
    FIRST_EPOCH,
    WRAPPING,
    Stage,
    lease,
    pack,
    petition,
)

EVE = Identity(b"e" * 32)


def add(name="bob", key=BOB.key, *, admin=False, kind=SignatureType.ED25519, writes=("*",), reads=("*",)):
    return AddIdentity(name, kind, key, writes, reads, admin)


def added(stage: Stage, message=None, nonce=b"added nonce 0000") -> bytes:
    (verdict,) = stage.config(petition(message or add(), nonce=nonce))
    assert verdict.reason is Reason.APPLIED
    return verdict.acl


def reason(stage: Stage, *entries: ConfigEntry) -> Reason:
    return stage.config(*entries)[-1].reason


def test_founding_client_is_an_admin_of_all_streams():
    client = Stage().execution.state.clients[ADMIN_ACL]
    assert client.admin
    assert may_write(client, "anything")
    assert may_read(client, "anything")


@pytest.mark.parametrize(
    ("pattern", "stream", "fits"),
    [
        ("*", "a", True),
        ("a", "a", True),
        ("a", "ab", False),
        ("a*", "a", True),
        ("a*c", "abbc", True),
        ("a*c", "abbcd", False),
        ("a.c", "abc", False),
        ("*b*", "abc", True),
        ("[a]", "a", False),
        ("", "a", False),
        ("**a", "xa", True),
    ],
)
def test_patterns_match_stream_names(pattern, stream, fits):
    client = ClientIdentity(b"", "", b"", 1, b"", (pattern,), ("no", pattern), False, b"")
    assert may_write(client, stream) is may_read(client, stream) is fits


def test_identity_is_named_by_the_entry_that_added_it():
    stage = Stage()
    stage.config()
    (_, verdict) = stage.config(lease(), petition(add(), nonce=b"x" * 16))
    assert verdict.acl == acl_id(1, 2, 1)
    client = stage.execution.state.clients[verdict.acl]
    assert (client.name, client.key, client.admin, client.status) == ("bob", BOB.key, False, IdentityStatus.ACTIVE)
    assert stage.execution.client_of_key(BOB.key) == client
    assert stage.executed[-1].clients_changed


def test_repeated_add_request_changes_nothing_even_after_removal():
    stage = Stage()
    acl = added(stage)
    assert added(stage) == acl
    stage.config(petition(RemoveIdentity(acl)))
    assert added(stage) == acl
    assert stage.execution.state.clients[acl].status == IdentityStatus.REMOVED
    assert len(stage.execution.state.clients) == 2


def test_only_an_admin_adds_clients():
    stage = Stage()
    acl = added(stage)
    assert reason(stage, petition(add("eve", EVE.key), BOB, acl)) is Reason.NOT_ALLOWED


def test_request_signatures_cover_all_fields():
    stage = Stage()
    entry = petition(add())
    assert reason(stage, petition(add(), BOB)) is Reason.SIGNATURE
    for at in (*range(len(entry.data) - 66), len(entry.data) - 1):
        data = bytearray(entry.data)
        data[at] ^= 1
        assert reason(stage, ConfigEntry(entry.entry_type, 0, bytes(data))) in (
            Reason.SIGNATURE,
            Reason.UNKNOWN_TYPE,
            Reason.UNKNOWN_SIGNER,
        )
    foreign = config.sign(add(), "other", ADMIN_ACL, b"n" * 16, ADMIN, epoch=FIRST_EPOCH)
    assert reason(stage, ConfigEntry(EntryType.ADD_CLIENT, 0, foreign)) is Reason.SIGNATURE
    assert len(stage.execution.state.clients) == 1


def test_request_of_one_type_is_invalid_as_another_type():
    """Remove Client and the beginning of Fence have the same fields: the type is signed, too."""
    stage = Stage()
    lane = stage.lane()
    covered = config.encode_fields(FenceLane(lane)) + ADMIN_ACL + b"n" * 16
    fenced = petition(FenceLane(lane))
    assert fenced.data.startswith(covered)
    stolen = config.decode(EntryType.FENCE_CLIENT, 0, fenced.data)
    changed = msgspec.structs.replace(stolen, message=ReleaseLane(lane))
    assert config.signature_holds(stolen, CLUSTER, ADMIN.key)
    assert not config.signature_holds(changed, CLUSTER, ADMIN.key)


def test_names_and_keys_are_unique_while_active():
    stage = Stage()
    acl = added(stage)
    assert reason(stage, petition(add(key=EVE.key), nonce=b"1" * 16)) is Reason.NAME_TAKEN
    assert reason(stage, petition(add("eve"), nonce=b"2" * 16)) is Reason.KEY_TAKEN
    stage.config(petition(RemoveIdentity(acl)))
    again = added(stage, nonce=b"3" * 16)
    assert again != acl
    assert stage.execution.client_of_key(BOB.key).acl == again


def test_identities_are_bounded_including_removed_ones():
    stage = Stage(ExecutionPolicy(identities_max=2))
    acl = added(stage)
    stage.config(petition(RemoveIdentity(acl)))
    assert reason(stage, petition(add("eve", EVE.key), nonce=b"1" * 16)) is Reason.IDENTITIES_FULL


def test_unknown_or_removed_signer_is_refused():
    stage = Stage()
    acl = added(stage)
    stage.config(petition(RemoveIdentity(acl)))
    assert reason(stage, lease(BOB, acl)) is Reason.UNKNOWN_SIGNER
    assert reason(stage, lease(BOB, acl_id(9, 9, 9))) is Reason.UNKNOWN_SIGNER


def test_client_may_remove_itself_but_no_other():
    stage = Stage()
    acl = added(stage)
    assert reason(stage, petition(RemoveIdentity(ADMIN_ACL), BOB, acl)) is Reason.NOT_ALLOWED
    assert reason(stage, petition(RemoveIdentity(acl_id(7, 7, 7)))) is Reason.UNKNOWN_CLIENT
    assert reason(stage, petition(RemoveIdentity(acl), BOB, acl)) is Reason.APPLIED
    assert stage.execution.state.clients[acl].status == IdentityStatus.REMOVED


def test_last_admin_cannot_be_removed():
    stage = Stage()
    assert reason(stage, petition(RemoveIdentity(ADMIN_ACL))) is Reason.LAST_ADMIN
    acl = added(stage, add(admin=True))
    assert reason(stage, petition(RemoveIdentity(ADMIN_ACL), BOB, acl)) is Reason.APPLIED
    assert reason(stage, petition(RemoveIdentity(acl), BOB, acl)) is Reason.LAST_ADMIN
    assert stage.execution.state.clients[acl].status == IdentityStatus.ACTIVE


def test_lanes_are_leased_only_under_the_signers_identity():
    stage = Stage()
    acl = added(stage)
    assert reason(stage, petition(LeaseLane(ADMIN_ACL), BOB, acl)) is Reason.NOT_ALLOWED
    assert reason(stage, petition(LeaseLane(acl))) is Reason.NOT_ALLOWED
    lane = stage.lane(signer=BOB, acl=acl)
    assert stage.execution.state.lanes[lane].acl == acl


@pytest.mark.parametrize("message", [FenceLane, ReleaseLane])
def test_lanes_are_ended_only_by_their_owner_or_an_admin(message):
    stage = Stage()
    acl = added(stage)
    mine, theirs = stage.lane(signer=BOB, acl=acl), stage.lane()
    assert reason(stage, petition(message(theirs), BOB, acl)) is Reason.NOT_ALLOWED
    assert reason(stage, petition(message(99))) is Reason.UNKNOWN_LANE
    assert reason(stage, petition(message(mine))) is Reason.APPLIED
    again = reason(stage, petition(message(mine)))
    assert again is (Reason.APPLIED if message is FenceLane else Reason.UNKNOWN_LANE)


def test_released_lane_is_gone_and_its_lease_gives_no_other():
    stage = Stage()
    lane = stage.lane(3)
    stage.write(pack(lane, 1))
    released, leased = stage.config(petition(ReleaseLane(lane)), lease(nonce=b"%16d" % 3))
    assert (released.reason, leased.reason) == (Reason.APPLIED, Reason.UNKNOWN_LANE)
    assert not stage.execution.state.lanes
    assert stage.lane(4) == 2
    assert stage.write(pack(lane, 2))[0].reason is Reason.UNKNOWN_LANE


def test_returned_lane_is_fenced_and_reports_its_last_id():
    stage = Stage()
    acl = added(stage)
    lane, mine = stage.lane(3), stage.lane(signer=BOB, acl=acl)
    written = [pack(lane, number) for number in range(1, 13)]
    stage.write(*written)
    retire = petition(RetireLane(lane, ADMIN_ACL))
    assert reason(stage, petition(RetireLane(lane, ADMIN_ACL), BOB, acl)) is Reason.NOT_ALLOWED
    assert reason(stage, petition(RetireLane(mine, ADMIN_ACL))) is Reason.NOT_ALLOWED
    for ask in (retire, retire, petition(FenceLane(lane))):
        (decided,) = stage.config(ask)
        assert (decided.reason, decided.client_id, decided.last_id) == (Reason.APPLIED, lane, 12)
    reasons = [one.reason for one in stage.write(written[0], written[-1], pack(lane, 13))]
    assert reasons == [Reason.OLD, Reason.DUPLICATE, Reason.FENCED]
    assert stage.execution.state.lane_counts == {acl: 1}
    assert reason(stage, lease(nonce=b"%16d" % 3)) is Reason.UNKNOWN_LANE
    assert stage.lane(4) == lane + 2, "another nonce gives a new one"


def test_wrapped_secret_of_wrong_form_is_refused():
    stage = Stage(wrapping=WRAPPING)
    hmac = SignatureType.HMAC_SHA256
    wrapped = WRAPPING.wrap(b"s" * 32, EVE.key, b"n" * 12)
    for number, (key, kind) in enumerate(
        [(BOB.key, hmac), (BOB.key + wrapped, hmac), (EVE.key + wrapped, SignatureType.ED25519), (BOB.key, 7)]
    ):
        message = add("eve", key, kind=kind)
        assert reason(stage, petition(message, nonce=b"%16d" % number)) is Reason.BAD_SECRET
    added(stage, add("eve", EVE.key + wrapped, kind=hmac))
    unfounded = Stage()
    assert reason(unfounded, petition(add("eve", EVE.key + wrapped, kind=hmac))) is Reason.BAD_SECRET


def test_unknown_entry_types_are_void():
    stage = Stage()
    entries = [ConfigEntry(99, 0, b"?"), ConfigEntry(EntryType.ADD_CLIENT, 0, b""), ConfigEntry(8, 1, lease().data)]
    assert [one.reason for one in stage.config(*entries)] == [Reason.UNKNOWN_TYPE] * 3


@pytest.mark.parametrize(
    "message",
    [
        add(),
        add(admin=True, writes=(), reads=("a*", "b")),
        LeaseLane(ADMIN_ACL),
        RemoveIdentity(ADMIN_ACL),
        ReleaseLane(3),
        RetireLane(3, ADMIN_ACL),
        FenceLane(4),
    ],
)
def test_config_request_messages_round_trip(message):
    entry = petition(message)
    decoded = config.decode(entry.entry_type, entry.stage, entry.data)
    assert (decoded.message, decoded.signer, decoded.nonce) == (message, ADMIN_ACL, b"n" * 16)
    assert config.signature_holds(decoded, CLUSTER, ADMIN.key)
    for end in range(len(entry.data)):
        with pytest.raises(Malformed):
            config.decode(entry.entry_type, entry.stage, entry.data[:end])


def test_remove_client_without_a_target_is_malformed():
    for message in (RemoveIdentity(NO_ACL), ReleaseLane(0)):
        entry = petition(message)
        with pytest.raises(Malformed, match="or both"):
            config.decode(entry.entry_type, 0, entry.data)
