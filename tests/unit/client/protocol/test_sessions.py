"""Which sessions the client core keeps, loses and gives up, step by step, with nodes in memory."""

from __future__ import annotations

from chaplain.client.protocol.events import Connect, Failure, Measure, Raised, Returned
from chaplain.client_service.messages import Done, FireEvent, GetStatus
from chaplain.wire import command
from chaplain.wire.command import Ping
from tests.unit.client.client_stage import SECOND_NS, Stage, up


def test_third_node_replaces_a_lost_session() -> None:
    stage = up()
    stage.kill(stage.serving())
    stage.run(0.5)
    up_at = {session.endpoint for session in stage.core._connections.sessions.values()}
    assert up_at == {endpoint for endpoint, node in stage.nodes.items() if node.up}


def test_only_node_is_dialled_again_after_it_was_lost() -> None:
    stage = up(1)
    node = stage.serving()
    stage.kill(node)
    stage.call(GetStatus(1))
    stage.run(1)
    node.up = True
    stage.run(3)
    assert node.requests == [(GetStatus(1), b"")]


def test_answer_from_a_session_that_the_call_left_is_ignored() -> None:
    stage = up()
    first, spare = stage.serving(), None
    stage.call(GetStatus(1))
    spare = next(node for node in stage.nodes.values() if node.dial is not None and node is not first)
    stage.reply(spare, Done(1), b"not asked")
    assert stage.outcomes == []


def test_silent_node_is_pinged_and_then_given_up() -> None:
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


def test_node_that_answers_pings_is_kept() -> None:
    stage = up()
    first = stage.serving()
    stage.run(60)
    assert stage.serving() is first
    assert 20 <= first.pings <= 31


def test_ping_returns_the_round_trip_time() -> None:
    stage = up()
    node = stage.serving()
    node.mute = True
    stage.give(Measure(1, SECOND_NS))
    stage.now_ns += 1500
    stage.frame(node, command.encode(command.DecenAck(2)))
    assert stage.of(1) == [Returned(1, (1500).to_bytes(8, "big"))]


def test_ping_moves_with_its_session() -> None:
    stage = up()
    first = stage.serving()
    first.mute = True
    stage.give(Measure(1, 10 * SECOND_NS))
    stage.kill(first)
    assert isinstance(stage.of(1)[0], Returned)


def test_ping_of_the_node_is_answered() -> None:
    stage = up()
    node = stage.serving()
    stage.frame(node, command.encode(Ping(3)))
    assert node.sequences == [2]


def test_dial_without_greeting_is_given_up() -> None:
    stage = Stage()
    silent = list(stage.core._endpoints._records)[:2]
    for endpoint in silent:
        stage.nodes[endpoint].mute = True
    stage.give(Connect(1, 10 * SECOND_NS))
    stage.run(3.5)
    assert isinstance(stage.of(1)[0], Returned)


def test_node_that_accepts_the_connection_without_greeting_is_named() -> None:
    stage = Stage(1)
    next(iter(stage.nodes.values())).mute = True
    stage.give(Connect(1, SECOND_NS))
    stage.run(1.1)
    [raised] = stage.of(1)
    assert isinstance(raised, Raised)
    assert "does not greet us" in raised.reason


def test_timeout_names_the_node_that_did_not_answer() -> None:
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
