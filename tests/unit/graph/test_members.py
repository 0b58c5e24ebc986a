"""Who counts: who belongs by the configuration, or has not said good-bye; being silent changes nothing."""

from __future__ import annotations

from typing import Any

from chaplain.core import Woken
from chaplain.gossip.events import MemberChanged, MemberState, MemberView
from chaplain.graph.messages.event import confirm_label
from chaplain.graph.messages.peer import Confirmation, EventBatch, Inv, Item
from chaplain.units import SECOND_NS
from tests.unit.graph.graph_stage import START_NS, Node, Stage, identity, left, make


def keys(*numbers: int) -> tuple[bytes, ...]:
    return tuple(identity(number).key for number in numbers)


def test_event_is_not_read_while_others_are_silent():
    stage = Stage(3)
    stage.part({1})
    node = stage.nodes[1]
    for number in (2, 3):
        node.step(stage.now_ns, left(number))
    stage.append(1, b"x")
    stage.run(5 * SECOND_NS)
    assert not node.model.is_read(0)
    node.start(stage.now_ns)
    assert not node.model.is_read(0)
    stage.heal()
    stage.run(5 * SECOND_NS)
    assert all(node.model.is_read(0) for node in stage.nodes.values())


def test_fewer_confirmations_are_needed_after_members_leave():
    stage = Stage(5)
    stage.part({1, 2})
    stage.append(1, b"x")
    stage.run(SECOND_NS)
    node = stage.nodes[1]
    assert not node.model.is_read(0)
    for number in (3, 4, 5):
        node.step(stage.now_ns, left(number, graceful=True))
    assert node.core.context.read_at == 1
    assert node.model.is_read(0)


def configured(*numbers: int, of: int, **settings: Any) -> tuple[Node, list[tuple[bytes, ...]]]:
    """Node 1 of so many founders, and the list of who belongs, of which the last entry is the newest."""
    lists = [keys(*numbers)]
    return Node(1, of, cluster_members=lambda: lists[-1], **settings), lists


def test_configuration_determines_the_confirmations_for_read():
    node, lists = configured(1, 2, 3, of=3)
    event = make(2, b"x")
    node.enter(2)
    node.hear(START_NS, 2, EventBatch((Item(event.raw),)))
    assert node.core.context.read_at == 1
    lists.append(keys(1, 2, 3, 4, 5))
    node.hear(START_NS, 2, EventBatch((Item(make(2, b"y", event).raw),)))
    assert node.core.context.read_at == 2
    assert [node.model.is_read(number) for number in (0, 1)] == [True, False]
    node.step(START_NS, left(4, graceful=True))
    node.step(START_NS, left(5, graceful=True))
    assert not node.model.is_read(1), "whoever only stopped still belongs"
    lists.append(keys(1, 2, 3))
    node.step(START_NS + SECOND_NS, Woken())
    assert node.model.is_read(1)


def test_removed_member_does_not_count_after_a_restart():
    stage = Stage(3)
    stage.append(1, b"x")
    stage.run(SECOND_NS)
    stage.part({1})
    stage.append(1, b"y")
    node = stage.nodes[1]
    assert not node.model.is_read(1)
    node.cluster_members = lambda: keys(1)
    node.start(stage.now_ns)
    stage.append(1, b"z")
    assert node.model.is_read(2)


def test_confirmation_of_a_removed_member_does_not_count():
    node, lists = configured(1, 2, 3, 4, 5, 6, 7, of=7)
    event = make(2, b"x")
    node.enter(2)
    node.hear(START_NS, 2, EventBatch((Item(event.raw),)))
    word = Confirmation(identity(7).key, event.id, identity(7).sign(confirm_label("demo"), event.id))
    node.hear(START_NS, 2, Inv("notes", (word,)))
    assert not node.model.is_read(0), "ours, and that of 7, but three are needed"
    lists.append(keys(1, 2, 3, 4, 5))
    node.step(START_NS, Woken())
    assert not node.model.is_read(0), "two are needed, and 7 is nobody now"
    lists.append(keys(1, 2, 3))
    node.step(START_NS, Woken())
    assert node.model.is_read(0)


def test_node_not_yet_listed_counts_all_nodes_that_it_meets():
    """One that joins has a list as old as its log: the past is not to be hidden from it by a single founder."""
    node, lists = configured(2, of=0)
    assert node.core.context.read_at == 1
    for number in (3, 4, 5):
        alive = MemberView(identity(number).identifier, "", identity(number).key, 1, MemberState.ALIVE)
        node.step(START_NS, MemberChanged(alive, None))
    assert node.core.context.read_at == 2
    lists.append(keys(1, 2, 3))
    node.step(START_NS, Woken())
    assert node.core.context.read_at == 1
