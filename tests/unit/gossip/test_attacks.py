"""A node that holds the cluster's key, and lies."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from chaplain.core import Report
from chaplain.gossip import codec, payloads
from chaplain.gossip import member_record as cards
from chaplain.gossip.codec import (
    Accuse,
    Cards,
    Compare,
    DiscoveredAck,
    EntryStanding,
    GossipMessage,
    LeaveMessage,
    ListEntry,
    MessageType,
    WantMessages,
)
from chaplain.gossip.events import (
    EventSeen,
    HeardFrom,
    KeyConfirmed,
    KeyStep,
    MemberChanged,
    MembersConfigured,
    MemberState,
)
from chaplain.gossip.member_record import INCARNATION_MAX
from chaplain.gossip.payloads import Health, KeyRotationStep, LastHeard, UserEvent
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.keyring import key_id_of
from chaplain.link.events import InstallKey, RemoveKey, UseKey
from chaplain.units import SECOND_NS
from simulator.adapters.gossip_mesh import CheapSigner, World, cheap_verify
from tests.unit.gossip.gossip_stage import Partner, Stage, of

T = GossipSettings().silence_ns
VICTIM, WITNESS, LIAR = Partner(1), Partner(2), Partner(66)


def stage() -> Stage:
    made = Stage()
    made.meet(VICTIM, WITNESS, LIAR)
    return made


def state(at: Stage, partner: Partner) -> MemberState | None:
    member = at.core.member(partner.identifier)
    return None if member is None else member.state


def reports(effects: list[object]) -> list[str]:
    return [report.event for report in of(effects, Report)]


def user(content: bytes) -> bytes:
    return payloads.put_user(UserEvent("x", content))


def test_malicious_member_cannot_evict_a_member_that_is_heard() -> None:
    at = stage()
    for _ in range(4 * T // SECOND_NS):
        at.wait(SECOND_NS)
        for partner in (VICTIM, WITNESS, LIAR):
            at.step(HeardFrom(partner.identifier))
        at.tell(LIAR, LIAR.message(MessageType.HEALTH, payloads.put_health(Health(VICTIM.identifier, 1))))
        at.tell(LIAR, LIAR.leave(VICTIM.identifier, 1))
        at.tell(LIAR, Compare(1, 0, True, (ListEntry(VICTIM.identifier, 1, EntryStanding.LOST),)))
    assert state(at, VICTIM) is MemberState.ALIVE
    assert at.core.counts["leaves_refused"] > 0


def test_malicious_member_cannot_evict_a_member_silent_for_less_than_one_and_a_half_t() -> None:
    at = stage()
    for _ in range(T // SECOND_NS + 1):
        at.wait(SECOND_NS)
        at.step(HeardFrom(LIAR.identifier))
    assert state(at, VICTIM) is MemberState.SUSPECT
    at.tell(LIAR, LIAR.leave(VICTIM.identifier, 1))
    assert state(at, VICTIM) is MemberState.SUSPECT


def test_unheard_member_has_time_to_refute_a_false_leave() -> None:
    """In a large cluster most members are heard by others only."""
    at = Stage(GossipSettings(sessions_max=1))
    at.meet(WITNESS, LIAR)
    far = [Partner(number) for number in range(10, 16)]
    at.tell(WITNESS, Cards(tuple(partner.card() for partner in far)))
    unwatched = [partner for partner in far if not at.core._detector.is_watched(partner.identifier)]
    subject = unwatched[0]
    at.tell(LIAR, LIAR.leave(subject.identifier, 1))
    assert state(at, subject) is MemberState.SUSPECT
    at.wait(SECOND_NS)
    at.tell(WITNESS, subject.message(MessageType.REFUTED, payloads.put_card(subject.card(2))))
    for _ in range(3 * T // SECOND_NS):
        at.wait(SECOND_NS)
        at.step(HeardFrom(WITNESS.identifier))
        at.step(HeardFrom(LIAR.identifier))
    member = at.core.member(subject.identifier)
    assert member is not None
    assert (member.incarnation, member.state is MemberState.LEFT) == (2, False)


@pytest.mark.parametrize("key", [LIAR.identity.key, VICTIM.identity.key])
def test_malicious_member_cannot_speak_for_another(key: bytes) -> None:
    at = stage()
    event_id = VICTIM.next_id()
    message = codec.sign_message(
        LIAR.identity, event_id, MessageType.USER, user(b"lie"), action=codec.Action.NONE, target=0
    )
    signed = message.signed.replace(LIAR.identity.key, key)
    effects = at.tell(LIAR, msgspec.structs.replace(message, signed=signed, key=key))
    assert of(effects, EventSeen) == []
    assert set(reports(effects)) <= {"message_forged", "key_conflict"}
    assert reports(effects)
    true = codec.sign_message(
        VICTIM.identity, event_id, MessageType.USER, user(b"truth"), action=codec.Action.NONE, target=0
    )
    [seen] = of(at.tell(WITNESS, true), EventSeen)
    assert seen.event.content == b"truth", "a forgery must not make the true message look seen"


def test_malicious_member_cannot_send_a_leave_of_another() -> None:
    at = stage()
    honest = LIAR.leave(VICTIM.identifier, 1)
    forged = LeaveMessage(0, VICTIM.next_id(), VICTIM.identity.key, VICTIM.identifier, 1, honest.signature)
    assert reports(at.tell(LIAR, forged)) == ["message_forged"]
    claimed = msgspec.structs.replace(honest, id=VICTIM.next_id())
    assert reports(at.tell(LIAR, claimed)) == ["key_conflict"]
    at.tell(LIAR, Cards((), (forged,)))
    assert state(at, VICTIM) is MemberState.ALIVE


def test_malicious_member_cannot_raise_another_incarnation() -> None:
    at = stage()
    true = VICTIM.card(1)
    lie = cards.MemberRecord(true.identifier, true.key, INCARNATION_MAX, true.version, true.uri, true.signature)
    assert reports(at.tell(LIAR, Cards((lie,)))) == ["card_refused"]
    at.tell(LIAR, LIAR.message(MessageType.REFUTED, payloads.put_card(VICTIM.card(9))))
    member = at.core.member(VICTIM.identifier)
    assert member is not None
    assert member.incarnation == 1


def test_claims_without_a_card_cannot_raise_an_incarnation() -> None:
    at = stage()
    for incarnation in (INCARNATION_MAX, INCARNATION_MAX - 1, 2):
        at.tell(LIAR, Accuse(incarnation))
        at.tell(LIAR, LIAR.leave(at.own.identifier, incarnation))
        at.tell(LIAR, LIAR.message(MessageType.HEALTH, payloads.put_health(Health(at.own.identifier, incarnation))))
    assert at.core.incarnation == 1
    own = cards.make(LIAR.identity, at.own.uri, INCARNATION_MAX)
    lie = cards.MemberRecord(
        at.own.identifier, at.own.identity.key, INCARNATION_MAX, own.version, own.uri, own.signature
    )
    assert reports(at.tell(LIAR, Cards((lie,)))) == ["card_refused"]
    assert at.core.incarnation == 1


def test_repeated_accusations_raise_an_incarnation_at_most_ten_times_a_second() -> None:
    at = stage()
    for _ in range(1000):
        at.now_ns += SECOND_NS // 1000
        at.tell(LIAR, Accuse(at.core.incarnation))
    assert at.core.incarnation <= 11


def test_member_with_the_last_incarnation_can_still_leave() -> None:
    at = stage()
    at.tell(LIAR, Cards((LIAR.card(INCARNATION_MAX),)))
    assert state(at, LIAR) is MemberState.ALIVE
    at.tell(LIAR, LIAR.leave(LIAR.identifier, INCARNATION_MAX))
    assert state(at, LIAR) is MemberState.LEFT


def test_invented_members_are_bounded_and_expire() -> None:
    settings = GossipSettings(hearsay_max=20, left_max=30)
    at = Stage(settings)
    at.meet(VICTIM, LIAR)
    refused = 0
    for number in range(100, 220):
        effects = at.tell(LIAR, Cards((Partner(number).card(),)))
        refused += "card_refused" in reports(effects)
    assert len(at.core.members()) == 23
    assert refused == 99, "120 were shown, 20 were taken, and one was our own card"
    for _ in range(3 * T // SECOND_NS):
        at.wait(SECOND_NS)
        at.step(HeardFrom(VICTIM.identifier))
        at.step(HeardFrom(LIAR.identifier))
    present = [member.identifier for member in at.core.members() if member.state is not MemberState.LEFT]
    assert sorted(present) == sorted([VICTIM.identifier, LIAR.identifier, at.own.identifier])


def test_crowd_of_invented_members_stays_within_the_bound() -> None:
    at, chance = Stage(check=cheap_verify), Random(1)
    at.meet(VICTIM, LIAR)
    shown, size = 0, []
    while shown < 2 * at.settings.hearsay_max:
        crowd = tuple(cards.make(CheapSigner(chance), "tcp://127.0.0.1:1", 1) for _ in range(10))
        at.tell(LIAR, Cards(crowd))
        shown += len(crowd)
        size.append(len(at.core.members()))
    assert size[-1] == max(size) <= at.settings.hearsay_max + 3
    assert at.core.counts["card_refused"] >= shown - at.settings.hearsay_max


def test_old_message_is_never_accepted_again() -> None:
    at = Stage(GossipSettings(window=8))
    at.meet(VICTIM, LIAR)
    first = VICTIM.message(MessageType.USER, user(b"first"))
    assert of(at.tell(VICTIM, first), EventSeen)
    for number in range(20):
        assert of(at.tell(VICTIM, VICTIM.message(MessageType.USER, user(b"%d" % number))), EventSeen)
    assert not of(at.tell(LIAR, first), EventSeen)
    at.tell(VICTIM, VICTIM.message(MessageType.USER, user(b"next run"), epoch=2))
    assert not of(at.tell(LIAR, VICTIM.message(MessageType.USER, user(b"of the old run"))), EventSeen)


def rotate(at: Stage, *obeying: Partner) -> list[type]:
    """The liar asks for each step of a rotation, and these take it. Gives the steps that we take."""
    key = b"k" * 32
    key_id = key_id_of(key)
    taken: list[type] = []
    for step in [
        KeyRotationStep(KeyStep.INSTALL, key_id, key),
        KeyRotationStep(KeyStep.USE, key_id),
        KeyRotationStep(KeyStep.REMOVE, b"old!", key_id),
    ]:
        effects = at.tell(LIAR, LIAR.message(MessageType.KEY, payloads.put_key(step)))
        ours = [type(effect) for effect in effects if isinstance(effect, InstallKey | UseKey | RemoveKey)]
        taken += ours
        if ours:
            at.step(KeyConfirmed(step.step, step.key_id))
        confirmed = payloads.put_key(KeyRotationStep(step.step, step.key_id))
        for partner in obeying:
            at.tell(partner, partner.message(MessageType.KEY_CONFIRMED, confirmed))
    return taken


def test_rotation_that_only_one_member_confirmed_goes_no_further() -> None:
    assert rotate(stage(), LIAR) == [InstallKey]


def test_rotation_waits_for_an_absent_member() -> None:
    at, away = stage(), Partner(3)
    at.step(MembersConfigured({one.identifier: one.uri for one in (VICTIM, WITNESS, LIAR, away)}, ()))
    assert rotate(at, VICTIM, WITNESS, LIAR) == [InstallKey]
    at.meet(away)
    assert rotate(at, VICTIM, WITNESS, LIAR, away) == [UseKey, RemoveKey]


def test_acknowledgement_or_card_of_another_node_is_no_introduction() -> None:
    at = stage()
    stranger = Partner(9)
    at.tell(LIAR, DiscoveredAck(at.own.next_id(), stranger.card()))
    assert state(at, stranger) is None
    effects = at.tell(LIAR, LIAR.message(MessageType.DISCOVERED, payloads.put_card(stranger.card())))
    assert "message_forged" in reports(effects)


def test_vouched_time_is_never_in_the_future() -> None:
    at = stage()
    at.tell(LIAR, LIAR.message(MessageType.STATUS, payloads.put_status(LastHeard(VICTIM.identifier, 1, 0))))
    known = at.core._detector.known_ns(VICTIM.identifier)
    assert known is not None
    assert known <= at.now_ns


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x01\x00\xff", b"\x01\x00\x02\x00", b"\x01\x00\x08\x00"])
def test_hostile_bytes_are_reported_with_the_peer(body: bytes) -> None:
    [report] = of(stage().tell_bytes(LIAR, body), Report)
    assert (report.event, report.peer) == ("gossip_malformed", f"{LIAR.identifier:08x}")


def test_other_major_version_is_refused_naming_both_but_its_leave_is_accepted() -> None:
    at = stage()
    body = bytearray(codec.encode(WantMessages(())))
    body[0] = 9
    [report] = of(at.tell_bytes(LIAR, bytes(body)), Report)
    assert (report.event, report.detail) == ("version_refused", {"ours": "1.0", "theirs": "9.0"})
    assert not of(at.tell_bytes(LIAR, bytes(body)), Report)
    leave = bytearray(codec.encode(VICTIM.leave(VICTIM.identifier, 1)))
    leave[0] = 9
    [changed] = of(at.tell_bytes(VICTIM, bytes(leave) + b"of a later version"), MemberChanged)
    assert changed.member.state is MemberState.LEFT


def test_message_at_its_last_hop_is_dropped() -> None:
    at = stage()
    message = msgspec.structs.replace(WITNESS.message(MessageType.USER, user(b"x")), hops=41)
    assert not of(at.tell(LIAR, message), EventSeen)
    assert isinstance(message, GossipMessage)


def test_bytes_sent_by_a_node_stay_within_its_budget() -> None:
    settings = GossipSettings(bytes_per_second_max=20_000)
    at = Stage(settings)
    at.meet(VICTIM, WITNESS, LIAR)
    before = at.core.counts["bytes"]
    for _ in range(500):
        at.now_ns += SECOND_NS // 500
        at.tell(LIAR, LIAR.message(MessageType.USER, user(bytes(500))))
    assert at.core.counts["bytes"] - before <= 2 * 20_000 + 1000
    assert at.core.counts["over_budget"] > 0
    before = at.core.counts["bytes"]
    for _ in range(1000):
        at.now_ns += SECOND_NS // 1000
        at.tell(LIAR, LIAR.message(MessageType.HEALTH, payloads.put_health(Health(VICTIM.identifier, 1))))
    assert at.core.counts["bytes"] - before <= 2 * 20_000 + 1000


def test_cluster_with_a_malicious_member_loses_no_member() -> None:
    world = World(5)
    world.cluster(5)
    liar = world.nodes[4]
    victim = world.nodes[1].signer.identifier
    for _ in range(40):
        member = liar.core.member(victim)
        assert member is not None
        dissemination = liar.core._dissemination
        dissemination.fire_leave(victim, member.incarnation)
        dissemination.fire(MessageType.HEALTH, payloads.put_health(Health(victim, member.incarnation)))
        effects, dissemination.out = dissemination.out, []
        for effect in effects:
            world._perform(liar, effect)
        world.run(SECOND_NS)
    assert all(MemberState.LEFT not in world.changes(at, 1) for at in (0, 2, 3))
