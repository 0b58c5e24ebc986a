"""Nodes that were removed from the cluster: they leave the work set at once, by an agreed change, for good."""

from __future__ import annotations

from chaplain.sequence.events import Published
from tests.unit.sequence.sequence_stage import Stage


def test_removed_node_leaves_at_once_and_does_not_block_a_restart() -> None:
    stage = Stage(5).start().run(1)
    token = stage.publish(1, b"before")
    stage.run(0.2)
    assert isinstance(stage.outcome(token), Published)
    [history] = stage.histories()
    stage.remove(2, 3)
    stage.run(3)
    assert stage.members(1) == [1, 4, 5]
    for number in (2, 3, 4):
        stage.kill(number)
    stage.start(4).run(6)
    assert stage.states() == {1: "WRK", 4: "WRK", 5: "WRK"}
    assert stage.histories() == {history}
    token = stage.publish(4, b"after")
    stage.run(1)
    assert stage.delivered(5) == {1: b"before", 2: b"after"}


def test_one_of_two_nodes_continues_alone_after_the_other_is_removed() -> None:
    for removed, left in ((1, 2), (2, 1)):
        stage = Stage(2).start().run(1)
        stage.remove(removed)
        stage.run(3)
        stage.kill(removed)
        stage.run(6)
        assert (stage.states(), stage.members(left)) == ({left: "WRK"}, [left])


def test_removed_node_gets_no_seat_again() -> None:
    stage = Stage(3).start().run(1)
    stage.remove(3)
    stage.run(10)
    assert stage.states() == {1: "WRK", 2: "WRK", 3: "DSC"}
    assert stage.members(1) == stage.members(2) == [1, 2]
    changes = stage.cores[1].context.counts["work_set_changes"]
    stage.run(10)
    assert stage.cores[1].context.counts["work_set_changes"] == changes


def test_removed_node_is_not_named_in_a_new_history_and_begins_none() -> None:
    stage = Stage(3)
    stage.belonging = lambda: (2, 3)
    stage.remove(1)
    stage.start().run(1)
    assert stage.states() == {1: "DSC", 2: "WRK", 3: "WRK"}
    assert stage.members(2) == [2, 3]


def test_restarted_nodes_learn_from_removed_members() -> None:
    stage = Stage(3).start().run(1)
    stage.publish(2, b"one")
    stage.run(0.2)
    stage.remove(2, 3, knowing=(1,))
    stage.kill(1)
    stage.belonging = lambda: (1,)
    stage.start(1).run(6)
    assert stage.delivered(1) == {1: b"one"}
    assert stage.members(1) == [1]


def test_removed_members_still_in_the_work_set_are_not_counted_as_dead() -> None:
    """They may work where they are not heard: whoever knows of the removal must not go on beside them."""
    stage = Stage(5).start().run(1)
    stage.split((1, 5), (2, 3, 4))
    stage.remove(2, 3, 4, knowing=(1, 5))
    stage.run(12)
    assert stage.states() == {1: "ERR", 2: "WRK", 3: "WRK", 4: "WRK", 5: "ERR"}
    reason = stage.cores[1].context.reason
    assert "reaches 2 of the 5 members of the work set: no majority" in reason
    assert "3 of them were removed from the cluster" in reason


def test_nodes_that_lost_their_majority_to_removals_begin_anew_after_a_restart() -> None:
    stage = Stage(5)
    belonging = (1, 2, 3, 4, 5)
    stage.belonging = lambda: belonging
    stage.start().run(1)
    belonging = (1, 4, 5)
    stage.remove(2, 3)
    for number in (2, 3, 4):
        stage.kill(number)
    stage.start(4).run(15)
    assert stage.states() == {1: "ERR", 4: "DSC", 5: "ERR"}
    for number in (1, 5):
        stage.kill(number)
        stage.start(number)
    assert stage.run(8).states() == {1: "WRK", 4: "WRK", 5: "WRK"}
    assert stage.members(1) == [1, 4, 5]
