"""A client's journal, step by step, over real journal cores."""

from __future__ import annotations

import pytest

from chaplain.client.protocol.call_events import Failure, Returned
from chaplain.client.protocol.journal import writer
from chaplain.client.protocol.journal.events import AskCommand, ConfigRequestCommand, NoNodeAccepts, WritesAcknowledged
from chaplain.client.protocol.journal.node_selection import NodeSelector
from chaplain.client.types.journal import RequestId
from chaplain.core import Stopping
from chaplain.journal.messages.client import GoBack, ListClients, NotWritten, Opened, Receipts, Run, Write
from chaplain.journal.messages.config import AddIdentity, ReleaseLane, RemoveIdentity
from chaplain.journal.model.bootstrap import ExecutionPolicy
from chaplain.link.auth.identity import Identity
from tests.unit.client.journal_stage import CLUSTER, Bench, Cluster, large_cluster, values

EVE = Identity(b"e" * 32)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(3)
    made.elect()
    return made


def lane_of(bench: Bench) -> int:
    lane = bench.journal._writers._lane
    assert lane is not None
    return lane.client_id


def test_receipt_contains_offset_index_and_ids(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    first, second = bench.write(b"a"), bench.write(b"b", b"c", transaction=True)
    place = bench.end(second).place
    assert (place.base_offset, place.messages, place.requests, place.first_id) == (1, 2, 1, 2)
    assert bench.end(first).place.base_offset == 0
    assert place.index > 0
    assert len(place.hash) == 32
    assert [(m.value, m.client_message_id, m.message_no) for m in bench.messages()] == [
        (b"a", 1, 0),
        (b"b", 2, 0),
        (b"c", 2, 1),
    ]


def test_waiting_writes_are_sent_as_one_pack_per_stream(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    calls = [bench.write(b"%d" % number, stream="a" if number < 50 else "b") for number in range(100)]
    places = [bench.end(call).place for call in calls]
    assert [(place.stream, place.base_offset) for place in places] == [(s, n) for s in "ab" for n in range(50)]
    assert bench.writes == 2


def test_lost_receipt_is_supplied_by_another_node(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    bench.end(bench.write(b"warm"))
    bench.deaf = True
    call = bench.write(b"x")
    bench.settle()
    bench.deaf = False
    bench.disconnect(next(iter(bench.sessions)))
    assert bench.end(call).place.base_offset == 1
    assert values(bench) == [b"warm", b"x"]


def test_writes_continue_at_another_node_after_a_node_dies(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    bench.end(bench.write(b"warm"))
    calls = [bench.write(b"%d" % number) for number in range(5)]
    bench.kill(1)
    assert [bench.end(call).place.base_offset for call in calls] == [1, 2, 3, 4, 5]
    assert values(bench) == [b"warm", b"0", b"1", b"2", b"3", b"4"]
    assert lane_of(bench) == 1


def test_silent_node_is_replaced_by_another_open_session(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    bench.end(bench.write(b"warm"))
    chosen = bench.journal._selector.chosen
    assert chosen is not None
    dull = chosen.instance
    number = bench.sessions[dull].node
    for other in {1, 2, 3} - {number}:
        cluster.cut |= {(number, other), (other, number)}
    call = bench.write(b"x")
    assert bench.end(call).place.base_offset == 1
    assert bench.journal._selector.chosen.instance != dull


def test_client_prefers_the_master_and_follows_a_new_one(cluster) -> None:
    bench = Bench(cluster, 1, 2, 3)
    bench.end(bench.write(b"a"))
    chosen = bench.journal._selector.chosen
    assert bench.sessions[chosen.instance].node == cluster.master
    bench.kill(cluster.master)
    bench.end(bench.write(b"b"))
    later = bench.journal._selector.chosen
    assert later.master_regime > chosen.master_regime, "a later regime"
    assert bench.sessions[later.instance].node == cluster.master


def test_former_master_is_not_preferred_to_the_current_master() -> None:
    selector = NodeSelector([], CLUSTER)
    selector.open_all(0)
    for number, leads in ((1, 4), (2, 0), (3, 0)):
        instance = bytes([number])
        selector.on_session_up(0, instance)
        call = selector._sessions[instance].call
        answer = Opened(call, number, CLUSTER, bytes(15), "x", 10, leads=leads, epoch=bytes(16))
        selector.on_reply(0, instance, call, answer, b"")
    assert selector.chosen.instance == b"\1"
    selector.on_master_change(b"\3", 3)
    assert selector.chosen.instance == b"\1", "an older regime is over"
    selector.on_master_change(b"\3", 5)
    assert selector.chosen.instance == b"\3"
    selector.on_master_change(b"\3", 0)
    assert selector.chosen.instance == b"\3", "there is nobody better yet"
    selector.on_master_change(b"\2", 6)
    assert selector.chosen.instance == b"\2"


def test_refused_write_fails_and_later_writes_use_a_new_lane(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    calls = [bench.write(b"a"), bench.write(b"b", stream="_reserved"), bench.write(b"c")]
    refused = bench.end(calls[1])
    assert (refused.failure, "may not write" in refused.reason) == (Failure.NO_RIGHT, True)
    assert [bench.end(calls[number]).place.base_offset for number in (0, 2)] == [0, 1]
    assert lane_of(bench) == 2
    bench.settle()
    assert sum(cluster.nodes[1].core.execution.state.lane_counts.values()) == 1, "the fenced lane is given back"


def test_write_group_ends_at_its_first_refusal(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    bench.deaf = True
    calls = [bench.write(b"a", group=7), bench.write(b"b", stream="_reserved", group=7), bench.write(b"c", group=7)]
    other = bench.write(b"d")
    bench.deaf = False
    assert isinstance(bench.end(calls[0]), WritesAcknowledged)
    assert (bench.end(calls[1]).failure, bench.end(calls[2]).failure) == (Failure.NO_RIGHT, Failure.REFUSED)
    assert bench.end(bench.write(b"e", group=7)).failure is Failure.REFUSED
    bench.end(other)
    assert values(bench) == [b"a", b"d"]


def test_write_without_master_raises_unknown_and_resolves_later(cluster) -> None:
    bench = Bench(cluster, 1)
    bench.end(bench.write(b"warm"))
    cluster.cut |= {(a, b) for a in (1, 2, 3) for b in (1, 2, 3)}
    call = bench.write(b"x", wait_s=5)
    unknown = bench.end(call)
    assert (unknown.failure, unknown.request) == (Failure.UNKNOWN, RequestId(1, 2))
    resolve = bench.resolve(*unknown.request)
    cluster.cut.clear()
    outcome = bench.end(resolve)
    assert isinstance(outcome, WritesAcknowledged | Returned)
    assert values(bench).count(b"x") == isinstance(outcome, WritesAcknowledged)
    again = bench.resolve(*unknown.request)
    assert type(bench.end(again)) is type(outcome)
    assert bench.end(bench.write(b"y")).place.client_id == 2
    assert values(bench)[-1] == b"y"


def test_request_that_was_never_accepted_resolves_to_not_written(cluster) -> None:
    bench = Bench(cluster, 1)
    bench.end(bench.write(b"warm"))
    bench.spoil = lambda up, message: 0 if up and isinstance(message, Write) else 1
    call, later = bench.write(b"x", wait_s=5), bench.write(b"y", wait_s=60)
    unknown = bench.end(call)
    resolve = bench.resolve(*unknown.request)
    bench.spoil = None
    assert isinstance(bench.end(resolve), Returned)
    assert isinstance(bench.end(later), WritesAcknowledged), "who still waits is written under the new lane"
    assert values(bench) == [b"warm", b"y"]


def test_unsigned_request_fails_as_not_written(cluster) -> None:
    bench = Bench(cluster)
    outcome = bench.end(bench.write(b"x", wait_s=3))
    assert (outcome.failure, outcome.request) == (Failure.UNREACHABLE, None)
    assert outcome.reason.startswith("not written: waited 3 s")
    bench.connect(1)
    bench.end(bench.write(b"y"))
    assert values(bench) == [b"y"]


def test_request_of_another_connection_can_be_resolved(cluster) -> None:
    one, two = Bench(cluster, 1), Bench(cluster, 2)
    place = one.end(one.write(b"a")).place
    assert two.end(two.resolve(place.client_id, place.first_id)).place == place, "where it is, too"
    assert isinstance(two.end(two.resolve(place.client_id, 2)), Returned)
    assert two.end(two.resolve(77, 1)).failure is Failure.UNKNOWN
    assert one.end(one.write(b"b")).place.client_id == 2, "whose lane was fenced takes another"
    assert values(one) == [b"a", b"b"]


def test_request_of_a_closed_connection_can_be_resolved(cluster) -> None:
    one, two = Bench(cluster, 1), Bench(cluster, 2)
    place = one.end(one.write(b"a")).place
    one.give(Stopping())
    cluster.settle()
    assert two.end(two.resolve(place.client_id, place.first_id)).place == place
    assert isinstance(two.end(two.resolve(place.client_id, 2)), Returned)


def test_resolving_a_request_with_a_receipt_keeps_the_lane(cluster) -> None:
    bench = Bench(cluster, 1)
    place = bench.end(bench.write(b"a")).place
    assert bench.end(bench.resolve(place.client_id, place.first_id)).place == place
    assert bench.end(bench.resolve(place.client_id, 9)).failure is Failure.MISSING
    assert lane_of(bench) == 1


def test_exhausted_message_ids_continue_in_a_new_lane(cluster) -> None:
    bench = Bench(cluster, 1, ids=10)
    for number in range(8):
        bench.end(bench.write(b"%d" % number, b"'"))
    assert values(bench) == [value for number in range(8) for value in (b"%d" % number, b"'")]
    assert lane_of(bench) == 2
    assert max(first for _, first in bench.packs) <= 10


def test_expired_lane_is_replaced_without_an_error() -> None:
    cluster = Cluster(3, ExecutionPolicy(lane_idle_ns=3600 * 10**9))
    cluster.elect()
    bench, other = Bench(cluster, 1, 2), Bench(cluster, 3)
    bench.end(bench.write(b"a"))
    cluster.now_ns += 2 * 3600 * 10**9
    other.end(other.write(b"b"))
    assert bench.end(bench.write(b"c")).place.client_id == 3
    assert values(bench) == [b"a", b"b", b"c"]


def test_request_sent_twice_is_unknown_when_its_lane_ends_without_a_fence(cluster) -> None:
    """It is written, its receipt is lost, and its lane is given back by another process: never to be written again."""
    bench, other = Bench(cluster, 1, 2), Bench(cluster, 3)
    bench.end(bench.write(b"warm"))
    bench.deaf = True
    call = bench.write(b"x")
    bench.settle()
    for session in bench.sessions.values():
        session.inbox.clear()
    other.end(other.wish(lambda call: ConfigRequestCommand(call, ReleaseLane(1), 60 * 10**9)))
    bench.deaf = False
    bench.hurt()
    assert bench.end(call).failure is Failure.UNKNOWN
    assert bench.end(bench.write(b"y")).place.client_id == 2
    assert values(bench) == [b"warm", b"x", b"y"]


def test_lost_pack_is_sent_again_as_soon_as_its_successor_shows_the_gap(cluster) -> None:
    bench = Bench(cluster, 1, 2)
    bench.end(bench.write(b"warm"))
    bench.spoil = lambda up, message: 0 if up and isinstance(message, Write) else 1
    lost = bench.write(b"x")
    bench.settle()
    bench.spoil = None
    began_ns = cluster.now_ns
    assert bench.end(bench.write(b"y")).place.base_offset == 2
    assert bench.end(lost).place.base_offset == 1
    assert cluster.now_ns - began_ns < 10**9


def test_client_waits_for_a_node_that_is_behind(cluster) -> None:
    """Node 3 hears nothing of the order until later: it knows neither the lane nor the stream."""
    bench = Bench(cluster, 1)
    cluster.cut |= {(1, 3), (2, 3)}
    bench.end(bench.write(b"a"))
    bench.connect(3)
    bench.disconnect(next(iter(bench.sessions)))
    read, write = bench.read(), bench.write(b"b")
    bench.rest(0.5)
    assert not bench.ended(read)
    assert not bench.ended(write)
    cluster.cut.clear()
    assert bench.end(write).place.base_offset == 1
    assert isinstance(bench.end(read), Returned)
    assert values(bench) == [b"a", b"b"]
    assert lane_of(bench) == 1, "asked for with the same nonce, it is the same lane"


def test_writer_sends_no_more_than_its_credit() -> None:
    bench = Bench(large_cluster(), 1)
    bench.end(bench.write(b"warm"))
    bench.deaf = True
    for _ in range(160):
        bench.write(b"x" * 100_000)
    bench.work()
    chosen = bench.journal._selector.chosen
    assert chosen is not None
    assert 7 << 20 < chosen.used_bytes <= chosen.credit_bytes == 8 << 20
    bench.deaf = False
    bench.until(lambda: not bench.journal._writers.queue.has_waiters)
    assert len(values(bench)) == 161


def test_writes_above_the_waiting_bound_fail_as_busy(cluster) -> None:
    bench = Bench(cluster)
    outcomes = [bench.end(call).failure for call in [bench.write(bytes(4 << 20), wait_s=1) for _ in range(20)]]
    assert outcomes.count(Failure.BUSY) == 4
    assert outcomes.count(Failure.UNREACHABLE) == 16


def test_write_refused_as_busy_is_sent_again(cluster) -> None:
    bench = Bench(cluster, 1)
    bench.end(bench.write(b"warm"))
    for node in cluster.nodes.values():
        node.core.ingest._admission.stopping = True
    call = bench.write(b"x", wait_s=20)
    bench.rest(2)
    assert bench.writes < 20, "with pauses"
    cluster.nodes[1].core.ingest._admission.stopping = False
    assert bench.end(call).place.base_offset == 1


def test_removed_client_receives_the_reason(cluster) -> None:
    admin = Bench(cluster, 1)
    message = AddIdentity("eve", 1, EVE.key, ("*",), ("*",))
    acl = admin.end(admin.wish(lambda call: ConfigRequestCommand(call, message, 60 * 10**9))).payload
    eve = Bench(cluster, 1, identity=EVE, name="eve")
    eve.end(eve.write(b"a"))
    assert eve.end(eve.wish(lambda call: AskCommand(call, ListClients(0), 10**9))).failure is Failure.NO_RIGHT
    admin.end(admin.wish(lambda call: ConfigRequestCommand(call, RemoveIdentity(acl), 60 * 10**9)))
    outcome = eve.end(eve.write(b"b"))
    assert (outcome.failure, "removed" in outcome.reason) == (Failure.REFUSED, True)
    assert values(admin) == [b"a"]


def test_request_of_an_ended_identity_is_not_written_if_its_lane_ended_before(cluster) -> None:
    admin = Bench(cluster, 1)
    message = AddIdentity("eve", 1, EVE.key, ("*",), ("*",))
    acl = admin.end(admin.wish(lambda call: ConfigRequestCommand(call, message, 60 * 10**9))).payload
    eve = Bench(cluster, 1, identity=EVE, name="eve")
    eve.end(eve.write(b"a"))
    admin.end(admin.wish(lambda call: ConfigRequestCommand(call, RemoveIdentity(acl), 60 * 10**9)))
    eve.deaf = True
    calls = [eve.write(b"b"), eve.write(b"c")]
    eve.work()
    for packed in eve.journal._writers._lane.in_flight.values():
        packed.sends = 2  # another node may have had it before
    eve.deaf = False
    for outcome in map(eve.end, calls):
        assert (outcome.failure, "not written" in outcome.reason) == (Failure.REFUSED, True)
    assert values(admin) == [b"a"]


def test_client_refused_by_all_nodes_ends_waiting_calls(cluster) -> None:
    bench = Bench(cluster, 1)
    bench.end(bench.write(b"warm"))
    cluster.cut |= {(a, b) for a in (1, 2, 3) for b in (1, 2, 3)}
    sent = bench.write(b"x")
    bench.settle()
    bench.disconnect(next(iter(bench.sessions)))
    waiting, read = bench.write(b"y"), bench.read()
    bench.give(NoNodeAccepts("no node let us in"))
    assert bench.end(sent).failure is Failure.UNKNOWN
    assert bench.end(waiting).failure is bench.end(read).failure is Failure.REFUSED
    assert not bench.journal.has_waiters


def test_close_returns_the_lane_and_ends_waiting_calls(cluster) -> None:
    bench = Bench(cluster, 1)
    bench.end(bench.write(b"a"))
    bench.give(Stopping())
    cluster.settle()
    assert not cluster.nodes[1].core.execution.state.lane_counts
    other = Bench(cluster, 1)
    other.end(other.write(b"b"))
    other.deaf = True
    calls = [other.write(b"c"), other.read(follow=True)]
    other.work()
    calls.append(other.write(b"d"))
    other.give(Stopping())
    assert [other.end(call).failure for call in calls] == [Failure.UNKNOWN, Failure.CLOSED, Failure.CLOSED]
    assert cluster.nodes[1].core.execution.state.lane_counts, "somebody may ask what became of it"


def test_cancelled_write_is_not_written_and_has_no_outcome(cluster) -> None:
    bench = Bench(cluster)
    dropped, kept = bench.write(b"a"), bench.write(b"b")
    bench.cancel(dropped)
    bench.connect(1)
    bench.end(kept)
    assert values(bench) == [b"b"]
    assert dropped not in bench.outcomes


# Answers nobody should give.


def test_answers_for_unknown_requests_are_ignored(cluster) -> None:
    bench = Bench(cluster, 1)
    bench.end(bench.write(b"a"))
    bench.deaf = True
    call = bench.write(b"b")
    bench.work()
    [instance] = bench.sessions
    good = bench.outcomes[1][0].place
    session = bench.sessions[instance]
    moment = (good.index, 1, 1, good.hash)
    for run in (
        Run(9, 2, 1, "orders", 1, 1, *moment),
        Run(1, 2, 1, "other", 1, 1, *moment),
        Run(1, 3, 1, "orders", 1, 1, *moment),
        Run(1, 1, 2, "orders", 0, 1, *moment),
    ):
        session.inbox.append((Receipts((run,)), b""))
    session.inbox.append((GoBack(9, 1), b""))
    session.inbox.append((NotWritten(9, 1, 1, "no_right", "", 1), b""))
    bench.cluster.cut |= {(a, b) for a in (1, 2, 3) for b in (1, 2, 3)}
    bench.deaf = False
    bench.settle()
    assert not bench.ended(call)
    bench.cluster.cut.clear()
    assert bench.end(call).place.base_offset == 1


def test_client_signs_nothing_for_another_cluster(cluster) -> None:
    bench = Bench(cluster, 1)
    bench.journal._selector.cluster = "ours"
    outcome = bench.end(bench.write(b"x", wait_s=2))
    assert (outcome.failure, bench.writes) == (Failure.UNREACHABLE, 0)
    assert "belongs to cluster" in outcome.reason


def test_client_packs_in_flight_are_below_the_nodes_memory_of_packs() -> None:
    assert ExecutionPolicy().remembered_packs > writer.PACKS_MAX
