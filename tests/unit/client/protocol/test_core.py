"""What the client core does, step by step, with nodes in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaplain.client.api import sql_calls
from chaplain.client.protocol.events import Connect, Failure, Raised, Returned, Settings
from chaplain.client_service.messages import (
    AskQuestion,
    ClientRequest,
    Done,
    Failed,
    FireEvent,
    GetMembers,
    GetStatus,
    JoinAPool,
    ListenEvents,
    LookUp,
    RotateKeys,
    ShoutToPool,
    Started,
)
from chaplain.core import Drained, Stopping
from chaplain.wire import command
from chaplain.wire.command import Alive
from chaplain.wire.parcel import Layer
from tests.unit.client.client_stage import SECOND_NS, PlainNode, Stage, up


def test_client_keeps_three_sessions_open() -> None:
    stage = up()
    assert len(stage.core._connections.sessions) == 3
    assert len(stage.dialled) == 3


def test_connect_returns_when_the_first_session_is_open() -> None:
    stage = Stage()
    stage.give(Connect(1, SECOND_NS))
    assert stage.of(1) == []
    stage.run(0.001)
    [returned] = stage.of(1)
    assert isinstance(returned, Returned)
    assert returned.payload.decode() in stage.nodes


def test_answers_are_matched_to_their_calls() -> None:
    stage = up()
    stage.call(GetStatus(1))
    stage.call(GetMembers(2))
    stage.reply(stage.serving(), Done(2), b"[]")
    stage.reply(stage.serving(), Done(1), b"{}")
    assert stage.outcomes == [Returned(2, b"[]"), Returned(1, b"{}")]


def test_repeated_answer_is_delivered_once() -> None:
    stage = up()
    stage.call(GetStatus(1))
    stage.reply(stage.serving(), Done(1), b"{}")
    stage.reply(stage.serving(), Done(1), b"{}")
    assert len(stage.of(1)) == 1


def test_refusal_contains_the_reason() -> None:
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


def test_call_refused_by_a_non_executor_moves_to_another_node() -> None:
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


def test_call_without_any_executor_fails_when_all_nodes_refused() -> None:
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


def test_call_waits_for_another_executor_and_asks_it_when_it_connects() -> None:
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


def test_call_that_waits_for_an_executor_in_vain_names_the_nodes() -> None:
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


def test_query_without_answer_names_possible_causes_and_remedies() -> None:
    for call, local in ((1, False), (2, True)):
        stage = up()
        stage.give(sql_calls.query("main", "select 1", None, 0, local).build(call, 8 * SECOND_NS))
        stage.run(9)
        [raised] = stage.outcomes
        assert isinstance(raised, Raised)
        assert raised.failure is Failure.UNREACHABLE
        assert "gave no answer within 8 s" in raised.reason
        told = ("a majority of the serializers", "`chaplain cluster status`", "local=True", "--local")
        assert [word in raised.reason for word in told] == [not local] * 4


def test_command_numbers_start_at_two_and_wrap() -> None:
    stage = up()
    node = stage.serving()
    for call in (1, 2):
        stage.call(GetStatus(call))
    assert node.sequences == [2, 3]
    stage.core._connections.sessions[node.instance]._sequence = 65_534
    for call in (3, 4, 5):
        stage.call(GetStatus(call))
    assert node.sequences[2:] == [65_535, 0, 1]


def test_payload_is_sent_after_the_request_body() -> None:
    stage = up()
    stage.call(ShoutToPool(5, "chat"), b"\x00hi")
    assert stage.serving().requests == [(ShoutToPool(5, "chat"), b"\x00hi")]


def test_call_before_the_first_session_waits_for_it() -> None:
    stage = Stage()
    stage.call(GetStatus(1))
    stage.run(0.001)
    assert stage.serving().requests == [(GetStatus(1), b"")]


def test_unreachable_cluster_fails_within_the_timeout_and_names_endpoints() -> None:
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


def test_client_refused_by_all_nodes_fails_at_once_with_the_reason() -> None:
    stage = Stage()
    for node in stage.nodes.values():
        node.refusal = "this client is not registered"
    stage.give(Connect(1, 60 * SECOND_NS))
    stage.run(1)
    [raised] = stage.of(1)
    assert isinstance(raised, Raised)
    assert raised.failure is Failure.REFUSED
    assert "this client is not registered" in raised.reason


def test_node_that_refuses_only_at_its_start_is_tried_again() -> None:
    stage = Stage(1)
    [node] = stage.nodes.values()
    node.refusal = "unknown client"
    stage.give(Connect(1, 10 * SECOND_NS))
    stage.run(0.01)
    node.refusal = ""
    stage.run(1)
    assert isinstance(stage.of(1)[0], Returned)


def test_client_refused_by_one_node_uses_the_others() -> None:
    stage = Stage()
    first = next(iter(stage.nodes.values()))
    first.refusal = "another key"
    stage.give(Connect(1, SECOND_NS))
    stage.run(1)
    assert isinstance(stage.of(1)[0], Returned)
    assert len(stage.core._connections.sessions) == 2


def test_read_call_moves_to_another_session_when_its_session_ends() -> None:
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


def test_call_with_effect_is_never_repeated_after_its_session_ended() -> None:
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


def test_unsent_call_with_effect_fails_as_unreachable_instead_of_unknown() -> None:
    stage = Stage()
    for node in stage.nodes.values():
        node.up = False
    stage.call(FireEvent(1, "deployed"), timeout_s=1)
    stage.run(2)
    [raised] = stage.of(1)
    assert isinstance(raised, Raised)
    assert raised.failure is Failure.UNREACHABLE


def test_calls_above_the_bound_fail_as_busy_before_they_are_sent() -> None:
    stage = up(settings=Settings(calls_max=2))
    for call in (1, 2, 3):
        stage.call(GetStatus(call))
    assert len(stage.serving().requests) == 2
    [raised] = stage.outcomes
    assert isinstance(raised, Raised)
    assert (raised.call, raised.failure) == (3, Failure.BUSY)


def test_call_that_does_not_fit_into_the_queue_fails_as_busy() -> None:
    stage = up()
    stage.link.full = True
    stage.call(FireEvent(1, "x"))
    [raised] = stage.outcomes
    assert isinstance(raised, Raised)
    assert raised.failure is Failure.BUSY


def test_stop_ends_all_calls_and_dials() -> None:
    stage = up()
    stage.call(GetStatus(1))
    stage.call(FireEvent(2, "x"))
    stage.give(Stopping())
    stage.call(GetStatus(3))
    kinds = {outcome.call: outcome.failure for outcome in stage.outcomes if isinstance(outcome, Raised)}
    assert kinds == {1: Failure.CLOSED, 2: Failure.UNKNOWN, 3: Failure.CLOSED}
    assert all(node.dial is None for node in stage.nodes.values())
    assert stage.core.deadline() is None


def test_two_endpoints_of_one_node_share_one_session() -> None:
    stage = Stage(2)
    for node in stage.nodes.values():
        node.instance = b"the same"
    stage.run(0.01)
    assert len(stage.core._connections.sessions) == 1
    assert "it is the same node as" in stage.core._endpoints.describe()


def test_waiting_call_is_refused_when_any_node_refused_the_client() -> None:
    stage = Stage(2)
    refuses, down = stage.nodes.values()
    refuses.refusal, down.up = "unknown client", False
    stage.call(GetStatus(1), timeout_s=1)
    stage.run(1.1)
    [raised] = stage.of(1)
    assert isinstance(raised, Raised)
    assert raised.failure is Failure.REFUSED


def test_unsent_call_with_effect_fails_as_closed_when_the_client_closes() -> None:
    stage = Stage(1)
    stage.call(FireEvent(1, "x"))
    stage.give(Stopping())
    [raised] = stage.of(1)
    assert isinstance(raised, Raised)
    assert raised.failure is Failure.CLOSED


@given(st.binary(max_size=200), st.booleans())
def test_hostile_bytes_raise_nothing_and_keep_sessions(noise: bytes, wrapped: bool) -> None:
    stage = up()
    stage.call(JoinAPool(1, "chat"))
    frame = command.encode(Alive(2, noise)) if wrapped else noise
    stage.frame(stage.serving(), frame)
    stage.run(1)
    assert len(stage.core._connections.sessions) == 3


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


def test_core_reports_the_end_of_each_wake_up_to_the_link() -> None:
    """It seals what was said then; without it every call would wait for one more wake-up."""
    stage = Stage()
    before = stage.link.drained
    stage.core.step(stage.now_ns, Drained())
    assert stage.link.drained == before + 1
