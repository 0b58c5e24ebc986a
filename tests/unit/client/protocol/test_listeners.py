"""What a client that listens hears, step by step, with nodes in memory."""

from __future__ import annotations

from chaplain.client.protocol.events import Failure, ListeningBegan, Raised, Yielded
from chaplain.client_service.messages import Cancel, EventItem, GetStatus, JoinAPool, ListenEvents, PoolItem, Started
from chaplain.core import Stopping
from tests.unit.client.client_stage import up


def test_subscription_starts_once_and_yields_items() -> None:
    stage = up()
    node = stage.serving()
    stage.call(JoinAPool(1, "chat"), timeout_s=1)
    stage.reply(node, Started(1))
    item = PoolItem(1, "chat", 4, "alice", 2)
    stage.reply(node, item, b"hi")
    stage.run(30)
    assert stage.outcomes == [ListeningBegan(1), Yielded(1, item, b"hi", 2, moved=False)]


def test_subscription_that_does_not_start_fails_and_is_cancelled() -> None:
    stage = up()
    stage.call(JoinAPool(1, "chat"), timeout_s=1)
    stage.run(1.1)
    assert [type(outcome) for outcome in stage.outcomes] == [Raised]
    assert stage.serving().requests[-1] == (Cancel(1), b"")


def test_subscription_ends_with_closed_when_the_client_stops() -> None:
    stage = up()
    stage.call(JoinAPool(1, "chat"))
    stage.reply(stage.serving(), Started(1))
    stage.give(Stopping())
    assert stage.outcomes == [ListeningBegan(1), Raised(1, Failure.CLOSED, "join 'chat': the client was closed")]


def test_subscription_moves_to_another_node_and_reports_it_once() -> None:
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
        ListeningBegan(1),
        Yielded(1, item, b"a", 0, moved=True),
        Yielded(1, item, b"b", 0, moved=False),
    ]


def test_subscription_survives_a_time_without_any_node() -> None:
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
    assert stage.outcomes == [ListeningBegan(1)]


def test_event_received_from_two_nodes_is_yielded_once() -> None:
    stage = up()
    stage.call(ListenEvents(1))
    item = EventItem(1, "ab", "deployed", 4)
    stage.reply(stage.serving(), Started(1))
    stage.reply(stage.serving(), item, b"v2")
    stage.kill(stage.serving())
    stage.reply(stage.serving(), Started(1))
    stage.reply(stage.serving(), item, b"v2")
    assert [type(outcome) for outcome in stage.outcomes] == [ListeningBegan, Yielded]


def test_losses_of_the_link_are_added_to_the_next_item() -> None:
    stage = up()
    node = stage.serving()
    stage.call(JoinAPool(1, "chat"))
    stage.reply(node, Started(1))
    stage.link.lost = 3
    item = PoolItem(1, "chat", 4, "alice", 2)
    stage.reply(node, item)
    assert stage.of(1)[-1] == Yielded(1, item, b"", 5, moved=False)


def test_cancelled_subscription_is_ended_at_the_node() -> None:
    stage = up()
    node = stage.serving()
    stage.call(JoinAPool(1, "chat"))
    stage.reply(node, Started(1))
    stage.cancel(1)
    assert node.requests[-1] == (Cancel(1), b"")
    stage.reply(node, PoolItem(1, "chat", 4, "alice", 0))
    assert stage.outcomes == [ListeningBegan(1)]


def test_cancelling_an_unknown_call_has_no_effect() -> None:
    stage = up()
    stage.cancel(99)
    assert stage.outcomes == []


def test_item_of_another_kind_is_reported_and_not_yielded() -> None:
    stage = up()
    node = stage.serving()
    stage.call(JoinAPool(1, "chat"))
    stage.call(GetStatus(2))
    stage.reply(node, PoolItem(1, "other", 4, "alice", 0))
    stage.reply(node, EventItem(1, "ab", "x", 4))
    stage.reply(node, Started(2))
    assert stage.outcomes == []
    assert [(report.event, report.peer) for report in stage.reports] == [("malformed", node.endpoint)] * 3
