"""Events that ask for an acknowledgement: who gives one, whom the sender waits for, and for how long."""

from __future__ import annotations

from chaplain.gossip import payloads
from chaplain.gossip.codec import Action, GossipMessage, MessageType
from chaplain.gossip.events import ALL, Acknowledged, EventSeen, Fire
from chaplain.gossip.payloads import Response, UserEvent
from chaplain.gossip.settings import GossipSettings
from chaplain.units import SECOND_NS
from tests.unit.gossip.gossip_stage import Partner, Stage, of


def fired(stage: Stage, effects: list[object]) -> GossipMessage:
    message: GossipMessage = stage.said_of(effects, MessageType.USER)[0][1]
    return message


def acknowledge(stage: Stage, partner: Partner, message: GossipMessage) -> list[Acknowledged]:
    content = payloads.put_response(Response(message.id, 1, True, b""))
    told = partner.message(MessageType.ANSWER, content, target=stage.own.identifier)
    return of(stage.tell(partner, told), Acknowledged)


def test_event_that_expects_it_is_acknowledged_by_every_receiver() -> None:
    stage, partner = Stage(), Partner(1)
    stage.meet(partner)
    content = payloads.put_user(UserEvent("deployed", b"v2"))
    for action, expected in ((Action.NONE, 0), (Action.ACKNOWLEDGE, 1)):
        event = partner.message(MessageType.USER, content, action=action)
        effects = stage.tell(partner, event)
        assert len(of(effects, EventSeen)) == 1
        given = stage.said_of(effects, MessageType.ANSWER)
        assert [payloads.take_response(answer.content).query for _, answer in given] == [event.id] * expected
        assert stage.said_of(stage.tell(partner, event), MessageType.ANSWER) == [], "a duplicate is no news"


def test_acknowledged_event_ends_when_all_members_have_answered() -> None:
    stage, partners = Stage(), [Partner(1), Partner(2)]
    stage.meet(*partners)
    effects = stage.step(Fire("deployed", b"v2", ALL, 7, SECOND_NS))
    message = fired(stage, effects)
    assert message.action == Action.ACKNOWLEDGE
    assert of(effects, Acknowledged) == acknowledge(stage, partners[0], message) == []
    [done] = acknowledge(stage, partners[1], message)
    assert (done.call, done.missing, done.fired) == (7, (), True)
    assert sorted(done.seen_by) == sorted(one.identifier for one in (*partners, stage.own))
    assert acknowledge(stage, partners[1], message) == [], "it has ended"


def test_missing_members_are_named_only_after_the_timeout() -> None:
    stage, partners = Stage(), [Partner(1), Partner(2)]
    stage.meet(*partners)
    message = fired(stage, stage.step(Fire("deployed", b"v2", ALL, 7, SECOND_NS)))
    acknowledge(stage, partners[0], message)
    assert of(stage.wait(SECOND_NS - 1), Acknowledged) == []
    [done] = of(stage.wait(1), Acknowledged)
    assert done.missing == (partners[1].identifier,)


def test_members_that_left_and_strangers_are_not_awaited() -> None:
    stage, here, leaving, stranger = Stage(), Partner(1), Partner(2), Partner(3)
    stage.meet(here, leaving)
    message = fired(stage, stage.step(Fire("deployed", b"v2", ALL, 7, 9 * SECOND_NS)))
    acknowledge(stage, here, message)
    content = payloads.put_response(Response(message.id, 1, True, b""))
    stage.tell(here, stranger.message(MessageType.ANSWER, content, target=stage.own.identifier))
    stage.tell(leaving, leaving.leave(leaving.identifier, 1))
    [done] = of(stage.wait(SECOND_NS), Acknowledged)
    assert sorted(done.seen_by) == sorted((here.identifier, stage.own.identifier))
    assert done.missing == ()


def test_event_for_one_node_awaits_only_that_node() -> None:
    stage, partner = Stage(), Partner(1)
    stage.meet(partner, Partner(2))
    message = fired(stage, stage.step(Fire("deployed", b"v2", partner.identifier, 7, SECOND_NS)))
    [done] = acknowledge(stage, partner, message)
    assert (done.seen_by, done.missing) == ((partner.identifier,), ())
    [own] = of(stage.step(Fire("deployed", b"v2", stage.own.identifier, 8, SECOND_NS)), Acknowledged)
    assert own.seen_by == (stage.own.identifier,)
    stage.step(Fire("deployed", b"v2", 99, 9, SECOND_NS))
    [nobody] = of(stage.wait(SECOND_NS), Acknowledged)
    assert (nobody.call, nobody.seen_by, nobody.missing) == (9, (), (99,))


def test_single_node_awaits_no_member_and_excess_events_are_refused_unsent() -> None:
    assert [done.call for done in of(Stage().step(Fire("x", b"", ALL, 1, SECOND_NS)), Acknowledged)] == [1]
    stage = Stage(GossipSettings(queries_max=1))
    stage.meet(Partner(1))
    stage.step(Fire("x", b"", ALL, 1, SECOND_NS))
    effects = stage.step(Fire("x", b"", ALL, 2, SECOND_NS))
    assert effects == [Acknowledged(2, (), (), fired=False)]
