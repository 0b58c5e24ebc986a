"""Pools: ours and theirs, status octets, shouts, and the roll that mends what was lost."""

from __future__ import annotations

import pytest

from chaplain.core import Report, Stopping
from chaplain.link.events import Introduce, Met, Said, Say
from chaplain.mesh import control_messages
from chaplain.mesh.events import Gapped, Joined, JoinPool, LeavePool, Left, Shout, Shouted, Whispered
from chaplain.wire.command import Alive, Broadcast, Join, Leave
from tests.unit.mesh.mesh_stage import OWN, SECOND, hello, make, make_with, only, peer, said, spoken

ANNA, BERT, CARL = peer(1), peer(2), peer(3)
TASK = peer(9, client="task")


def test_join_is_sent_to_the_link_and_every_node_but_no_client() -> None:
    core = make_with(ANNA, TASK, BERT)
    effects = core.step(0, JoinPool("red"))
    assert effects[0] == Introduce(("red",), 1, {})
    assert spoken(effects) == [(ANNA.instance, Join(2, "red", 1), True), (BERT.instance, Join(2, "red", 1), True)]
    effects = core.step(0, LeavePool("red"))
    assert effects[0] == Introduce((), 2, {})
    assert spoken(effects) == [(ANNA.instance, Leave(3, "red", 2), True), (BERT.instance, Leave(3, "red", 2), True)]


def test_join_or_leave_without_a_change_sends_nothing() -> None:
    core = make_with(ANNA)
    assert core.step(0, LeavePool("red")) == []
    core.step(0, JoinPool("red"))
    assert core.step(0, JoinPool("red")) == []
    assert core.introduction().status == 1


def test_own_status_octet_wraps() -> None:
    core = make()
    for _ in range(128):
        core.step(0, JoinPool("red"))
        core.step(0, LeavePool("red"))
    assert core.introduction().status == 0
    core.step(0, JoinPool("red"))
    assert core.introduction().status == 1


@pytest.mark.parametrize("pool", ["", "two words", "p" * 256, "grün"])
def test_invalid_pool_name_is_refused(pool: str) -> None:
    core = make_with(ANNA)
    [report] = core.step(0, JoinPool(pool))
    assert isinstance(report, Report)
    assert report.event == "pool refused"
    assert core.pools == ()


def test_node_joins_at_most_255_pools() -> None:
    core = make()
    for number in range(256):
        effects = core.step(0, JoinPool(f"pool-{number}"))
    assert [each.event for each in effects if isinstance(each, Report)] == ["pool refused"]
    assert len(core.pools) == 255
    assert core.introduction().status == 255


def test_join_and_leave_of_a_peer_are_reported() -> None:
    core = make_with(ANNA)
    assert core.step(0, said(ANNA, Join(2, "red", 1))) == [Joined(ANNA, "red")]
    assert core.step(0, said(ANNA, Leave(3, "red", 2))) == [Left(ANNA, "red")]
    assert core.known_pools() == ()


def test_status_octet_of_a_peer_wraps() -> None:
    core = make()
    core.step(0, Met(ANNA, hello((), 255)))
    assert core.step(0, said(ANNA, Join(2, "red", 0))) == [Joined(ANNA, "red")]


def test_status_out_of_step_is_reported_and_the_pool_list_requested() -> None:
    core = make_with(ANNA)
    effects = core.step(0, said(ANNA, Join(2, "red", 2)))
    assert isinstance(effects[0], Report)
    assert (effects[0].event, effects[0].detail["reason"]) == ("status out of step", "2 instead of 1")
    assert effects[1] == Joined(ANNA, "red")
    assert spoken(effects) == [
        (ANNA.instance, Alive(2, control_messages.encode(OWN.identifier, control_messages.AskPoolList())), True)
    ]
    roll = control_messages.encode(1, control_messages.PoolList(("blue", "red"), 2))
    assert core.step(1, said(ANNA, Alive(3, roll))) == [Joined(ANNA, "blue")]
    assert core.step(2 * SECOND, said(ANNA, Join(4, "green", 3))) == [Joined(ANNA, "green")]


def test_pool_list_is_requested_until_it_arrives_at_a_bounded_rate() -> None:
    core = make_with(ANNA)
    assert len(spoken(core.step(0, said(ANNA, Alive(4, b"x"))))) == 1
    assert spoken(core.step(SECOND - 1, said(ANNA, Alive(5, b"x")))) == []
    assert len(spoken(core.step(SECOND, said(ANNA, Alive(6, b"x"))))) == 1
    core.step(SECOND, said(ANNA, Alive(7, control_messages.encode(1, control_messages.PoolList((), 0)))))
    assert spoken(core.step(3 * SECOND, said(ANNA, Alive(8, b"x")))) == []


def test_requesting_peer_receives_the_pool_list_at_a_bounded_rate() -> None:
    core = make_with(ANNA)
    core.step(0, JoinPool("red"))
    ask = control_messages.encode(1, control_messages.AskPoolList())
    [(_, told, urgent)] = spoken(core.step(0, said(ANNA, Alive(2, ask))))
    assert isinstance(told, Alive)
    assert (control_messages.decode(told.content, OWN.identifier), urgent) == (
        control_messages.PoolList(("red",), 1),
        True,
    )
    assert core.step(1, said(ANNA, Alive(3, ask))) == []
    assert len(core.step(SECOND, said(ANNA, Alive(4, ask)))) == 1


def test_peer_that_greets_after_a_join_receives_the_pool_list() -> None:
    core = make()
    core.step(0, JoinPool("red"))
    [(_, told, _)] = spoken(core.step(0, Met(ANNA, hello())))
    assert told == Alive(2, control_messages.encode(OWN.identifier, control_messages.PoolList(("red",), 1)))


def test_repeated_join_and_unmatched_leave_of_a_peer_change_nothing() -> None:
    core = make_with(ANNA, pools=("red",))
    assert core.step(0, said(ANNA, Join(2, "red", 2))) == []
    assert core.step(0, said(ANNA, Leave(3, "blue", 3))) == []
    assert core.members("red") == (ANNA,)


def test_peer_in_too_many_pools_is_reported() -> None:
    core = make_with(ANNA, pools=("red", "blue"), pools_max=2)
    [report] = core.step(0, said(ANNA, Join(2, "green", 3)))
    assert isinstance(report, Report)
    assert report.event == "too many pools"
    assert core.members("green") == ()


def test_broadcast_is_sent_only_to_members_of_the_pool() -> None:
    core = make_with(ANNA, BERT, CARL, TASK)
    core.step(0, said(ANNA, Join(2, "red", 1)))
    core.step(0, said(CARL, Join(2, "red", 1)))
    core.step(0, said(BERT, Join(2, "Red", 1)))
    effects = core.step(0, Shout("red", b"hi"))
    want = [(ANNA.instance, Broadcast(2, "red", b"hi"), False), (CARL.instance, Broadcast(2, "red", b"hi"), False)]
    assert spoken(effects) == want
    assert core.step(0, Shout("nobody", b"hi")) == []


def test_broadcast_above_the_bound_is_not_sent() -> None:
    core = make_with(ANNA, pools=("red",), content_bytes_max=1)
    assert [type(each) for each in core.step(0, Shout("red", b"hi"))] == [Report]


def test_broadcast_is_delivered_only_for_joined_pools() -> None:
    core = make_with(ANNA)
    core.step(0, JoinPool("red"))
    assert core.step(0, said(ANNA, Broadcast(2, "red", b"hi"))) == [Shouted(ANNA, "red", b"hi")]
    assert core.step(0, said(ANNA, Broadcast(3, "Red", b"hi"))) == []
    core.step(0, LeavePool("red"))
    assert core.step(0, said(ANNA, Broadcast(4, "red", b"hi"))) == []
    assert core.counts["broadcasts_outside"] == 2


@pytest.mark.parametrize("fields", [b"", b"\x04red", b"\x03r d", b"\xff"])
def test_truncated_broadcast_is_malformed(fields: bytes) -> None:
    core = make_with(ANNA)
    core.step(0, JoinPool("red"))
    [report] = core.step(0, Said(ANNA.instance, (b"\xaa\xa1\x03\x00\x02" + fields,)))
    assert isinstance(report, Report)
    assert report.event == "malformed command"


def test_empty_broadcast_is_delivered() -> None:
    core = make_with(ANNA)
    core.step(0, JoinPool("red"))
    assert core.step(0, said(ANNA, Broadcast(2, "red", b""))) == [Shouted(ANNA, "red", b"")]


def test_clients_are_in_no_pool() -> None:
    core = make()
    core.step(0, JoinPool("red"))
    core.step(0, Met(TASK, hello(("red",), 1)))
    assert core.members("red") == ()
    assert only(Joined, core.step(0, said(TASK, Join(2, "red", 1)))) == []
    assert core.step(0, said(TASK, Broadcast(3, "red", b"hi"))) == []
    roll = control_messages.encode(9, control_messages.PoolList(("red",), 1))
    assert core.step(0, said(TASK, Alive(4, roll))) == []
    assert core.step(0, said(TASK, Alive(5, control_messages.encode(9, control_messages.AskPoolList())))) == []
    gap = core.step(0, said(TASK, Alive(9, b"x")))
    assert gap == [Gapped(TASK, 3, outgoing=False), Whispered(TASK, b"x")]
    assert core.members("red") == ()


def test_stopping_node_leaves_every_pool() -> None:
    core = make_with(ANNA)
    core.step(0, JoinPool("red"))
    core.step(0, JoinPool("blue"))
    effects = core.step(0, Stopping())
    assert [what for _, what, _ in spoken(effects)] == [Leave(4, "red", 3), Leave(5, "blue", 4)]
    assert only(Introduce, effects)[-1] == Introduce((), 4, {})
    assert core.pools == ()


def test_broadcast_is_encoded_once_for_all_peers() -> None:
    core = make_with(ANNA, BERT, pools=("red",))
    one, two = core.step(0, Shout("red", b"x" * 100))
    assert isinstance(one, Say)
    assert isinstance(two, Say)
    assert one.command == two.command
    core.step(0, JoinPool("blue"))
    assert one.command == b"\xaa\xa1\x03\x00\x02\x03red" + b"x" * 100
