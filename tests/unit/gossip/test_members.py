"""The list, and one core's rules about it, step by step."""

from __future__ import annotations

import pytest

from chaplain.core import Report, Stopping, Woken
from chaplain.gossip import member_record as cards
from chaplain.gossip import payloads
from chaplain.gossip.codec import (
    Accuse,
    Action,
    Cards,
    Compare,
    DiscoveredAck,
    EntryStanding,
    GossipMessage,
    LeaveMessage,
    ListEntry,
    MessageType,
)
from chaplain.gossip.events import HeardFrom, JoinThrough, LeaveCluster, MemberChanged, MemberState
from chaplain.gossip.member_record import INCARNATION_MAX
from chaplain.gossip.members import MemberList, RecordVerdict
from chaplain.gossip.payloads import Health, LastHeard
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import verify
from chaplain.link.events import Forget, Meet
from chaplain.mesh.events import Entered, Expel
from chaplain.units import SECOND_NS
from tests.unit.gossip.gossip_stage import START_NS, Partner, Stage, of

T = GossipSettings().silence_ns
A, B, C = Partner(1), Partner(2), Partner(3)


def stage_with(*partners: Partner, **more: object) -> Stage:
    stage = Stage(**more)  # type: ignore[arg-type]
    stage.meet(*partners)
    return stage


def state(stage: Stage, partner: Partner) -> MemberState | None:
    member = stage.core.member(partner.identifier)
    return None if member is None else member.state


def hear(stage: Stage, partners: list[Partner], duration_ns: int) -> list[object]:
    """Let time pass in which these are heard every second."""
    effects: list[object] = []
    for _ in range(duration_ns // SECOND_NS):
        effects += stage.wait(SECOND_NS)
        for partner in partners:
            effects += stage.step(HeardFrom(partner.identifier))
    return effects


# The list itself.


def test_card_proves_its_identifier_and_a_newer_one_replaces_it() -> None:
    members = MemberList(GossipSettings(), verify)
    assert members.admit(A.card(5), contacted=False) is RecordVerdict.NEW
    assert members.admit(A.card(5), contacted=False) is RecordVerdict.KNOWN
    assert members.admit(A.card(4), contacted=False) is RecordVerdict.STALE
    assert members.admit(A.card(6), contacted=False) is RecordVerdict.NEWER
    forged = cards.MemberRecord(**{**_fields(A.card(7)), "uri": "tcp://127.0.0.1:1"})
    assert members.admit(forged, contacted=False) is RecordVerdict.FORGED


def test_identifier_belongs_to_its_first_key() -> None:
    members = MemberList(GossipSettings(), lambda *_: True)
    members.admit(A.card(), contacted=False)
    thief = cards.MemberRecord(**{**_fields(B.card(9)), "identifier": A.identifier})
    assert members.admit(thief, contacted=False) is RecordVerdict.CONFLICT
    assert MemberList(GossipSettings(), lambda *_: True).admit(thief, contacted=False) is RecordVerdict.FORGED


def _fields(card: cards.MemberRecord) -> dict[str, object]:
    return {name: getattr(card, name) for name in card.__struct_fields__}


def test_unheard_members_and_the_list_are_bounded() -> None:
    members = MemberList(GossipSettings(hearsay_max=2, members_max=4), verify)
    verdicts = [members.admit(Partner(number).card(), contacted=False) for number in range(1, 4)]
    assert verdicts == [RecordVerdict.NEW, RecordVerdict.NEW, RecordVerdict.FULL]
    assert members.admit(Partner(5).card(), contacted=True) is RecordVerdict.NEW
    members.mark_contacted(Partner(5).identifier)
    members.mark_contacted(Partner(1).identifier)
    assert members.admit(Partner(3).card(), contacted=False) is RecordVerdict.NEW
    assert members.admit(Partner(6).card(), contacted=True) is RecordVerdict.FULL


def test_left_members_are_bounded_and_return_only_with_a_higher_incarnation() -> None:
    members = MemberList(GossipSettings(left_max=2), verify)
    for number in range(1, 4):
        members.admit(Partner(number).card(), contacted=False)
        members.lose(Partner(number).identifier, 1, number)
    assert members.left() == [Partner(2).identifier, Partner(3).identifier]
    assert members.admit(Partner(3).card(), contacted=False) is RecordVerdict.LEFT
    assert members.admit(Partner(3).card(2), contacted=False) is RecordVerdict.NEW
    with pytest.raises(AssertionError):
        members.lose(Partner(3).identifier, 1, 9)


def test_ring_neighbours_connect_all_members_with_logarithmic_sessions() -> None:
    members = MemberList(GossipSettings(), lambda *_: True)
    partners = [Partner(number) for number in range(1, 100)]
    for partner in partners:
        members.admit(partner.card(), contacted=False)
    assert all(len(members.neighbours(partner.identifier)) <= 12 for partner in partners)
    reached, edge = {partners[0].identifier}, [partners[0].identifier]
    while edge:
        edge = [n for one in edge for n in members.neighbours(one) if n not in reached and not reached.add(n)]  # type: ignore[func-returns-value]
    assert len(reached) == 99


def test_buckets_partition_the_member_list() -> None:
    members = MemberList(GossipSettings(sync_bucket=4), lambda *_: True)
    for number in range(1, 60):
        members.admit(Partner(number).card(), contacted=False)
    buckets = members.buckets()
    found = [entry.identifier for bucket in range(buckets) for entry in members.bucket(buckets, bucket)]
    assert found == members.present
    assert buckets == 15


def test_leave_covers_later_cards_of_the_same_incarnation() -> None:
    members = MemberList(GossipSettings(), verify)
    members.admit(A.card(3), contacted=False)
    assert members.leave_gracefully(A.leave(A.identifier, 5), 1)
    assert members.admit(A.card(5), contacted=False) is RecordVerdict.LEFT
    assert members.admit(A.card(6), contacted=False) is RecordVerdict.NEW


# Joining.


def test_joining_node_sends_discovered_until_it_is_acknowledged() -> None:
    stage = Stage()
    stage.by_instance[A.peer.instance] = A
    assert Meet(A.uri) in stage.step(JoinThrough(A.uri))
    effects = stage.step(Entered(A.peer, {}))
    [(_, message)] = stage.said_of(effects, MessageType.DISCOVERED)
    assert message.action == Action.ACKNOWLEDGE
    assert payloads.take_card(message.content).identifier == stage.own.identifier
    assert stage.said_of(stage.wait(SECOND_NS), MessageType.DISCOVERED), "nobody acknowledged: say it again"
    effects = stage.tell(A, DiscoveredAck(message.id, A.card()))
    assert [report.event for report in of(effects, Report)] == ["joined"]
    assert not stage.said_of(stage.wait(3 * SECOND_NS), MessageType.DISCOVERED)


def test_asked_node_acknowledges_sends_its_list_and_forwards_the_event() -> None:
    stage = stage_with(A, B)
    stage.by_instance[C.peer.instance] = C
    stage.step(Entered(C.peer, {}))
    discovered = C.message(MessageType.DISCOVERED, payloads.put_card(C.card()), action=Action.ACKNOWLEDGE)
    effects = stage.tell(C, discovered)
    assert [pair[0] for pair in stage.said_of(effects, MessageType.DISCOVERED)] == [A, B]
    [(told, acknowledge)] = stage.said_of(effects, DiscoveredAck)
    assert (told, acknowledge.id, acknowledge.card.identifier) == (C, discovered.id, stage.own.identifier)
    shown = {card.identifier for pair in stage.said_of(effects, Cards) if pair[0] is C for card in pair[1].cards}
    assert shown == {A.identifier, B.identifier, stage.own.identifier}


def test_other_node_meets_the_new_node_and_acknowledges_directly() -> None:
    stage = stage_with(A)
    discovered = C.message(MessageType.DISCOVERED, payloads.put_card(C.card()), action=Action.ACKNOWLEDGE)
    effects = stage.tell(A, discovered)
    assert Meet(C.uri) in effects
    assert not stage.said_of(effects, DiscoveredAck)
    stage.by_instance[C.peer.instance] = C
    [(told, acknowledge)] = stage.said_of(stage.step(Entered(C.peer, {})), DiscoveredAck)
    assert (told, acknowledge.id) == (C, discovered.id)


def test_contact_by_an_unknown_node_fires_a_joined_event() -> None:
    stage = stage_with(A)
    (told, message), _ = stage.said_of(stage.meet(B), MessageType.JOINED)
    assert told is A
    assert payloads.take_card(message.content) == B.card()


def test_moved_member_is_dialled_at_its_new_uri() -> None:
    stage = stage_with(A)
    effects = stage.tell(A, Cards((A.card(2, uri="tcp://127.0.0.1:9"),)))
    assert of(effects, Forget) == [Forget(A.uri)]
    assert of(effects, Meet) == [Meet("tcp://127.0.0.1:9")]


# Health.


def test_silence_for_t_asks_all_and_silence_for_2t_fires_a_leave_on_behalf() -> None:
    stage = stage_with(A, B)
    effects = hear(stage, [B], T + SECOND_NS)
    questions = stage.said_of(effects, MessageType.HEALTH)
    assert {pair[0].identifier for pair in questions} == {A.identifier, B.identifier}
    assert payloads.take_health(questions[0][1].content) == Health(A.identifier, 1)
    assert state(stage, A) is MemberState.SUSPECT
    effects = hear(stage, [B], T)
    leaves = stage.said_of(effects, LeaveMessage)
    assert {(pair[1].subject, pair[1].incarnation, pair[1].graceful) for pair in leaves} == {(A.identifier, 1, False)}
    assert state(stage, A) is MemberState.LEFT
    assert Forget(A.uri) in effects


def test_silent_member_has_failed_and_one_that_left_or_was_removed_has_not() -> None:
    stage = stage_with(A, B, C)
    assert not stage.core.member(A.identifier).failed
    hear(stage, [B, C], 2 * T + SECOND_NS)
    stage.tell(B, B.leave(B.identifier, 1))
    stage.step(Expel(frozenset({C.identity.key})))
    views = [stage.core.member(one.identifier) for one in (A, B, C)]
    assert [view.state for view in views] == [MemberState.LEFT] * 3
    assert [view.failed for view in views] == [True, False, False]
    stage.tell(A, A.message(MessageType.REFUTED, payloads.put_card(A.card(2))))
    assert not stage.core.member(A.identifier).failed


def test_health_question_is_answered_with_the_time_since_heard() -> None:
    stage = stage_with(A, B)
    stage.step(HeardFrom(B.identifier))
    stage.now_ns += 1_500_000_000
    question = A.message(MessageType.HEALTH, payloads.put_health(Health(B.identifier, 1)), action=Action.STATUS)
    [(told, message)] = stage.said_of(stage.tell(A, question), MessageType.STATUS)
    assert told is A
    assert payloads.take_status(message.content) == LastHeard(B.identifier, 1, 1500)


def test_vouching_answer_clears_a_suspect() -> None:
    stage = stage_with(A, B)
    hear(stage, [B], T + SECOND_NS)
    assert state(stage, A) is MemberState.SUSPECT
    status = payloads.put_status(LastHeard(A.identifier, 1, 300))
    stage.tell(B, B.message(MessageType.STATUS, status, target=stage.own.identifier))
    assert state(stage, A) is MemberState.ALIVE


def test_node_asked_about_itself_refutes_with_its_next_incarnation() -> None:
    stage = stage_with(A, B)
    effects = stage.tell(A, A.message(MessageType.HEALTH, payloads.put_health(Health(stage.own.identifier, 1))))
    refutations = stage.said_of(effects, MessageType.REFUTED)
    assert {pair[0].identifier for pair in refutations} == {A.identifier, B.identifier}
    assert payloads.take_card(refutations[0][1].content).incarnation == 2
    again = stage.tell(B, B.message(MessageType.HEALTH, payloads.put_health(Health(stage.own.identifier, 1))))
    [(told, message)] = stage.said_of(again, MessageType.REFUTED)
    assert (told, payloads.take_card(message.content).incarnation) == (B, 2)
    assert stage.core.incarnation == 2


def test_refutation_overrides_all_answers_and_voids_the_leave() -> None:
    stage = stage_with(A, B)
    hear(stage, [B], 2 * T - SECOND_NS)
    assert state(stage, A) is MemberState.SUSPECT
    stage.tell(B, A.message(MessageType.REFUTED, payloads.put_card(A.card(2))))
    assert state(stage, A) is MemberState.ALIVE
    stage.tell(B, B.leave(A.identifier, 1))
    assert state(stage, A) is MemberState.ALIVE


def test_broken_connection_asks_at_once() -> None:
    stage = stage_with(A, B)
    effects = stage.part(A)
    assert stage.said_of(effects, MessageType.HEALTH)
    assert state(stage, A) is MemberState.SUSPECT
    stage.meet(A)
    assert state(stage, A) is MemberState.ALIVE


def test_end_of_an_old_instance_does_not_affect_the_new_one() -> None:
    stage = stage_with(A)
    newer = Partner(1)
    newer.peer = type(A.peer)(b"2" * 16, A.identifier, A.identity.key, A.uri)
    stage.meet(newer, incarnation=2)
    assert not stage.said_of(stage.part(A), MessageType.HEALTH)
    assert state(stage, A) is MemberState.ALIVE


# Leaving.


def test_leave_takes_effect_at_once_and_the_same_card_does_not_undo_it() -> None:
    stage = stage_with(A, B)
    effects = stage.tell(A, A.leave(A.identifier, 1))
    assert [pair[0] for pair in stage.said_of(effects, LeaveMessage)] == [B]
    [changed] = of(effects, MemberChanged)
    assert (changed.member.state, changed.member.graceful, changed.old) == (MemberState.LEFT, True, MemberState.ALIVE)
    stage.tell(B, Cards((A.card(1),)))
    assert state(stage, A) is MemberState.LEFT
    assert Meet(A.uri) not in stage.wait(4 * T), "who said good-bye is not chased"


@pytest.mark.parametrize("order", [Stopping(), LeaveCluster()])
def test_leaving_node_sends_its_leave_once(order: Stopping | LeaveCluster) -> None:
    stage = stage_with(A)
    [(told, leave)] = stage.said_of(stage.step(order), LeaveMessage)
    assert (told, leave.subject, leave.graceful) == (A, stage.own.identifier, True)
    assert not stage.said_of(stage.step(order), LeaveMessage)
    assert not stage.said_of(stage.wait(4 * T), MessageType.HEALTH)


def test_lost_member_is_dialled_again_and_accused_when_heard() -> None:
    stage = stage_with(A, B)
    hear(stage, [B], 2 * T + SECOND_NS)
    assert state(stage, A) is MemberState.LEFT
    stage.part(A)
    assert Meet(A.uri) in hear(stage, [B], 4 * SECOND_NS)
    [(told, accuse)] = stage.said_of(stage.step(Entered(A.peer, {})), Accuse)
    assert (told, accuse) == (A, Accuse(1))
    stage.tell(A, A.message(MessageType.REFUTED, payloads.put_card(A.card(2))))
    assert state(stage, A) is MemberState.ALIVE


# Runs before this one.


def test_restart_with_a_clock_behind_continues_above_the_old_card() -> None:
    stage = stage_with(A)
    old = cards.make(stage.own.identity, stage.own.uri, 500)
    effects = stage.tell(A, Cards((old,)))
    [(_, message)] = stage.said_of(effects, MessageType.REFUTED)
    assert stage.core.incarnation == 501
    assert message.id.epoch == 1
    [(_, later)] = stage.said_of(stage.tell(A, Accuse(501)), MessageType.REFUTED)
    assert later.id.epoch == 501, "messages of this run must not look older than those of the run before"


def test_owner_with_an_outdated_card_receives_the_newer_one() -> None:
    stage = stage_with(A)
    stage.tell(A, Cards((A.card(9),)))
    [(told, body)] = stage.said_of(stage.tell(A, Cards((A.card(3),))), Cards)
    assert (told, body.cards) == (A, (A.card(9),))


# Comparing.


def test_compare_sends_newer_cards_and_requests_missing_ones() -> None:
    stage = stage_with(A, B)
    effects = stage.tell(A, Compare(1, 0, True, (ListEntry(C.identifier, 1, EntryStanding.PRESENT),)))
    shown = {card.identifier for _, body in stage.said_of(effects, Cards) for card in body.cards}
    assert shown == {A.identifier, B.identifier, stage.own.identifier}
    [(_, reply)] = stage.said_of(effects, Compare)
    assert not reply.reply
    assert len(reply.entries) == 3


def test_present_member_listed_as_lost_is_accused() -> None:
    stage = stage_with(A, B)
    lost = (ListEntry(B.identifier, 1, EntryStanding.LOST), ListEntry(stage.own.identifier, 1, EntryStanding.LOST))
    effects = stage.tell(A, Compare(1, 0, False, lost))
    assert stage.said_of(effects, Accuse) == [(B, Accuse(1))]
    assert stage.core.incarnation == 2


def test_leave_is_forwarded_with_its_proof() -> None:
    stage = stage_with(A, B)
    leave = A.leave(A.identifier, 1)
    stage.tell(A, leave)
    effects = stage.tell(B, Compare(1, 0, False, (ListEntry(A.identifier, 1, EntryStanding.PRESENT),)))
    [(_, body)] = [pair for pair in stage.said_of(effects, Cards) if pair[1].leaves]
    assert body.leaves == (leave,)
    other = stage_with(A, B)
    other.tell(B, body)
    assert state(other, A) is MemberState.LEFT


# Time.


def test_clock_set_back_neither_stops_nor_hurries_gossip() -> None:
    stage = stage_with(A, B)
    hear(stage, [A, B], 3 * SECOND_NS)
    stage.now_ns -= 3600 * SECOND_NS
    effects = hear(stage, [B], T + 2 * SECOND_NS)
    assert stage.said_of(effects, MessageType.HEALTH)
    assert state(stage, A) is MemberState.SUSPECT
    assert state(stage, B) is MemberState.ALIVE


def test_after_a_pause_other_members_are_not_suspected() -> None:
    stage = stage_with(A, B)
    stage.now_ns += 3 * T
    effects = stage.step(Woken())
    assert [report.event for report in of(effects, Report)] == ["slept"]
    assert not stage.said_of(effects, MessageType.HEALTH)
    assert not stage.said_of(hear(stage, [A, B], 4 * T), MessageType.HEALTH)


def test_last_incarnation_is_reported_and_kept() -> None:
    stage = stage_with(A, incarnation=INCARNATION_MAX)
    effects = stage.tell(A, Accuse(INCARNATION_MAX))
    assert [report.event for report in of(effects, Report)] == ["incarnation_exhausted"]
    assert stage.core.incarnation == INCARNATION_MAX


def test_member_view_contains_the_time_last_heard() -> None:
    stage = stage_with(A)
    [member] = [member for member in stage.core.members() if member.identifier == A.identifier]
    assert (member.uri, member.key, member.heard_ns) == (A.uri, A.identity.key, START_NS)
    assert isinstance(A.message(MessageType.USER, b""), GossipMessage)
