"""The graph step by step: what is told to whom, when it is acknowledged, and how nodes become equal."""

from __future__ import annotations

import pytest

from chaplain.core import Halt, PersistFailed, Report, Requested, Withdrawn, Woken
from chaplain.graph.messages import client
from chaplain.graph.messages.client import Append, ReadArrivals, ReadSnapshot, decode_request
from chaplain.graph.messages.event import SignedEvent, confirm_label, decode
from chaplain.graph.messages.peer import (
    AGAIN,
    FIRST,
    Confirmation,
    EventBatch,
    Fetched,
    FetchMissing,
    GetData,
    Inv,
    Item,
    Leaves,
    SyncEvent,
)
from chaplain.units import MILLISECOND_NS, SECOND_NS
from tests.unit.graph.graph_stage import START_NS, Node, Stage, identity, make


def test_append_is_acknowledged_and_broadcast_only_after_sync():
    node = Node(1, 3)
    node.enter(2, 3)
    node.heard()
    node.stalled = True
    node.step(START_NS, Requested(1, "ann", client.encode(Append("notes")), b"hello"))
    assert not node.settled
    assert not node.heard()
    node.step(START_NS, node.synced())
    assert not node.settled[1].kind
    said = node.heard()
    assert [type(one) for one in said] == [EventBatch, EventBatch]
    event = decode(said[0].items[0].raw)
    assert (event.content, event.writer, said[0].flags) == (b"hello", "ann", FIRST)


def test_failed_disk_halts_the_node():
    node = Node(1, 3)
    node.step(START_NS, PersistFailed(1, "EIO"))
    assert [type(one) for one in node.others] == [Halt]


def test_event_is_confirmed_only_after_sync():
    node, event = Node(1, 3), make(2, b"x")
    node.enter(2, 3)
    node.heard()
    node.stalled = True
    node.hear(START_NS, 2, EventBatch((Item(event.raw),), FIRST))
    assert node.core.deadline() != START_NS + 5 * MILLISECOND_NS
    node.step(START_NS, node.synced())

    node.step(START_NS + 5 * MILLISECOND_NS, Woken())
    words = [word for message in node.heard() if isinstance(message, Inv) for word in message.confirmations]
    assert {word.event for word in words} == {event.id}
    assert {word.member for word in words} == {identity(1).key}


def test_event_reaches_all_members_and_becomes_read():
    stage = Stage(3)
    event_id = stage.append(1, b"hello")
    stage.run(20 * MILLISECOND_NS)
    for node in stage.nodes.values():
        assert node.model.find(event_id) == 0
        assert node.model.is_read(0)
        assert node.core.status()["graph"]["notes"]["read"] == 1


def test_minority_of_members_cannot_make_an_event_read():
    stage = Stage(7)
    stage.part({1, 2, 3})
    stage.append(1, b"few")
    stage.run(3 * SECOND_NS)
    assert not stage.nodes[1].model.is_read(0)
    stage.heal()
    stage.run(5 * SECOND_NS)
    assert all(node.model.is_read(0) for node in stage.nodes.values())


def test_confirmations_count_once_per_member_and_never_for_the_author():
    node, event = Node(1, 7), make(2, b"x")
    node.enter(2, 3)
    node.hear(START_NS, 2, EventBatch((Item(event.raw),)))
    word = identity(3).sign(confirm_label("demo"), event.id)
    own = identity(2).sign(confirm_label("demo"), event.id)
    for _ in range(3):
        words = (Confirmation(identity(3).key, event.id, word), Confirmation(identity(2).key, event.id, own))
        node.hear(START_NS, 3, Inv("notes", words))
    assert node.core.streams["notes"].unread.counts[0] == 2  # ours, and that of 3
    assert not node.model.is_read(0)


def test_confirmation_of_a_missing_event_requests_and_remembers_it():
    node, event = Node(1, 3), make(2, b"x")
    node.enter(2, 3)
    node.heard()
    word = identity(3).sign(confirm_label("demo"), event.id)
    node.hear(START_NS, 3, Inv("notes", (Confirmation(identity(3).key, event.id, word),)))
    assert node.heard() == [GetData("notes", (event.id,))]
    node.hear(START_NS, 3, EventBatch((Item(event.raw),)))
    assert node.core.streams["notes"].unread.has_event(identity(3).key, 0)


def test_orphan_requests_its_parent_and_is_added_after_it():
    node = Node(1, 3)
    node.enter(2)
    node.heard()
    first = make(2, b"1")
    second = make(2, b"2", first)
    third = make(2, b"3", second)
    node.hear(START_NS, 2, EventBatch((Item(third.raw),)))
    assert node.heard() == [GetData("notes", (second.id,))]
    node.hear(START_NS, 2, EventBatch((Item(second.raw),)))
    assert node.heard() == [GetData("notes", (first.id,))]
    node.hear(START_NS, 2, EventBatch((Item(first.raw),)))
    assert [node.model.find(one.id) for one in (first, second, third)] == [0, 1, 2]
    assert len(node.core.admission.orphans) == 0


def test_orphan_far_above_causes_a_fetch():
    line = [make(2, b"0")]
    for number in range(1, 30):
        line.append(make(2, b"%d" % number, line[-1]))
    node = Node(1, 3)
    node.enter(2)
    node.heard()
    node.hear(START_NS, 2, EventBatch((Item(line[-1].raw),)))
    (fetch,) = node.heard()
    assert isinstance(fetch, FetchMissing)
    page = Fetched("notes", fetch.token, 29, True, 0, tuple(Item(one.raw) for one in line[:-1]))
    node.hear(START_NS, 2, page)
    assert len(node.model) == 30


def test_unrequested_page_is_ignored():
    node = Node(1, 3)
    node.enter(2)
    node.hear(START_NS, 2, Fetched("notes", 5, 1, True, 0, (Item(make(2, b"x").raw),)))
    assert "notes" not in node.core.streams


def test_children_of_known_leaves_are_sent():
    stage = Stage(2)
    first = stage.append(1, b"1")
    stage.run(20 * MILLISECOND_NS)
    node = stage.nodes[1]
    stage.part({1})
    second = stage.append(1, b"2")
    node.enter(2)
    node.heard()

    node.hear(stage.now_ns, 2, SyncEvent((Leaves("notes", 0, 1, (first,)),)))
    (children,) = node.heard()
    assert [decode(item.raw).id for item in children.items] == [second]


@pytest.mark.parametrize("sides", [({1, 2}, 40, 3), ({1}, 300, 0), ({3}, 0, 300)])
def test_both_sides_of_a_partition_become_equal(sides):
    side, left, right = sides
    stage = Stage(3, page_events_max=32, push_max=4)
    for number in range(10):
        stage.append(1 + number % 3, b"before %d" % number)
        stage.run(10 * MILLISECOND_NS)
    stage.part(side)
    for number in range(left):
        stage.append(min(side), b"left %d" % number)
    for number in range(right):
        stage.append(max(stage.nodes.keys() - side), b"right %d" % number)
    stage.run(400 * SECOND_NS)  # longer than the validity window
    stage.heal()
    stage.run(5 * SECOND_NS)
    orders = [[node.model.id_of(n) for n in node.model.ordered()] for node in stage.nodes.values()]
    assert orders[0] == orders[1] == orders[2]
    assert len(orders[0]) == 10 + left + right
    assert all(len(node.model.read_order) == len(node.model) for node in stage.nodes.values())
    joined = stage.append(1, b"after")
    assert len(stage.nodes[1].model.leaves) == 1
    assert stage.nodes[1].model.id_of(next(iter(stage.nodes[1].model.leaves))) == joined


def test_event_that_was_away_with_its_node_is_accepted_by_sync():
    node, old = Node(1, 3), make(2, b"old", time_ns=START_NS - 3600 * SECOND_NS)
    node.enter(2)
    node.hear(START_NS, 2, EventBatch((Item(old.raw),), AGAIN))
    assert node.model.find(old.id) == 0


def _refused_at_first(node: Node) -> SignedEvent:
    """An event that is too old, after its author's first broadcast of it."""
    old = make(2, b"old", time_ns=START_NS - 3600 * SECOND_NS)
    node.enter(2, 3)
    node.hear(START_NS, 2, EventBatch((Item(old.raw),), FIRST))
    assert not node.core.streams
    assert node.core.counts["refused_timestamp_too_far_in_the_past"] == 1
    node.heard()
    return old


def test_too_old_event_stays_refused_when_its_author_sends_it_again():
    node = Node(1, 3)
    old = _refused_at_first(node)
    child = make(2, b"child", old, time_ns=START_NS - 3600 * SECOND_NS)
    for flags in (AGAIN, 0, FIRST):
        node.hear(START_NS, 2, EventBatch((Item(old.raw), Item(child.raw)), flags))
    node.hear(START_NS + SECOND_NS, 2, SyncEvent((Leaves("notes", 0, 2, (child.id,)),)))
    assert not node.heard(), "the node requests neither"
    assert not node.core.streams
    assert (len(node.core.admission.refused), len(node.core.admission.orphans)) == (2, 0)


def test_too_old_event_is_accepted_from_another_member_that_has_it():
    node = Node(1, 3)
    old = _refused_at_first(node)
    node.hear(START_NS, 3, SyncEvent((Leaves("notes", 0, 1, (old.id,)),)))
    [fetch] = node.heard()
    assert isinstance(fetch, FetchMissing)
    node.hear(START_NS, 3, Fetched("notes", fetch.token, 1, True, 0, (Item(old.raw),)))
    assert node.model.find(old.id) == 0
    assert not len(node.core.admission.refused)


def test_valid_event_brings_the_too_old_event_that_it_follows():
    node = Node(1, 3)
    old = _refused_at_first(node)
    late = make(2, b"late", old, time_ns=START_NS)
    node.hear(START_NS, 2, EventBatch((Item(late.raw),), FIRST))
    [request] = node.heard()
    assert request == GetData("notes", (old.id,))
    node.hear(START_NS, 2, EventBatch((Item(old.raw),)))
    assert [node.model.find(one.id) for one in (old, late)] == [0, 1]


def test_node_that_was_paused_refuses_an_old_broadcast_once_and_accepts_its_repetition():
    node, event = Node(1, 2), make(2, b"waited in a queue", time_ns=START_NS)
    node.enter(2)
    resumed_ns = START_NS + 3600 * SECOND_NS
    node.hear(resumed_ns, 2, EventBatch((Item(event.raw),), FIRST))
    assert not node.core.streams
    node.hear(resumed_ns + SECOND_NS, 2, EventBatch((Item(event.raw),), AGAIN))
    assert node.model.find(event.id) == 0


def test_event_that_its_own_disk_kept_back_is_no_first_broadcast():
    node = Node(1, 2)
    node.enter(2)
    node.stalled = True
    node.step(START_NS, Requested(1, "ann", client.encode(client.Append("notes")), b"late"))
    node.heard()
    node.step(START_NS + 3600 * SECOND_NS, node.synced())
    [batch] = [one for one in node.heard() if isinstance(one, EventBatch)]
    assert (len(batch.items), batch.flags) == (1, 0)


def test_events_of_a_node_with_a_clock_behind_stay_with_it_until_it_writes_with_the_right_time():
    stage = Stage(3)
    stage.nodes[2].skew_ns = -3600 * SECOND_NS
    stage.nodes[2].start(stage.now_ns)
    stage.connect(2)
    old = [stage.append(2, b"old %d" % number) for number in range(3)]
    stage.run(30 * SECOND_NS)
    assert not stage.nodes[1].core.streams
    assert not stage.nodes[3].core.streams
    assert not len(stage.nodes[2].model.read_order)
    stage.nodes[2].skew_ns = 0
    stage.nodes[2].start(stage.now_ns)
    stage.connect(2)
    stage.run(10 * SECOND_NS)
    assert not stage.nodes[1].core.streams
    late = stage.append(2, b"in time")
    stage.run(5 * SECOND_NS)
    for node in stage.nodes.values():
        assert all(node.model.is_read(node.model.find(one)) for one in [*old, late])


def test_snapshot_of_read_events_waits_until_the_newest_event_is_read():
    stage = Stage(3)
    first = stage.append(1, b"first")
    node = stage.nodes[1]
    request = client.encode(ReadSnapshot("notes", only_read=True, wait_ns=SECOND_NS))
    node.step(stage.now_ns, Requested(99, "ann", request, b""))
    assert 99 not in node.settled
    stage.run(20 * MILLISECOND_NS)
    page = client.decode_answer(node.settled[99].payload, client.Page)
    assert [decode(row.raw).id for row in page.rows] == [first]


def test_snapshot_of_read_events_waits_at_most_a_second_and_not_for_old_events():
    stage = Stage(3)
    stage.append(1, b"confirmed")
    stage.run(SECOND_NS)
    stage.part({1})
    stage.append(1, b"alone")
    node = stage.nodes[1]
    request = client.encode(ReadSnapshot("notes", only_read=True, wait_ns=30 * SECOND_NS))
    node.step(stage.now_ns, Requested(99, "ann", request, b""))
    assert 99 not in node.settled
    stage.run(SECOND_NS + MILLISECOND_NS)
    page = client.decode_answer(node.settled[99].payload, client.Page)
    assert [decode(row.raw).content for row in page.rows] == [b"confirmed"]
    assert len(stage.pages(1, ReadSnapshot("notes", only_read=True, wait_ns=30 * SECOND_NS)).rows) == 1
    assert len(stage.pages(1, ReadSnapshot("notes")).rows) == 2


def test_max_confirms_decides_how_many_confirmations_make_an_event_read():
    stage = Stage(4, max_confirms=3)
    stage.part({4})
    first = stage.append(1, b"first")
    stage.run(10 * SECOND_NS)
    model = stage.nodes[1].model
    assert stage.nodes[1].core.streams["notes"].unread.counts[0] == 2
    assert not model.is_read(model.find(first))
    stage.heal()
    stage.run(5 * SECOND_NS)
    assert model.is_read(model.find(first))


def test_unread_leaf_is_sent_again_at_each_interval_until_it_is_read():
    node = Node(1, 3, resend_ns=7 * SECOND_NS)
    node.enter(2)
    node.step(START_NS, Requested(1, "ann", client.encode(client.Append("notes")), b"alone"))
    sent_s = []
    for tenth in range(1, 260):
        now_ns = START_NS + tenth * SECOND_NS // 10
        node.step(now_ns, Woken())
        again = [one for one in node.heard() if isinstance(one, EventBatch) and one.flags == AGAIN]
        sent_s += [tenth / 10] * len(again)
    assert [round(when) for when in sent_s] == [0, 7, 14, 21], "at the start it looks for unread events of its log"


def test_first_broadcast_of_a_non_member_is_refused_until_a_member_forwards_it():
    node, event = Node(1, 3), make(9, b"stranger")
    node.enter(2)
    node.hear(START_NS, 2, EventBatch((Item(event.raw),), FIRST))
    assert "notes" not in node.core.streams
    assert node.core.counts["refused_unknown_author"] == 1
    node.hear(START_NS, 2, EventBatch((Item(make(2, b"member").raw),), FIRST))
    assert len(node.model) == 1
    node.hear(START_NS, 2, EventBatch((Item(event.raw),)))
    assert node.model.find(event.id) == 1, "somebody who was a member once may have written it: it comes with a sync"


def test_child_of_a_future_event_waits_with_it_and_is_no_orphan():
    node, event = Node(1, 3, ahead_ns=8 * SECOND_NS), make(2, b"early", time_ns=START_NS + 60 * SECOND_NS)
    child = make(2, b"child", event)
    grandchild = make(2, b"grandchild", child)
    node.enter(2)
    for one in (event, child, grandchild):
        node.hear(START_NS, 2, EventBatch((Item(one.raw),)))
    assert (len(node.core.admission.orphans), len(node.core.admission.future)) == (0, 3)
    assert node.core.counts["orphans"] == 0


@pytest.mark.parametrize("flags", [FIRST, AGAIN, 0])
def test_event_too_far_in_the_future_is_refused_however_often_it_arrives(flags):
    node, event = Node(1, 3, ahead_ns=8 * SECOND_NS), make(2, b"early", time_ns=START_NS + 60 * SECOND_NS)
    child = make(2, b"child", event)
    node.enter(2)
    node.hear(START_NS, 2, EventBatch((Item(child.raw),), flags))  # waits for its parent, then with it
    node.hear(START_NS, 2, EventBatch((Item(event.raw),), flags))
    node.hear(START_NS, 2, EventBatch((Item(event.raw), Item(child.raw)), flags))
    node.heard()
    word = Confirmation(identity(2).key, event.id, identity(2).sign(confirm_label("demo"), event.id))
    node.hear(START_NS + SECOND_NS, 2, Inv("notes", (word,)))
    node.hear(START_NS + 2 * SECOND_NS, 2, SyncEvent((Leaves("notes", 0, 2, (child.id,)),)))
    assert not node.heard()  # neither asked for nor fetched
    assert not any(len(stream.model) for stream in node.core.streams.values())
    assert (len(node.core.admission.orphans), len(node.core.admission.future)) == (0, 2)
    node.hear(START_NS + 52 * SECOND_NS, 2, SyncEvent((Leaves("notes", 0, 2, (child.id,)),)))
    [fetch] = node.heard()
    assert isinstance(fetch, FetchMissing)
    node.hear(
        START_NS + 52 * SECOND_NS, 2, Fetched("notes", fetch.token, 2, True, 0, (Item(event.raw), Item(child.raw)))
    )
    assert [node.model.find(one.id) for one in (event, child)] == [0, 1]
    assert not len(node.core.admission.future)


@pytest.mark.parametrize("ahead_max", [1000, 3])
def test_node_with_a_clock_ahead_has_its_events_delayed_and_none_lost(ahead_max):
    stage = Stage(4, past_ns=8 * SECOND_NS, ahead_ns=8 * SECOND_NS, ahead_max=ahead_max)
    stage.nodes[2].skew_ns = 60 * SECOND_NS
    early = [stage.append(2, b"early %d" % number) for number in range(20)]
    stage.run(SECOND_NS)
    others = [stage.append(number, b"in time") for number in (1, 3, 4)]
    size = stage.run(20 * SECOND_NS)
    for number in (1, 3, 4):
        model = stage.nodes[number].model
        assert all(model.find(one) >= 0 for one in others)
        assert all(model.find(one) < 0 for one in early)
        assert stage.nodes[number].core.counts["fetches"] <= (3 if ahead_max > 20 else 40)
    assert size < (200_000 if ahead_max > 20 else 2_000_000)
    stage.nodes[2].skew_ns = 0  # it is set right; what it signed stays as it is
    stage.nodes[2].start(stage.now_ns)
    stage.connect(2)
    late = stage.append(2, b"late")
    stage.run(5 * SECOND_NS)
    assert all(stage.nodes[number].model.find(late) < 0 for number in (1, 3, 4))
    stage.run(40 * SECOND_NS)
    assert {node.model.fingerprint for node in stage.nodes.values()} == {stage.nodes[2].model.fingerprint}
    assert all(node.model.find(one) >= 0 for node in stage.nodes.values() for one in [*early, *others, late])
    assert all(len(node.model.read_order) == 24 for node in stage.nodes.values())
    assert not sum(node.core.counts["peers_banned"] for node in stage.nodes.values())


def test_restart_keeps_events_and_their_read_state():
    stage = Stage(3, segment_bytes=16 * 1024)
    ids = [stage.append(1 + number % 3, bytes(500)) for number in range(60)]
    stage.run(SECOND_NS)
    node = stage.nodes[2]
    before = [node.model.id_of(n) for n in node.model.ordered()]
    node.start(stage.now_ns)
    assert [node.model.id_of(n) for n in node.model.ordered()] == before
    assert set(before) == set(ids)
    assert len(node.model.read_order) == len(ids)
    assert min(node.core.streams["notes"].unread.counts) >= node.core.context.read_at
    stage.connect(2)
    stage.append(2, b"after")
    stage.run(SECOND_NS)
    assert not stage.nodes[1].model.forks
    assert len(stage.nodes[3].model) == 61


def test_damaged_log_is_repaired_from_other_nodes():
    stage = Stage(3, segment_bytes=64 * 1024)
    for number in range(30):
        stage.append(1 + number % 3, b"%d" % number)
        stage.run(10 * MILLISECOND_NS)
    stage.run(SECOND_NS)
    node = stage.nodes[2]
    name = next(name for name in node.files if name.endswith(".segment"))
    node.files[name][node.files[name].find(node.model.id_of(15))] ^= 1
    node.start(stage.now_ns)
    assert len(node.core.streams["notes"].model) < 30
    [said] = [one for one in node.core.context.out if isinstance(one, Report)]
    assert said.event == "graph: damaged, and what is missing is asked of others"
    assert said.detail["found"].startswith("position ")
    assert said.detail["waiting"] > 0
    stage.connect(2)
    stage.run(5 * SECOND_NS)
    assert len(node.model) == 30
    node.start(stage.now_ns)
    assert len(node.model) == 30


def test_snapshot_is_equal_on_all_nodes_in_the_agreed_order():
    stage = Stage(3, page_events_max=4)
    for number in range(20):
        stage.append(1 + number % 3, b"%d" % number)
    stage.run(SECOND_NS)
    order = [stage.nodes[1].model.id_of(n) for n in stage.nodes[1].model.ordered()]
    got: list[bytes] = []
    request = ReadSnapshot("notes")
    for number in (1, 2, 3, 1, 2, 3, 1, 2, 3):
        page = stage.pages(number, request)
        got += [decode(row.raw).id for row in page.rows]
        stage.append(number, b"later")  # is no part of the snapshot
        stage.run(50 * MILLISECOND_NS)
        if page.done:
            break
        last = decode(page.rows[-1].raw)
        request = ReadSnapshot(
            "notes", leaves=page.leaves, log=page.log, limit=page.limit, after_height=last.height, after_id=last.id
        )
    assert got == order


def test_follower_waits_for_new_events_and_for_a_lagging_node():
    stage = Stage(3)
    first = stage.append(1, b"1")
    page = stage.pages(1, ReadArrivals("notes"))
    assert [decode(row.raw).id for row in page.rows] == [first]
    node = stage.nodes[1]
    again = ReadArrivals("notes", leaves=(first,), log=page.log, position=page.position, wait_ns=SECOND_NS)
    node.step(stage.now_ns, Requested(77, "bob", client.encode(again), b""))
    assert 77 not in node.settled
    second = stage.append(1, b"2")
    assert [decode(row.raw).id for row in client.decode_answer(node.settled[77].payload, client.Page).rows] == [second]
    # Elsewhere neither has arrived yet: what is known there is nothing, and more to come.
    elsewhere = client.encode(ReadArrivals("notes", leaves=(second,), log=page.log, position=2, wait_ns=SECOND_NS))
    stage.nodes[3].step(stage.now_ns, Requested(78, "bob", elsewhere, b""))
    assert 78 not in stage.nodes[3].settled
    stage.run(20 * MILLISECOND_NS)
    third = stage.append(2, b"3")
    stage.run(20 * MILLISECOND_NS)
    rows = client.decode_answer(stage.nodes[3].settled[78].payload, client.Page).rows
    assert [decode(row.raw).id for row in rows] == [third]


def test_withdrawn_read_is_not_answered():
    stage = Stage(1)
    stage.append(1, b"1")
    node = stage.nodes[1]
    body = client.encode(ReadArrivals("notes", log=node.core.context.log, position=1, wait_ns=SECOND_NS))
    node.step(stage.now_ns, Requested(5, "bob", body, b""))
    node.step(stage.now_ns, Withdrawn(5))
    stage.append(1, b"2")
    assert 5 not in node.settled


def test_events_of_a_single_member_are_read_at_once():
    stage = Stage(1)
    stage.append(1, b"1")
    assert stage.nodes[1].model.is_read(0)


@pytest.mark.parametrize("stream", ["", "two words", "x" * 256, "nötig"])
def test_invalid_stream_name_is_refused(stream):
    stage = Stage(1)
    assert stage.ask(1, Append(stream), b"x").kind == "refused"


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: number} for name in ("position", "wait_ns") for number in (-1, -(1 << 62), 1 << 63)),
        {"leaves": (b"short",)},
        {"leaves": (bytes(32),) * (client.FRONTIER_MAX + 1)},
        {"log": bytes(17)},
    ],
)
def test_invalid_positions_in_a_read_are_refused(wrong):
    """A node would step up from the lowest number to 0, and do nothing else until then."""
    stage = Stage(1)
    stage.append(1, b"1")
    log = stage.nodes[1].core.context.log
    assert stage.ask(1, ReadArrivals("notes", **{"log": log, **wrong})).kind == "refused"
    for name, value in wrong.items():
        fields = {"limit": value, "after_height": value} if name == "position" else {name: value}
        assert all(stage.ask(1, ReadSnapshot("notes", **{one: fields[one]})).kind == "refused" for one in fields)


def test_streams_above_the_bound_are_refused():
    stage = Stage(1, streams_max=2)
    stage.append(1, b"x", "a")
    stage.append(1, b"x", "b")
    settled = stage.ask(1, Append("c"), b"x")
    assert settled.kind == "refused"
    assert "2 graph streams" in settled.reason


def test_client_requests_round_trip():
    for request in (Append("s"), ReadSnapshot("s", True, (b"x" * 32,)), ReadArrivals("s", False, (), b"l", 4, 5)):
        assert decode_request(client.encode(request)) == request


def test_lagging_node_leaves_the_readers_position_unchanged():
    stage = Stage(2)
    stage.part({1})
    stage.append(1, b"1")
    page = stage.pages(1, ReadArrivals("notes"))
    event_id = decode(page.rows[0].raw).id
    behind = stage.pages(2, ReadArrivals("notes", leaves=(event_id,), log=page.log, position=page.position))
    assert (behind.rows, behind.done, behind.log, behind.position) == ((), False, page.log, page.position)
