"""The client service, one rule at a time: who is answered, who hears what, what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain.client_service import messages
from chaplain.client_service.budgets import Budgets
from chaplain.client_service.events import ClientServiceSettings, ForLayer, RightsChanged, RotationWanted
from chaplain.client_service.limits import Limits
from chaplain.client_service.messages import (
    AnswerQuestions,
    AskQuestion,
    Cancel,
    Done,
    EventItem,
    Failed,
    FireAndWait,
    FireEvent,
    GetMembers,
    GetStatus,
    GiveAnAnswer,
    Instruct,
    JoinAPool,
    ListenEvents,
    ListenNews,
    LookUp,
    NewsItem,
    PoolItem,
    QuestionItem,
    RotateKeys,
    ShoutToPool,
    Started,
)
from chaplain.core import Report, Requested, Settled, Withdrawn
from chaplain.costs import SPREAD, UNIT_BYTES
from chaplain.errors import Malformed
from chaplain.gossip.events import (
    ALL,
    BUILT_IN,
    Acknowledged,
    AskQuery,
    EventId,
    EventSeen,
    Fire,
    FiredEvent,
    GiveAnswer,
    KeyStep,
    MemberChanged,
    MemberState,
    MemberView,
    QueryAnswer,
    QueryDecided,
    Questioned,
    RegisterQuestion,
    Rotated,
    UnregisterQuestion,
)
from chaplain.link.events import Peer
from chaplain.mesh.events import (
    Entered,
    Exited,
    Gapped,
    Joined,
    JoinPool,
    LeavePool,
    Left,
    Shout,
    Shouted,
    Whispered,
)
from chaplain.rights import RequiredRight, Right, refusal
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel
from tests.unit.client_service.client_service_stage import ANN, BOB, LAYER, NODE, OWN, CoreHost, reply


def test_status_and_members_are_answered_by_the_node() -> None:
    host = CoreHost()
    assert reply(host.ask(ANN, GetStatus(1))[0]) == (ANN.instance, Done(1), b'{"id":1}')
    assert reply(host.ask(BOB, GetMembers(9))[0]) == (BOB.instance, Done(9), b'[{"id":1}]')


def test_question_is_asked_and_its_answer_returned_to_the_caller() -> None:
    host = CoreHost()
    assert host.ask(ANN, AskQuestion(5, "version", 10)) == [AskQuery(1, "version", 10)]
    answer = QueryAnswer("version", b"1.0", 2, 3, True, (3, 1), (2,))
    instance, done, payload = reply(host.step(QueryDecided(1, answer))[0])
    assert (instance, done) == (ANN.instance, Done(5))
    told = json.loads(payload)
    assert told["value"] == "1.0"
    assert told["voters"] == [1, 3]
    assert told["missing"] == [2]
    assert host.step(QueryDecided(1, answer)) == []


def test_binary_answer_is_encoded_as_base64() -> None:
    host = CoreHost()
    host.ask(ANN, AskQuestion(5, "q", 10))
    _, _, payload = reply(host.step(QueryDecided(1, QueryAnswer("q", b"\xff", 1, 1, True, (1,), ())))[0])
    assert json.loads(payload)["value"] == {"base64": "/w=="}


def test_undecided_answer_contains_a_bounded_tally() -> None:
    host = CoreHost()
    host.ask(ANN, AskQuestion(5, "q", 10))
    tally = ((b"a", 2), (b"b", 2), *((bytes([number % 256]) * (1 << 17), 1) for number in range(20)))
    _, _, payload = reply(
        host.step(QueryDecided(1, QueryAnswer("q", None, 2, 24, False, (1,), (), (9,), tally, "tie")))[0]
    )
    told = json.loads(payload)
    assert (told["reason"], told["declined"]) == ("tie", [9])
    assert told["tally"][:2] == [["a", 2], ["b", 2]]
    assert 2 < len(told["tally"]) < 22


def test_open_questions_are_bounded_per_client() -> None:
    host = CoreHost(ClientServiceSettings(calls_max=1))
    host.ask(ANN, AskQuestion(1, "version", 10))
    _, failed, _ = reply(host.ask(ANN, AskQuestion(2, "version", 10))[0])
    assert isinstance(failed, Failed)
    assert host.ask(BOB, AskQuestion(1, "version", 10)) == [AskQuery(2, "version", 10)]
    host.step(QueryDecided(1, QueryAnswer("version", None, 0, 1, False, (), ())))
    assert host.ask(ANN, AskQuestion(3, "version", 10)) == [AskQuery(3, "version", 10)]


def test_calls_of_a_client_that_left_are_freed_without_an_answer() -> None:
    host = CoreHost()
    host.ask(ANN, AskQuestion(5, "version", 10))
    host.step(Exited(ANN, "closed"))
    assert host.step(QueryDecided(1, QueryAnswer("version", b"1", 1, 1, True, (1,), ()))) == []


def test_broadcast_reaches_peers_and_each_local_listener_once() -> None:
    host = CoreHost()
    join, started = host.ask(ANN, JoinAPool(1, "chat"))
    assert join == JoinPool("chat")
    assert reply(started) == (ANN.instance, Started(1), b"")
    assert [reply(e)[1] for e in host.ask(BOB, JoinAPool(1, "chat"))] == [Started(1)], "the node joins once"
    shout, to_ann, to_bob, done = host.ask(ANN, ShoutToPool(2, "chat"), b"hi")
    assert isinstance(shout, Shout)
    assert reply(to_ann) == (ANN.instance, PoolItem(1, "chat", OWN, "ann", 0), b"hi")
    assert reply(to_bob) == (BOB.instance, PoolItem(1, "chat", OWN, "ann", 0), b"hi")
    assert reply(done) == (ANN.instance, Done(2), b"")
    theirs = parcel.encode(Parcel(NODE.identifier, Layer.CLIENT, b"carl", b"hi"))
    assert [reply(e)[2] for e in host.step(Shouted(NODE, "chat", theirs))] == [b"hi", b"hi"]
    assert host.step(Shouted(NODE, "other", theirs)) == []


def test_broadcast_in_the_name_of_another_node_is_reported() -> None:
    host = CoreHost()
    host.ask(ANN, JoinAPool(1, "chat"))
    for name in (OWN, NODE.identifier + 1):
        (report,) = host.step(Shouted(NODE, "chat", parcel.encode(Parcel(name, Layer.CLIENT, b"ann", b"hi"))))
        assert isinstance(report, Report)


def test_items_dropped_by_a_full_queue_are_counted_in_the_next_item() -> None:
    host = CoreHost()
    host.ask(ANN, JoinAPool(1, "chat"))
    host.step(Gapped(ANN, 3, outgoing=True))
    items = [reply(host.ask(BOB, ShoutToPool(n, "chat"), b"x")[1])[1] for n in (1, 2)]
    assert [item.missed for item in items if isinstance(item, PoolItem)] == [3, 0]


def test_node_leaves_a_pool_with_its_last_listener() -> None:
    host = CoreHost()
    host.ask(ANN, JoinAPool(1, "chat"))
    host.ask(BOB, JoinAPool(4, "chat"))
    assert [reply(e)[1] for e in host.ask(ANN, Cancel(1))] == [Done(1)]
    assert host.step(Exited(BOB, "closed")) == [LeavePool("chat")]


def test_join_above_the_pool_limit_is_refused() -> None:
    host = CoreHost(limits=Limits(pools_max=3, kept_pools=frozenset({"kept"})))
    for call, pool in enumerate(("a", "b", "kept")):
        assert reply(host.ask(ANN, JoinAPool(call, pool))[-1])[1] == Started(call)
    (refused,) = host.ask(BOB, JoinAPool(4, "c"))
    reason = "this node is in 3 pools, which is the limit: leave one first, or ask another node"
    assert reply(refused)[1] == Failed(4, "refused", reason)
    assert reply(host.ask(BOB, JoinAPool(5, "a"))[0])[1] == Started(5), "it is in that one already"
    host.ask(ANN, Cancel(1))
    assert host.ask(BOB, JoinAPool(6, "c"))[0] == JoinPool("c")


def test_pool_recorded_by_the_node_is_neither_joined_nor_left_for_clients() -> None:
    host = CoreHost(limits=Limits(kept_pools=frozenset({"chat"})))
    assert [reply(effect)[1] for effect in host.ask(ANN, JoinAPool(1, "chat"))] == [Started(1)]
    assert host.step(Exited(ANN, "closed")) == []


def test_events_are_sent_to_listeners() -> None:
    host = CoreHost()
    host.ask(ANN, ListenEvents(3))
    assert host.ask(BOB, FireEvent(1, "deployed"), b"v2")[0] == Fire("deployed", b"v2", ALL)
    assert host.ask(BOB, FireEvent(2, "deployed", target=1), b"v2")[0] == Fire("deployed", b"v2", 4711)
    seen = EventSeen(FiredEvent(EventId(9, 1, 2), "deployed", b"v2"))
    assert [reply(e) for e in host.step(seen)] == [(ANN.instance, EventItem(3, "00000009-1-2", "deployed", 9), b"v2")]
    host.ask(ANN, Cancel(3))
    assert host.step(seen) == []


def test_member_events_are_sent_only_to_clients_that_asked() -> None:
    host = CoreHost()
    host.ask(ANN, ListenNews(3))
    host.ask(BOB, ListenEvents(3))
    member = MemberView(300, "tcp://127.0.0.1:1", b"N" * 32, 1, MemberState.ALIVE)
    news = [
        (Entered(NODE, {}), NewsItem(3, "enter", 300)),
        (Joined(NODE, "chat"), NewsItem(3, "join", 300, "chat")),
        (Left(NODE, "chat"), NewsItem(3, "leave", 300, "chat")),
        (Exited(NODE, "silent"), NewsItem(3, "exit", 300, reason="silent")),
        (MemberChanged(member, None), NewsItem(3, "member", 300, state="alive")),
        (MemberChanged(member, MemberState.SUSPECT), NewsItem(3, "member", 300, state="alive", was="suspect")),
    ]
    for event, item in news:
        assert [reply(effect) for effect in host.step(event)] == [(ANN.instance, item, b"")]
    join, told, _ = host.ask(BOB, JoinAPool(1, "chat"))
    assert (join, reply(told)[1]) == (JoinPool("chat"), NewsItem(3, "join", OWN, "chat")), "of its own node, too"
    leave, told, _ = host.ask(BOB, Cancel(1))
    assert (leave, reply(told)[1]) == (LeavePool("chat"), NewsItem(3, "leave", OWN, "chat"))
    seen = EventSeen(FiredEvent(EventId(9, 1, 2), "deployed", b"v2"))
    assert {reply(effect)[0] for effect in host.step(seen)} == {ANN.instance, BOB.instance}
    host.ask(ANN, Cancel(3))
    assert host.step(Joined(NODE, "chat")) == []
    assert host.step(Entered(Peer(b"c" * 16, 400, b"C" * 32, client="carl"), {})) == []


def test_pool_events_are_sent_only_to_clients_that_may_read_the_pool() -> None:
    host = CoreHost(may=lambda key, want: key != ANN.key or want.stream != "secret")
    for peer in (ANN, BOB):
        host.ask(peer, ListenNews(3))
    assert [reply(effect)[0] for effect in host.step(Joined(NODE, "secret"))] == [BOB.instance]
    assert len(host.step(Joined(NODE, "chat"))) == len(host.step(Entered(NODE, {}))) == 2


def test_acknowledged_event_returns_its_confirming_and_missing_nodes() -> None:
    host = CoreHost(ClientServiceSettings(calls_max=1, question_timeout_ns_max=99))
    assert host.ask(BOB, FireAndWait(3, "deployed", 10**9, target=1), b"v2") == [Fire("deployed", b"v2", 4711, 1, 99)]
    (busy,) = host.ask(BOB, FireAndWait(4, "deployed", 10))
    assert isinstance(reply(busy)[1], Failed)
    instance, done, payload = reply(host.step(Acknowledged(1, (9, 3), (5,)))[0])
    assert (instance, done) == (BOB.instance, Done(3))
    assert json.loads(payload) == {"acknowledged": [3, 9], "missing": [5]}
    assert host.ask(BOB, FireAndWait(5, "deployed", -1)) == [Fire("deployed", b"", ALL, 2, 0)]
    assert isinstance(reply(host.step(Acknowledged(2, (), (), fired=False))[0])[1], Failed)
    assert host.step(Acknowledged(2, (), ())) == []


def test_question_is_offered_to_the_first_answering_client() -> None:
    host = CoreHost()
    assert host.ask(ANN, AnswerQuestions(1, "load"))[0] == RegisterQuestion("load")
    host.ask(BOB, AnswerQuestions(1, "load"))
    asked = host.step(Questioned(EventId(9, 1, 2), "load", b"cpu", 9))
    assert [reply(e) for e in asked] == [(ANN.instance, QuestionItem(1, "00000009-1-2", "load", 9), b"cpu")]
    assert host.ask(ANN, GiveAnAnswer(2, "00000009-1-2"), b"0.5")[0] == GiveAnswer(EventId(9, 1, 2), b"0.5")
    assert isinstance(reply(host.ask(ANN, GiveAnAnswer(3, "no id"), b"0.5")[0])[1], Failed)


def test_question_is_unregistered_with_its_last_answering_client() -> None:
    host = CoreHost()
    for peer in (ANN, BOB):
        host.ask(peer, AnswerQuestions(1, "load"))
    host.ask(BOB, AnswerQuestions(2, "disk"))
    assert [reply(effect)[1] for effect in host.ask(ANN, Cancel(1))] == [Done(1)]
    assert host.ask(BOB, Cancel(2))[0] == UnregisterQuestion("disk")
    assert host.step(Exited(BOB, "closed")) == [UnregisterQuestion("load")]
    assert host.ask(ANN, AnswerQuestions(3, "load"))[0] == RegisterQuestion("load")


def test_answered_questions_are_bounded_per_node() -> None:
    host = CoreHost(limits=Limits(questions_max=1))
    host.ask(ANN, AnswerQuestions(1, "load"))
    (refused,) = host.ask(BOB, AnswerQuestions(1, "disk"))
    reason = "clients of this node answer 1 questions, which is the limit: ask another node"
    assert reply(refused)[1] == Failed(1, "refused", reason)
    assert reply(host.ask(BOB, AnswerQuestions(2, "load"))[0])[1] == Started(2)


@pytest.mark.parametrize("question", BUILT_IN)
def test_built_in_questions_cannot_be_registered_by_clients(question: str) -> None:
    host = CoreHost()
    (only,) = host.ask(ANN, AnswerQuestions(1, question))
    assert reply(only)[1] == Failed(1, "refused", f"every node answers {question!r} by itself: choose another name")
    assert host.ask(ANN, AskQuestion(2, question, 10)) == [AskQuery(1, question, 10)]


def test_rotation_ends_in_done_or_names_missing_nodes() -> None:
    host = CoreHost()
    assert host.ask(ANN, RotateKeys(1)) == [RotationWanted(1)]
    assert reply(host.step(Rotated(1, True, KeyStep.REMOVE, ()))[0])[1] == Done(1)
    host.ask(ANN, RotateKeys(2))
    failed = reply(host.step(Rotated(2, False, KeyStep.INSTALL, (3,)))[0])[1]
    assert isinstance(failed, Failed)
    assert "node 3" in failed.reason


def test_rotation_is_refused_for_clients_without_admin() -> None:
    host = CoreHost()
    (refused,) = host.ask(BOB, RotateKeys(1))
    assert reply(refused)[1] == Failed(1, "not_allowed", "only an admin may replace the cluster's key")
    assert host.core.counts["requests_forbidden"] == 1


def test_call_to_a_layer_is_settled_or_refused_by_the_layer() -> None:
    host = CoreHost()
    assert host.ask(ANN, LookUp(5, LAYER, b"body"), b"load") == [ForLayer(LAYER, Requested(1, "ann", b"body", b"load"))]
    assert host.ask(BOB, Instruct(5, LAYER, b"")) == [ForLayer(LAYER, Requested(2, "bob", b"", b""))]
    (refused,) = host.step(Settled(2, kind="busy", reason="later"))
    assert reply(refused) == (BOB.instance, Failed(5, "busy", "later"), b"")
    (done,) = host.step(Settled(1, b"page"))
    assert reply(done) == (ANN.instance, Done(5), b"page")
    assert host.step(Settled(1, b"again")) == []


def test_large_answer_of_a_layer_is_charged_to_the_client_that_gets_it() -> None:
    host = CoreHost()
    host.ask(ANN, LookUp(5, LAYER, b"body"))
    before = host.charges[ANN.key]
    (done,) = host.step(Settled(1, bytes(3 * UNIT_BYTES)))
    assert reply(done)[1] == Done(5)
    assert host.charges[ANN.key] - before == 3


def test_request_without_the_right_to_its_stream_is_refused() -> None:
    asked: list[tuple[bytes, RequiredRight]] = []

    def may(key: bytes, want: RequiredRight) -> bool:
        asked.append((key, want))
        return want.right is Right.READ

    host = CoreHost(may=may)
    forbidden = [
        (Instruct(1, LAYER, b"to-orders"), RequiredRight(Right.WRITE, "to-orders")),
        (LookUp(2, LAYER, b"to-orders"), RequiredRight(Right.WRITE, "to-orders")),
        (ShoutToPool(3, "chat"), RequiredRight(Right.WRITE, "chat")),
    ]
    for request, want in forbidden:
        effects = host.ask(ANN, request, b"value")
        assert [reply(effect)[:2] for effect in effects] == [
            (ANN.instance, Failed(request.call, "no_right", refusal(want)))
        ]
        assert asked.pop() == (ANN.key, want)
        assert not asked
    assert host.core.counts["requests_forbidden"] == 3
    assert host.ask(ANN, LookUp(4, LAYER, b"about nothing")) == [
        ForLayer(LAYER, Requested(1, "ann", b"about nothing", b""))
    ]
    assert not asked
    assert JoinPool("chat") in host.ask(ANN, JoinAPool(5, "chat"))
    assert asked.pop() == (ANN.key, RequiredRight(Right.READ, "chat"))
    assert Fire("chat", b"", ALL) in host.ask(ANN, FireEvent(6, "chat"))  # events and questions are no streams
    host.ask(ANN, AnswerQuestions(7, "chat"))
    assert not asked


def test_client_without_the_read_right_cannot_join_a_pool() -> None:
    host = CoreHost(may=lambda key, want: key != ANN.key)
    (failed,) = host.ask(ANN, JoinAPool(1, "chat"))
    assert reply(failed)[1] == Failed(1, "no_right", refusal(RequiredRight(Right.READ, "chat")))
    assert JoinPool("chat") in host.ask(BOB, JoinAPool(1, "chat"))
    content = parcel.encode(Parcel(300, Layer.CLIENT, b"carl", b"hi"))
    assert [reply(effect)[0] for effect in host.step(Shouted(NODE, "chat", content))] == [BOB.instance]


def test_request_for_an_absent_layer_names_the_layer() -> None:
    (refused,) = CoreHost().ask(ANN, LookUp(5, 9, b""))
    assert reply(refused)[1] == Failed(5, "refused", "this node does not serve layer 9")


def test_cancelled_call_is_withdrawn_from_its_layer() -> None:
    host = CoreHost()
    for call in (5, 6):
        host.ask(ANN, LookUp(call, LAYER, b""))
    withdrawn, done = host.ask(ANN, Cancel(5))
    assert withdrawn == ForLayer(LAYER, Withdrawn(1))
    assert reply(done)[1] == Done(5)
    assert host.step(Exited(ANN, "left")) == [ForLayer(LAYER, Withdrawn(2))]


@pytest.mark.parametrize("name", ["", "two words", "ä", "x" * 256, "tab\t"])
def test_invalid_names_are_refused(name: str) -> None:
    host = CoreHost()
    named = (JoinAPool(1, name), ShoutToPool(2, name), FireEvent(3, name), AnswerQuestions(4, name))
    for request in (*named, AskQuestion(5, name, 10)):
        (only,) = host.ask(ANN, request)
        assert isinstance(reply(only)[1], Failed), request


@pytest.mark.parametrize("target", [-1, 2**32, 2**40, -(2**63), 2**64 - 1])
def test_impossible_target_is_refused(target: int) -> None:
    (only,) = CoreHost().ask(ANN, FireEvent(3, "deployed", target))
    assert reply(only)[1] == Failed(3, "refused", f"a target is a node's id or its 32-bit identifier, not {target}")


def test_content_that_gossip_refuses_is_refused_with_a_reason() -> None:
    host = CoreHost(limits=Limits(content_bytes_max=4))
    query = "00000009-1-2"
    for request in (FireEvent(1, "deployed"), AskQuestion(1, "load", 10), GiveAnAnswer(1, query)):
        (only,) = host.ask(ANN, request, b"12345")
        reason = "an event, a question or an answer holds at most 4 bytes, not 5"
        assert reply(only)[1] == Failed(1, "refused", reason)
    assert host.ask(ANN, FireEvent(1, "deployed"), b"1234")[0] == Fire("deployed", b"1234", ALL)


def test_broadcast_that_the_mesh_refuses_is_refused_with_a_reason() -> None:
    host = CoreHost(limits=Limits(broadcast_bytes_max=4))
    host.ask(ANN, JoinAPool(1, "chat"))
    (only,) = host.ask(ANN, ShoutToPool(2, "chat"), b"12345")
    assert reply(only)[1] == Failed(2, "refused", "a broadcast holds at most 4 bytes, not 5")
    (report,) = host.step(Shouted(NODE, "chat", parcel.encode(Parcel(300, Layer.CLIENT, b"carl", b"12345"))))
    assert isinstance(report, Report)


def test_long_refusal_of_a_layer_is_truncated_to_fit() -> None:
    host = CoreHost()
    host.ask(ANN, LookUp(5, LAYER, b""))
    (only,) = host.step(Settled(1, kind="refused", reason="x" * 100_000))
    assert reply(only)[1] == Failed(5, "refused", "x" * 1000)


@pytest.mark.parametrize("name", [b"\xff", bytes(256), bytes(65535)])
def test_broadcast_without_a_valid_name_is_reported(name: bytes) -> None:
    host = CoreHost()
    host.ask(ANN, JoinAPool(1, "chat"))
    (report,) = host.step(Shouted(NODE, "chat", parcel.encode(Parcel(300, Layer.CLIENT, name, b"hi"))))
    assert isinstance(report, Report)


def test_listeners_are_bounded_per_client() -> None:
    host = CoreHost(ClientServiceSettings(listeners_max=2))
    host.ask(ANN, JoinAPool(1, "a"))
    host.ask(ANN, ListenEvents(2))
    (refused,) = host.ask(ANN, JoinAPool(3, "b"))
    failed = reply(refused)[1]
    assert isinstance(failed, Failed)
    assert failed.reason == "2 listeners are open already: leave a pool, or close a listener"
    (again,) = host.ask(BOB, ListenEvents(1))
    assert reply(again)[1] == Started(1)


@given(st.binary(max_size=64))
def test_hostile_bytes_are_reported_without_other_effects(content: bytes) -> None:
    host = CoreHost()
    effects = host.step(Whispered(ANN, content))
    assert all(isinstance(effect, Report) for effect in effects)


@given(st.binary(max_size=64))
def test_any_request_bytes_decode_or_are_malformed(body: bytes) -> None:
    try:
        request = messages.decode_request(body)
    except Malformed:
        return
    assert 0 <= request.call <= messages.CALL_MAX


def test_listener_that_lost_its_right_is_ended_with_the_reason() -> None:
    rights = {(ANN.key, "red"), (BOB.key, "red")}
    host = CoreHost(may=lambda key, want: (key, want.stream) in rights)
    host.ask(ANN, JoinAPool(1, "red"))
    host.ask(BOB, JoinAPool(2, "red"))
    assert host.step(RightsChanged()) == []
    rights.remove((ANN.key, "red"))
    (told,) = host.step(RightsChanged())
    want = RequiredRight(Right.READ, "red")
    assert reply(told) == (ANN.instance, Failed(1, "no_right", refusal(want)), b"")
    content = parcel.encode(Parcel(NODE.identifier, Layer.CLIENT, b"", b"secret"))
    heard = [reply(effect)[0] for effect in host.step(Shouted(NODE, "red", content))]
    assert heard == [BOB.instance]
    rights.clear()
    effects = host.step(RightsChanged())
    assert LeavePool("red") in effects
    assert host.step(Shouted(NODE, "red", content)) == []


def test_waiting_call_ends_when_its_right_is_lost() -> None:
    rights = {"to-red"}
    host = CoreHost(may=lambda key, want: want.stream in rights)
    (handed,) = host.ask(ANN, LookUp(1, LAYER, b"to-red"))
    host.ask(ANN, LookUp(2, LAYER, b"anything"))
    number = handed.event.call
    rights.clear()
    withdrawn, told = host.step(RightsChanged())
    assert withdrawn == ForLayer(LAYER, Withdrawn(number))
    assert reply(told)[1] == Failed(1, "no_right", refusal(RequiredRight(Right.WRITE, "to-red")))
    assert host.step(Settled(number, b"secret")) == []


def test_client_above_its_rate_is_refused_while_others_are_served() -> None:
    host = CoreHost(ClientServiceSettings(spread_per_second_max=2))
    fired = [len(host.ask(ANN, FireEvent(call, "x"))) == 2 for call in range(6)]
    assert fired == [True] * 4 + [False] * 2
    (refused,) = host.ask(ANN, AskQuestion(7, "q", 1))
    assert reply(refused)[1].kind == "busy"
    assert len(host.ask(BOB, FireEvent(1, "x"))) == 2
    assert reply(host.ask(ANN, GetStatus(8))[0])[1] == Done(8)
    later = host.core.step(10**9, Whispered(ANN, messages.encode(ANN.identifier, FireEvent(9, "x"))))
    assert any(isinstance(effect, Fire) for effect in later)


def test_full_budgets_are_not_stored() -> None:
    budgets = Budgets(10)
    for number in range(1000):
        assert budgets.spend(number, b"%d" % number)
    assert budgets.spend(10**10, b"late")
    assert len(budgets._full_ns) == 1


def test_client_is_charged_for_requests_on_which_every_node_acts() -> None:
    host = CoreHost()
    host.ask(ANN, AskQuestion(1, "members", 1))
    host.ask(BOB, messages.GetStatus(2))
    assert host.charges == {ANN.key: SPREAD}
