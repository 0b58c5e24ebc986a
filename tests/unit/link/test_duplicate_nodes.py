"""Two processes with one identity are named by whoever meets both; a node that was started again is not."""

from __future__ import annotations

from chaplain.link.events import Peer
from chaplain.link.sessions.duplicate_nodes import INSTANCES_MAX, DuplicateNode, DuplicateNodes
from tests.support.link_stage import SECOND_NS, Actor, Stage

EVENT = "identity used twice"


def copied() -> tuple[Stage, Actor, Actor, Actor]:
    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    copy = stage.node("copy", identity=bob.core.identity)
    bob.meet(alice)
    stage.settle()
    return stage, alice, bob, copy


def dial_anew(stage: Stage, alice: Actor, *others: Actor, seconds: int) -> None:
    """As nodes do whose session was taken: one after the other, each second another."""
    for second in range(seconds):
        stage.cut(stage.between(others[second % len(others)], alice))
        stage.run(SECOND_NS)


def test_copy_of_a_node_beside_the_original_is_reported_at_intervals() -> None:
    stage, alice, bob, copy = copied()
    copy.meet(alice)
    dial_anew(stage, alice, bob, copy, seconds=20)
    assert len({met.peer.instance for met in alice.met}) == 2
    assert len(alice.met) > 4
    (report,) = [report for report in alice.reports if report.event == EVENT]
    assert report.peer == f"{bob.core.identity.identifier:08x}"
    assert f"at {bob.endpoint} and {copy.endpoint}: stop the one that is a copy" in str(report.detail["reason"])
    (duplicate,) = alice.core.duplicates(stage.now_ns)
    assert duplicate == DuplicateNode(bob.core.identity.identifier, tuple(sorted((bob.endpoint, copy.endpoint))))
    dial_anew(stage, alice, bob, copy, seconds=60)
    assert len(alice.reasons(EVENT)) == 2


def test_duplicate_report_ends_a_minute_after_one_process_stopped() -> None:
    stage, alice, bob, copy = copied()
    copy.meet(alice)
    dial_anew(stage, alice, bob, copy, seconds=20)
    assert alice.core.duplicates(stage.now_ns)
    stage.drop(copy)
    del stage.listening[copy.endpoint]
    stage.unreachable.add(copy.endpoint)
    dial_anew(stage, alice, bob, seconds=70)
    assert not alice.core.duplicates(stage.now_ns)


def test_repeatedly_restarted_node_is_not_reported_as_duplicate() -> None:
    stage, alice, bob, _copy = copied()
    for _ in range(2 * INSTANCES_MAX):
        bob = stage.restart(bob)
        bob.meet(alice)
        stage.run(2 * SECOND_NS)
    assert len({met.peer.instance for met in alice.met}) == 1 + 2 * INSTANCES_MAX
    assert not alice.reasons(EVENT)
    assert not alice.core.duplicates(stage.now_ns)


def test_lost_sessions_are_not_reported_as_duplicates() -> None:
    stage, alice, bob, _copy = copied()
    for _ in range(5):
        stage.cut(stage.between(bob, alice))
        stage.run(2 * SECOND_NS)
    assert len(alice.met) == 6
    assert not alice.reasons(EVENT)


def test_late_message_of_an_old_instance_is_no_duplicate() -> None:
    duplicates = DuplicateNodes(8)
    old, new = (Peer(instance, 1, b"k", "tcp://a:1") for instance in (b"old", b"new"))
    assert [duplicates.met(now_ns, peer) for now_ns, peer in enumerate((old, new, old, new))] == [None] * 4
    assert not duplicates.current(4)
    assert duplicates.met(5, old) == DuplicateNode(1, ("tcp://a:1",))


def test_remembered_instances_are_bounded() -> None:
    duplicates = DuplicateNodes(2)
    for number in range(9):
        for _ in range(3):
            for instance in (b"a", b"b"):
                duplicates.met(0, Peer(instance, number, b"%d" % number, "tcp://a:1"))
    assert [duplicate.identifier for duplicate in duplicates.current(0)] == [7, 8]
