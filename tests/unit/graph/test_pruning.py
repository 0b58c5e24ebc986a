"""Pruning: only below what every member has; who was away goes on above the floor; one liar hides nothing."""

from __future__ import annotations

import pytest

from chaplain.graph.messages.client import ReadArrivals, ReadSnapshot
from chaplain.graph.messages.event import decode
from chaplain.graph.messages.peer import EventBatch, Item, Leaves, SyncEvent
from chaplain.units import MILLISECOND_NS, SECOND_NS
from tests.unit.graph.graph_stage import Stage, left, make, peer

KEEP = 40


def written(stage: Stage, count: int, writers: tuple[int, ...] = (1, 2, 3)) -> None:
    for number in range(count):
        stage.append(writers[number % len(writers)], b"%d " % number + bytes(300))
        stage.run(10 * MILLISECOND_NS)


@pytest.fixture(scope="module")
def pruned() -> Stage:
    stage = Stage(3, keep_events=KEEP, segment_bytes=16 * 1024)
    written(stage, 150)
    stage.run(6 * SECOND_NS)
    return stage


def test_old_events_are_pruned_and_new_ones_kept(pruned):
    for node in pruned.nodes.values():
        assert node.model.floor > 100
        assert len([name for name in node.files if name.endswith(".segment")]) <= 8  # of 19
    page = pruned.pages(1, ReadSnapshot("notes"))
    ids = [decode(row.raw).id for row in page.rows]
    assert KEEP <= len(ids) < 100
    arrived = pruned.pages(2, ReadArrivals("notes"))
    assert len(arrived.rows) >= KEEP
    seen = [decode(row.raw) for row in arrived.rows]
    assert min(event.height for event in seen) >= pruned.nodes[2].model.floor


def test_restart_continues_above_the_floor(pruned):
    node = pruned.nodes[2]
    floor = node.model.floor
    node.start(pruned.now_ns)
    assert node.model.floor == floor
    assert len(node.model) < 100
    pruned.connect(2)
    written(pruned, 5)
    pruned.run(3 * SECOND_NS)
    assert len({node.model.fingerprint for node in pruned.nodes.values() if node.model.floor == floor}) <= 1
    assert not any(node.model.forks for node in pruned.nodes.values())


def test_new_node_adopts_the_floor_of_the_others(pruned):
    node = pruned.nodes[3]
    node.files.clear()
    node.start(pruned.now_ns)
    pruned.connect(3)
    pruned.run(8 * SECOND_NS)
    assert node.model.floor > 100
    top = max(node.model.height_of(n) for n in node.model.leaves)
    assert top == max(pruned.nodes[1].model.height_of(n) for n in pruned.nodes[1].model.leaves)
    assert node.core.counts["floors_taken_over"] == 1
    pruned.append(3, b"from the new one")
    pruned.run(SECOND_NS)
    assert any(pruned.nodes[1].model.author_of(n) == peer(3).key for n in pruned.nodes[1].model.leaves)


def test_reader_overtaken_by_pruning_gets_dropped():
    stage = Stage(3, keep_events=KEEP, page_events_max=10)
    written(stage, 30)
    stage.run(SECOND_NS)
    begun = stage.pages(1, ReadSnapshot("notes"))
    last = decode(begun.rows[-1].raw)
    place = {"leaves": begun.leaves, "log": begun.log, "limit": begun.limit}
    further = ReadSnapshot("notes", **place, after_height=last.height, after_id=last.id)
    assert len(stage.pages(1, further).rows) == 10
    written(stage, 90)
    stage.run(6 * SECOND_NS)
    floor = stage.nodes[1].model.floor
    assert last.height + 1 < floor
    written(stage, 1)
    lost = stage.ask(1, further)
    assert (lost.kind, lost.reason) == (
        "dropped",
        f"what stands behind height {last.height} in 'notes' was pruned before it was read: read anew, from {floor} on",
    )
    stage.nodes[1].start(stage.now_ns)
    assert stage.ask(2, further).kind == "dropped"
    fresh = stage.pages(2, ReadSnapshot("notes"))
    assert decode(fresh.rows[0].raw).height == stage.nodes[2].model.floor


def test_pruning_waits_while_a_member_may_lack_an_event():
    stage = Stage(3, keep_events=KEEP)
    stage.part({3})
    written(stage, 80, (1, 2))
    stage.run(6 * SECOND_NS)
    for number in (1, 2):
        stage.nodes[number].step(stage.now_ns, left(3))
    stage.run(6 * SECOND_NS)
    assert stage.nodes[1].model.floor == 0
    assert stage.nodes[1].core.status()["graph"]["notes"]["held_by"] == [peer(3).identifier]
    for number in (1, 2):
        stage.nodes[number].step(stage.now_ns, left(3, graceful=True))
    stage.run(6 * SECOND_NS)
    assert stage.nodes[1].model.floor > 20
    assert stage.nodes[1].core.status()["graph"]["notes"]["held_by"] == []


def test_member_silent_for_long_receives_every_event():
    """It was taken for one that had left: what it lacked was dropped, and the author seemed to have forked."""
    stage = Stage(3, keep_events=KEEP // 5)
    stage.append(1, b"before")
    stage.run(3 * SECOND_NS)
    stage.part({3})
    for number in (1, 2):
        stage.nodes[number].step(stage.now_ns, left(3))
    written(stage, 60, (1,))
    stage.run(6 * SECOND_NS)
    stage.heal()
    stage.run(6 * SECOND_NS)
    assert [len(node.model) for node in stage.nodes.values()] == [61, 61, 61]
    assert not any(node.model.forks for node in stage.nodes.values())
    written(stage, 10, (1,))
    stage.run(6 * SECOND_NS)
    assert all(node.model.floor > 50 for node in stage.nodes.values())


def test_author_with_a_pruned_past_is_not_flagged_as_forked():
    stage = Stage(3, keep_events=KEEP // 5)
    stage.append(1, b"before")
    stage.run(3 * SECOND_NS)
    stage.part({3})
    for number in (1, 2):
        stage.nodes[number].step(stage.now_ns, left(3, graceful=True))
    written(stage, 60, (1,))
    stage.run(6 * SECOND_NS)
    stage.heal()
    stage.run(6 * SECOND_NS)
    node = stage.nodes[3]
    assert node.core.counts["floors_taken_over"] == 1
    assert not node.model.forks
    stage.append(1, b"after")
    stage.run(SECOND_NS)
    assert not node.model.forks
    node.start(stage.now_ns)
    assert not node.model.forks


def test_one_member_alone_cannot_raise_a_floor():
    stage = Stage(5)
    event_id = stage.append(1, b"x")
    stage.run(100 * MILLISECOND_NS)
    node = stage.nodes[2]
    node.hear(stage.now_ns, 3, SyncEvent((Leaves("notes", 1 << 31, 1, (event_id,)),)))
    assert node.model.floor == 0
    orphan = make(3, b"z", make(3, b"y"))
    node.hear(stage.now_ns, 3, EventBatch((Item(orphan.raw),)))
    assert node.model.find(orphan.id) < 0
    late = make(4, b"high", None, *[make(4, b"gone", stream="new")], stream="new")
    node.hear(stage.now_ns, 4, EventBatch((Item(late.raw),)))
    assert node.core.streams["new"].model.find(late.id) < 0
    for number in (3, 4):
        told = SyncEvent((Leaves("new", 7, 1, (late.id,)),))
        node.hear(stage.now_ns, number, told)
    assert node.core.streams["new"].model.floor == 7
    assert node.core.streams["new"].model.find(late.id) == 0
