"""What the client core does, step by step, with nodes in memory."""

from __future__ import annotations

from client_stage import SECOND_NS, PlainNode, Stage
from hypothesis import given
from hypothesis import strategies as st

from chaplain.client.events import (
    Began,
    Connect,
    Failure,
    Measure,
    Raised,
    Returned,
    Settings,
    Yielded,
)
from chaplain.core import Drained, Stopping
from chaplain.desk.messages import (
    AskQuestion,
    Cancel,
    ClientRequest,
    Done,
    EventItem,
    Failed,
    FireEvent,
    GetMembers,
    GetStatus,
    JoinAPool,
    ListenEvents,
    LookUp,
    PoolItem,
    RotateKeys,
    ShoutToPool,
    Started,
)
from chaplain.wire import command
from chaplain.wire.command import Alive, Ping
from chaplain.wire.parcel import Layer


def up(count: int = 3, settings: Settings | None = None) -> Stage:
    stage = Stage(count, settings)
    stage.run(0.001)
    return stage


def test_three_sessions_are_kept_warm() -> None:
    stage = up()
    assert len(stage.core._keeper.sessions) == 3
    assert len(stage.dialled) == 3


def test_connect_returns_when_the_first_session_is_up() -> None:
    stage = Stage()
    stage.give(Connect(1, SECOND_NS))
    assert stage.of(1) == []
    stage.run(0.001)
    [returned] = stage.of(1)
    assert isinstance(returned, Returned)
    assert returned.payload.decode() in stage.nodes


def test_an_answer_comes_back_under_its_call() -> None:
    stage = up()
    stage.call(GetStatus(1))
    stage.call(GetMembers(2))
    stage.reply(stage.serving(), Done(2), b"[]")
    stage.reply(stage.serving(), Done(1), b"{}")
    assert stage.outcomes == [Returned(2, b"[]"), Returned(1, b"{}")]


def test_an_answer_given_twice_counts_once() -> None:
    stage = up()
    stage.call(GetStatus(1))
    stage.reply(stage.serving(), Done(1), b"{}")
    stage.reply(stage.serving(), Done(1), b"{}")
    assert len(stage.of(1)) == 1


def test_a_refusal_says_why() -> None:
    stage = up()
    stage.call(FireEvent(1, "a b"))
    stage.reply(stage.serving(), Failed(1, "refused", "a name has no blanks"))
    stage.call(FireEvent(2, "x"))
    stage.reply(stage.serving(), Failed(2, "of a later version", "because"))
    first, second = stage.outcomes
    assert first == Raised(1, Failure.REFUSED, "fire 'a b': a name has no blanks")
    assert isinstance(second, Raised)
    assert second.failure is Failure.REFUSED


SQL = LookUp(1, Layer.EXECUTOR, b"")
NO_ROLE = Failed(1, "not_executor", "this node is no executor: go to another")


def asked(stage: Stage, request: ClientRequest) -> PlainNode:
    """The node that was asked last."""
    [node] = [node for node in stage.nodes.values() if node.requests and node.requests[-1][0] == request]
    return node


def test_a_node_that_is_no_executor_is_left_for_another() -> None:
    stage = up()
    stage.call(SQL)
    first = asked(stage, SQL)
    stage.reply(first, NO_ROLE)
    first.requests.clear()
    second = asked(stage, SQL)
    assert second is not first
    stage.reply(second, Done(1), b"rows")
    stage.call(LookUp(2, Layer.EXECUTOR, b""))
    assert not first.requests  # it is known by now
    stage.call(LookUp(3, Layer.GRAPH, b""))
    assert first.requests  # which has nothing to do with other layers
    assert stage.outcomes == [Returned(1, b"rows")]


def test_who_finds_no_executor_is_told_when_all_were_asked() -> None:
    stage = up()
    stage.call(SQL)
    for left in (2, 1, 0):
        node = asked(stage, SQL)
        assert len(stage.outcomes) == 0
        stage.reply(node, NO_ROLE)
        node.requests.clear()
        assert len(stage.outcomes) == (left == 0)
    assert stage.outcomes == [Raised(1, Failure.NOT_EXECUTOR, f"executor read: {NO_ROLE.reason}")]
    stage.call(LookUp(2, Layer.EXECUTOR, b""))
    assert asked(stage, LookUp(2, Layer.EXECUTOR, b""))  # one of them may have become one meanwhile


def test_who_waits_for_another_executor_asks_it_when_it_is_there() -> None:
    stage = Stage()
    one, two, three = stage.nodes.values()
    two.up = three.up = False
    stage.run(1)
    stage.call(SQL)
    stage.reply(one, NO_ROLE)
    assert not stage.outcomes
    two.up = True
    stage.run(5)
    assert [request for request, _ in two.requests] == [SQL]


def test_who_waits_for_another_executor_in_vain_is_told_why() -> None:
    stage = Stage()
    one, two, three = stage.nodes.values()
    two.up = three.up = False
    stage.run(1)
    stage.call(SQL)
    stage.reply(one, NO_ROLE)
    stage.run(11)
    [raised] = stage.outcomes
    assert isinstance(raised, Raised)
    assert raised.failure is Failure.NOT_EXECUTOR
    assert raised.reason == f"executor read: waited 10 s for another node; {one.endpoint}: {NO_ROLE.reason}"


def test_commands_are_numbered_from_two_and_wrap() -> None:
    stage = up()
    node = stage.serving()
    for call in (1, 2):
        stage.call(GetStatus(call))
    assert node.sequences == [2, 3]
    stage.core._keeper.sessions[node.instance]._sequence = 65_534
    for call in (3, 4, 5):
        stage.call(GetStatus(call))
    assert node.sequences[2:] == [65_535, 0, 1]


def test_payload_travels_behind_the_request() -> None:
    stage = up()
    stage.call(ShoutToPool(5, "chat"), b"\x00hi")
    assert stage.serving().requests == [(ShoutToPool(5, "chat"), b"\x00hi")]


def test_calls_wait_for_a_session() -> None:
    stage = Stage()
    stage.call(GetStatus(1))
    stage.run(0.001)
    assert stage.serving().requests == [(GetStatus(1), b"")]


def test_a_dead_cluster_is_unreachable_within_the_timeout_and_named() -> None:
    stage = Stage()
    for node in stage.nodes.values():
        node.up = False
    stage.give(Connect(1, 2 * SECOND_NS))
    stage.run(1.99)
    assert stage.of(1) == []
    stage.run(0.02)
    [raised] = stage.of(1)
    assert isinstance(raised, Raised)
    assert raised.failure is Failure.UNREACHABLE
    assert all(endpoint in raised.reason for endpoint in stage.nodes)
    assert "connection refused" in raised.reason
    assert len(stage.dialled) < 60, "endpoints that fail are left alone for longer each time"


def test_refused_by_all_fails_at_once_with_the_reason() -> None:
    stage = Stage()
    for node in stage.nodes.values():
        node.refusal = "this client is not registered"
    stage.give(Connect(1, 60 * SECOND_NS))
    stage.run(1)
    [raised] = stage.of(1)
    assert isinstance(raised, Raised)
    assert raised.failure is Failure.REFUSED
    assert "this client is not registered" in raised.reason


def test_a_node_that_refuses_only_while_it_starts_is_forgiven() -> None:
    stage = Stage(1)
    [node] = stage.nodes.values()
    node.refusal = "unknown client"
    stage.give(Connect(1, 10 * SECOND_NS))
    stage.run(0.01)
    node.refusal = ""
    stage.run(1)
    assert isinstance(stage.of(1)[0], Returned)


def test_refused_by_one_goes_on_with_the_others() -> None:
    stage = Stage()
    first = next(iter(stage.nodes.values()))
    first.refusal = "another key"
    stage.give(Connect(1, SECOND_NS))
    stage.run(1)
    assert isinstance(stage.of(1)[0], Returned)
    assert len(stage.core._keeper.sessions) == 2


def test_reading_calls_move_to_the_spare_session() -> None:
    stage = up()
    first = stage.serving()
    stage.call(GetStatus(1))
    stage.call(AskQuestion(2, "version", SECOND_NS))
    stage.kill(first)
    second = stage.serving()
    assert second is not first
    assert [request for request, _ in second.requests] == [GetStatus(1), AskQuestion(2, "version", SECOND_NS)]
    assert second.sequences == [2, 3]
    stage.reply(second, Done(1), b"{}")
    assert stage.outcomes == [Returned(1, b"{}")]


def test_calls_that_act_are_never_repeated() -> None:
    stage = up()
    first = stage.serving()
    stage.call(FireEvent(1, "deployed"))
    stage.call(ShoutToPool(2, "chat"))
    stage.call(RotateKeys(3))
    stage.kill(first)
    assert stage.serving().requests == []
    for raised in stage.outcomes:
        assert isinstance(raised, Raised)
        assert raised.failure is Failure.UNKNOWN
        assert "may or may not have happened" in raised.reason
        assert first.endpoint in raised.reason
    assert [raised.call for raised in stage.outcomes] == [1, 2, 3]


def test_an_acting_call_that_was_not_sent_yet_is_not_unknown() -> None:
    stage = Stage()
    for node in stage.nodes.values():
        node.up = False
    stage.call(FireEvent(1, "deployed"), timeout_s=1)
    stage.run(2)
    [raised] = stage.of(1)
    assert isinstance(raised, Raised)
    assert raised.failure is Failure.UNREACHABLE


def test_a_third_node_takes_the_place_of_a_lost_one() -> None:
    stage = up()
    stage.kill(stage.serving())
    stage.run(0.5)
    up_at = {session.endpoint for session in stage.core._keeper.sessions.values()}
    assert up_at == {endpoint for endpoint, node in stage.nodes.items() if node.up}


def test_a_lost_node_is_dialled_again_when_it_is_the_only_one() -> None:
    stage = up(1)
    node = stage.serving()
    stage.kill(node)
    stage.call(GetStatus(1))
    stage.run(1)
    node.up = True
    stage.run(3)
    assert node.requests == [(GetStatus(1), b"")]


def test_an_answer_from_a_session_the_call_has_left_is_ignored() -> None:
    stage = up()
    first, spare = stage.serving(), None
    stage.call(GetStatus(1))
    spare = next(node for node in stage.nodes.values() if node.dial is not None and node is not first)
    stage.reply(spare, Done(1), b"not asked")
    assert stage.outcomes == []


def test_silence_is_pinged_and_then_given_up() -> None:
    stage = up()
    first = stage.serving()
    first.mute = True
    stage.call(GetStatus(1), timeout_s=30)
    stage.run(2.1)
    assert first.pings == 1
    stage.run(3.8)
    assert stage.serving() is first
    stage.run(0.2)
    second = stage.serving()
    assert second is not first
    assert second.requests == [(GetStatus(1), b"")]


def test_a_node_that_answers_pings_is_kept() -> None:
    stage = up()
    first = stage.serving()
    stage.run(60)
    assert stage.serving() is first
    assert 20 <= first.pings <= 31


def test_ping_measures_the_round_trip() -> None:
    stage = up()
    node = stage.serving()
    node.mute = True
    stage.give(Measure(1, SECOND_NS))
    stage.now_ns += 1500
    stage.frame(node, command.encode(command.DecenAck(2)))
    assert stage.of(1) == [Returned(1, (1500).to_bytes(8, "big"))]


def test_ping_moves_with_the_session() -> None:
    stage = up()
    first = stage.serving()
    first.mute = True
    stage.give(Measure(1, 10 * SECOND_NS))
    stage.kill(first)
    assert isinstance(stage.of(1)[0], Returned)


def test_a_ping_of_the_node_is_answered() -> None:
    stage = up()
    node = stage.serving()
    stage.frame(node, command.encode(Ping(3)))
    assert node.sequences == [2]


def test_a_greeting_that_never_comes_frees_the_place() -> None:
    stage = Stage()
    silent = list(stage.core._endpoints._records)[:2]
    for endpoint in silent:
        stage.nodes[endpoint].mute = True
    stage.give(Connect(1, 10 * SECOND_NS))
    stage.run(3.5)
    assert isinstance(stage.of(1)[0], Returned)


def test_a_node_that_lets_us_in_and_says_nothing_is_named_as_such() -> None:
    stage = Stage(1)
    next(iter(stage.nodes.values())).mute = True
    stage.give(Connect(1, SECOND_NS))
    stage.run(1.1)
    [raised] = stage.of(1)
    assert isinstance(raised, Raised)
    assert "does not greet us" in raised.reason


def test_timeouts_name_the_node_that_did_not_answer() -> None:
    stage = up()
    stage.call(GetStatus(1), timeout_s=1)
    stage.call(FireEvent(2, "x"), timeout_s=1)
    stage.run(1.1)
    status, fire = stage.outcomes
    assert isinstance(status, Raised)
    assert status.failure is Failure.UNREACHABLE
    assert stage.serving().endpoint in status.reason
    assert isinstance(fire, Raised)
    assert fire.failure is Failure.UNKNOWN


def test_a_listening_begins_once_and_yields() -> None:
    stage = up()
    node = stage.serving()
    stage.call(JoinAPool(1, "chat"), timeout_s=1)
    stage.reply(node, Started(1))
    item = PoolItem(1, "chat", 4, "alice", 2)
    stage.reply(node, item, b"hi")
    stage.run(30)
    assert stage.outcomes == [Began(1), Yielded(1, item, b"hi", 2, moved=False)]


def test_a_listening_that_does_not_begin_fails_and_is_cancelled() -> None:
    stage = up()
    stage.call(JoinAPool(1, "chat"), timeout_s=1)
    stage.run(1.1)
    assert [type(outcome) for outcome in stage.outcomes] == [Raised]
    assert stage.serving().requests[-1] == (Cancel(1), b"")


def test_a_listening_moves_and_says_so_once() -> None:
    stage = up()
    stage.call(JoinAPool(1, "chat"))
    stage.reply(stage.serving(), Started(1))
    stage.kill(stage.serving())
    node = stage.serving()
    assert node.requests == [(JoinAPool(1, "chat"), b"")]
    stage.reply(node, Started(1))
    item = PoolItem(1, "chat", 4, "alice", 0)
    stage.reply(node, item, b"a")
    stage.reply(node, item, b"b")
    assert stage.outcomes == [
        Began(1),
        Yielded(1, item, b"a", 0, moved=True),
        Yielded(1, item, b"b", 0, moved=False),
    ]


def test_a_listening_waits_out_a_time_without_any_node() -> None:
    stage = up()
    stage.call(ListenEvents(1), timeout_s=1)
    stage.reply(stage.serving(), Started(1))
    for node in stage.nodes.values():
        stage.kill(node)
    stage.run(60)
    for node in stage.nodes.values():
        node.up = True
    stage.run(5)
    assert stage.serving().requests == [(ListenEvents(1), b"")]
    assert stage.outcomes == [Began(1)]


def test_an_event_seen_at_two_nodes_is_given_once() -> None:
    stage = up()
    stage.call(ListenEvents(1))
    item = EventItem(1, "ab", "deployed", 4)
    stage.reply(stage.serving(), Started(1))
    stage.reply(stage.serving(), item, b"v2")
    stage.kill(stage.serving())
    stage.reply(stage.serving(), Started(1))
    stage.reply(stage.serving(), item, b"v2")
    assert [type(outcome) for outcome in stage.outcomes] == [Began, Yielded]


def test_losses_of_the_link_are_counted_into_the_next_item() -> None:
    stage = up()
    node = stage.serving()
    stage.call(JoinAPool(1, "chat"))
    stage.reply(node, Started(1))
    stage.link.lost = 3
    item = PoolItem(1, "chat", 4, "alice", 2)
    stage.reply(node, item)
    assert stage.of(1)[-1] == Yielded(1, item, b"", 5, moved=False)


def test_cancelling_a_listening_tells_the_node_and_ends_it() -> None:
    stage = up()
    node = stage.serving()
    stage.call(JoinAPool(1, "chat"))
    stage.reply(node, Started(1))
    stage.cancel(1)
    assert node.requests[-1] == (Cancel(1), b"")
    stage.reply(node, PoolItem(1, "chat", 4, "alice", 0))
    assert stage.outcomes == [Began(1)]


def test_cancelling_an_unknown_call_does_nothing() -> None:
    stage = up()
    stage.cancel(99)
    assert stage.outcomes == []


def test_an_item_of_something_else_is_reported_and_not_given() -> None:
    stage = up()
    node = stage.serving()
    stage.call(JoinAPool(1, "chat"))
    stage.call(GetStatus(2))
    stage.reply(node, PoolItem(1, "other", 4, "alice", 0))
    stage.reply(node, EventItem(1, "ab", "x", 4))
    stage.reply(node, Started(2))
    assert stage.outcomes == []
    assert [(report.event, report.peer) for report in stage.reports] == [("malformed", node.endpoint)] * 3


def test_too_many_calls_are_refused_before_anything_is_sent() -> None:
    stage = up(settings=Settings(calls_max=2))
    for call in (1, 2, 3):
        stage.call(GetStatus(call))
    assert len(stage.serving().requests) == 2
    [raised] = stage.outcomes
    assert isinstance(raised, Raised)
    assert (raised.call, raised.failure) == (3, Failure.BUSY)


def test_a_full_queue_fails_the_call_that_did_not_fit() -> None:
    stage = up()
    stage.link.full = True
    stage.call(FireEvent(1, "x"))
    [raised] = stage.outcomes
    assert isinstance(raised, Raised)
    assert raised.failure is Failure.BUSY


def test_stopping_ends_everything() -> None:
    stage = up()
    stage.call(GetStatus(1))
    stage.call(FireEvent(2, "x"))
    stage.give(Stopping())
    stage.call(GetStatus(3))
    kinds = {outcome.call: outcome.failure for outcome in stage.outcomes if isinstance(outcome, Raised)}
    assert kinds == {1: Failure.CLOSED, 2: Failure.UNKNOWN, 3: Failure.CLOSED}
    assert all(node.dial is None for node in stage.nodes.values())
    assert stage.core.deadline() is None


def test_two_endpoints_of_one_node_end_in_one_session() -> None:
    stage = Stage(2)
    for node in stage.nodes.values():
        node.instance = b"the same"
    stage.run(0.01)
    assert len(stage.core._keeper.sessions) == 1
    assert "it is the same node as" in stage.core._endpoints.describe()


def test_a_call_that_waits_is_refused_if_any_node_refused_it() -> None:
    stage = Stage(2)
    refuses, down = stage.nodes.values()
    refuses.refusal, down.up = "unknown client", False
    stage.call(GetStatus(1), timeout_s=1)
    stage.run(1.1)
    [raised] = stage.of(1)
    assert isinstance(raised, Raised)
    assert raised.failure is Failure.REFUSED


def test_an_act_that_still_waits_when_the_client_closes_did_not_happen() -> None:
    stage = Stage(1)
    stage.call(FireEvent(1, "x"))
    stage.give(Stopping())
    [raised] = stage.of(1)
    assert isinstance(raised, Raised)
    assert raised.failure is Failure.CLOSED


@given(st.binary(max_size=200), st.booleans())
def test_hostile_bytes_never_raise(noise: bytes, wrapped: bool) -> None:
    stage = up()
    stage.call(JoinAPool(1, "chat"))
    frame = command.encode(Alive(2, noise)) if wrapped else noise
    stage.frame(stage.serving(), frame)
    stage.run(1)
    assert len(stage.core._keeper.sessions) == 3


@given(
    st.lists(
        st.tuples(st.sampled_from(["call", "fire", "listen", "kill", "revive", "wait", "answer", "cancel"])),
        max_size=40,
    )
)
def test_every_call_ends_exactly_once(script: list[tuple[str]]) -> None:
    stage = up(settings=Settings(calls_max=20))
    asked: dict[int, bool] = {}
    cancelled: set[int] = set()
    for number, (act,) in enumerate(script):
        nodes = list(stage.nodes.values())
        live = [node for node in nodes if node.dial is not None]
        match act:
            case "call":
                stage.call(GetStatus(number), timeout_s=2)
                asked[number] = False
            case "fire":
                stage.call(FireEvent(number, "x"), timeout_s=2)
                asked[number] = False
            case "listen":
                stage.call(ListenEvents(number), timeout_s=2)
                asked[number] = True
            case "kill" if live:
                stage.kill(live[number % len(live)])
            case "revive":
                nodes[number % len(nodes)].up = True
            case "wait":
                stage.run(0.3)
            case "answer" if live:
                node = live[0]
                for request, _ in node.requests:
                    stage.reply(node, Done(request.call) if not asked.get(request.call) else Started(request.call))
            case "cancel" if asked:
                stage.cancel(number // 2)
                cancelled.add(number // 2)
    stage.give(Stopping())
    for call in asked:
        ends = [outcome for outcome in stage.of(call) if isinstance(outcome, Returned | Raised)]
        assert len(ends) == 1 or (call in cancelled and not ends)


def test_the_link_hears_that_a_wake_up_ends() -> None:
    """It seals what was said then; without it every call would wait for one more wake-up."""
    stage = Stage()
    before = stage.link.drained
    stage.core.step(stage.now_ns, Drained())
    assert stage.link.drained == before + 1
