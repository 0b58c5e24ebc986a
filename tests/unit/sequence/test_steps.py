"""The sequence, step by step: how it begins, numbers, changes hands, loses and takes in members."""

from __future__ import annotations

import pytest

from chaplain.sequence.events import Became, Published, Unpublished
from chaplain.sequence.messages.entry import EntryKind
from chaplain.sequence.messages.peer import (
    Beat,
    DscReq,
    DscRes,
    EntryBatch,
    Lock,
    LockGranted,
    Seq,
    SeqRes,
    SequenceState,
)
from tests.unit.sequence.sequence_stage import Stage


def said(stage: Stage, kind: type) -> list[tuple[int, int]]:
    return [(sender, to) for sender, to, message in stage.said if isinstance(message, kind)]


# Beginning.


def test_lowest_node_begins_with_the_whole_list_when_all_are_in_dsc() -> None:
    stage = Stage(5).start().run(1)
    assert set(stage.states().values()) == {"WRK"}
    assert len(stage.histories()) == 1
    assert stage.members(4) == [1, 2, 3, 4, 5]
    assert stage.holder() == 1
    assert said(stage, DscReq)
    assert said(stage, DscRes)


def test_node_with_an_empty_list_works_at_once_and_the_second_asks_for_the_number() -> None:
    stage = Stage(2).start(1, listed=())
    stage.deliver()
    assert stage.states() == {1: "WRK"}
    stage.run(2.5)
    token = stage.publish(1, b"a")
    stage.deliver()
    assert stage.outcome(token) == Published(token, 1)
    stage.start(2).run(2)
    assert stage.states() == {1: "WRK", 2: "WRK"}
    assert stage.members(2) == [1, 2]
    assert (2, 1) in said(stage, SeqRes)
    assert (1, 2) in said(stage, Seq)
    late = stage.publish(2, b"b")
    stage.run(1)
    assert stage.outcome(late) == Published(late, 2)
    assert stage.delivered(2) == {1: b"a", 2: b"b"}, "a late joiner learns what the others remember"


def test_single_node_holds_back_its_first_events() -> None:
    stage = Stage(1).start(1, listed=())
    token = stage.publish(1, b"a")
    stage.run(1)
    assert stage.outcome(token) is None
    stage.run(2)
    assert stage.outcome(token) == Published(token, 1)


def test_majority_of_the_list_begins_only_after_the_waiting_time() -> None:
    stage = Stage(5).start(2, 3, 4).run(9)
    assert set(stage.states().values()) == {"DSC"}
    stage.run(3)
    assert set(stage.states().values()) == {"WRK"}
    assert stage.histories() != {0}


def test_minority_of_the_list_never_begins_a_history() -> None:
    stage = Stage(5).start(1, 2).run(60)
    assert stage.states() == {1: "DSC", 2: "DSC"}


def test_node_that_knew_a_history_begins_another_only_with_all_nodes() -> None:
    stage = Stage(3).start().run(1)
    stage.publish(1, b"a")
    stage.run(1)
    stage.kill(1)
    stage.kill(2)
    stage.start(2)
    stage.run(40)
    assert stage.states()[2] == "DSC"
    assert stage.cores[3].context.history, "node 3 keeps what it holds"


def test_history_whose_majority_lost_its_memory_ends_and_another_begins() -> None:
    stage = Stage(3).start().run(1)
    [first] = stage.histories()
    for number in (1, 2):
        stage.kill(number)
        stage.start(number)
    stage.run(30)
    assert set(stage.states().values()) == {"WRK"}
    [second] = stage.histories()
    assert second not in {0, first}


def test_node_named_in_found_that_missed_it_joins() -> None:
    stage = Stage(3)
    stage.loses = lambda to, message: to == 3 and isinstance(message, EntryBatch)
    stage.start().run(1)
    token = stage.publish(1, b"a")
    stage.run(1)
    assert stage.outcome(token) == Published(token, 1)
    stage.loses = lambda to, message: False
    stage.run(2)
    assert stage.states() == dict.fromkeys((1, 2, 3), "WRK")
    assert stage.delivered(3) == {1: b"a"}


def test_vacant_seat_does_not_block_the_others() -> None:
    stage = Stage(4).start(2, 3, 4).run(10.5)
    assert stage.members(2) == [1, 2, 3, 4], "nobody was there for the first"
    [history] = stage.histories()
    stage.kill(4)
    stage.start(4).run(4)
    assert stage.states() == dict.fromkeys((2, 3, 4), "WRK")
    assert stage.histories() == {history}


def test_removed_node_is_not_awaited_and_an_added_one_is() -> None:
    stage = Stage(4)
    belonging = (1, 2, 3, 4)
    stage.belonging = lambda: belonging
    stage.start(2, 3).run(4)
    assert stage.states() == {2: "DSC", 3: "DSC"}
    belonging = (2, 3)
    stage.run(1)
    assert stage.states() == {2: "WRK", 3: "WRK"}
    assert stage.members(2) == [2, 3]
    stage.kill(2)
    stage.kill(3)
    belonging = (2, 3, 4)
    stage.start(2, 3).run(4)
    assert stage.states() == {2: "DSC", 3: "DSC"}


# Publishing.


def test_numbers_are_gapless_per_stream_and_equal_on_all_nodes() -> None:
    stage = Stage(3).start().run(1)
    for round_ in range(5):
        for number in (1, 2, 3):
            stage.publish(number, b"%d-%d" % (round_, number), stream="s" if number < 3 else "t")
        stage.run(0.2)
    assert sorted(stage.delivered(1)) == list(range(1, 11))
    assert sorted(stage.delivered(1, "t")) == list(range(1, 6))
    assert stage.delivered(1) == stage.delivered(2) == stage.delivered(3)
    assert {core.context.streams["s"] for core in stage.cores.values()}.__len__() == 1


def test_pending_events_are_sent_in_one_batch() -> None:
    stage = Stage(3).start().run(1)
    stage.said.clear()
    tokens = [stage.publish(1, b"%d" % number) for number in range(100)]
    stage.deliver()
    assert [stage.outcome(token) for token in tokens] == [Published(t, n) for n, t in enumerate(tokens, 1)]
    assert len(said(stage, EntryBatch)) == 2, "one message to each of the two others"


def test_uncontended_holder_keeps_the_lock() -> None:
    stage = Stage(3).start().run(1)
    stage.said.clear()
    for _ in range(5):
        stage.publish(1, b"x")
        stage.deliver()
    assert stage.holder() == 1
    assert not said(stage, Lock)
    assert len(said(stage, EntryBatch)) == 10


def test_work_set_of_three_acknowledges_only_to_the_author() -> None:
    stage = Stage(3).start().run(1)
    stage.said.clear()
    token = stage.publish(1, b"x")
    stage.deliver()
    assert [(sender, to) for sender, to, _ in stage.said] == [(1, 2), (1, 3), (2, 1), (3, 1)]
    assert stage.outcome(token) == Published(token, 1)
    assert stage.delivered(1) == stage.delivered(2) == stage.delivered(3) == {1: b"x"}


def test_work_set_of_five_acknowledges_to_all() -> None:
    stage = Stage(5).start().run(1)
    stage.said.clear()
    stage.publish(1, b"x")
    stage.deliver()
    assert sorted((sender, to) for sender, to in said(stage, Beat)) == [
        (sender, to) for sender in (2, 3, 4, 5) for to in (1, 2, 3, 4, 5) if sender != to
    ]


def test_node_that_waits_for_the_lock_announces_it_and_its_end() -> None:
    stage = Stage(3).start().run(1)
    stage.publish(1, b"a")
    stage.publish(2, b"b")
    stage.deliver()
    stage.publish(1, b"c")
    stage.deliver()
    assert len(stage.delivered(3)) == 3
    assert not stage.cores[3].context.peers.by_id[2].last_state.wants


def test_contending_publishers_take_turns() -> None:
    stage = Stage(3).start().run(1)
    for number in (1, 2, 3):
        for place in range(6):
            stage.publish(number, b"%d" % place * 700_000)
    stage.deliver()
    log = stage.cores[1].context.log
    authors = [held.entry.author for held in log.after(1) if held.entry.kind is EntryKind.EVENTS]
    assert sorted(authors) == [1] * 6 + [2] * 6 + [3] * 6
    contended = authors[4:10]  # before that, node 1 did not know that the others wait
    assert sorted(contended) == [1, 1, 2, 2, 3, 3], authors
    assert not said(stage, Lock), "nobody had to take it"


def test_dead_holder_is_replaced() -> None:
    stage = Stage(5).start().run(1)
    stage.publish(1, b"a")
    stage.deliver()
    stage.kill(1)
    token = stage.publish(3, b"b")
    before_ns = stage.now_ns
    while stage.outcome(token) is None:
        stage.run(0.005)
    assert stage.outcome(token) == Published(token, 2)
    assert stage.now_ns - before_ns < 300_000_000
    assert said(stage, Lock)
    assert said(stage, LockGranted)


def test_undecided_events_of_a_dead_writer_do_not_block_numbers() -> None:
    stage = Stage(5).start().run(1)
    stage.cut = {(1, other) for other in (3, 4, 5)}
    lost = stage.publish(1, b"lost")
    stage.deliver()
    assert stage.outcome(lost) is None
    stage.kill(1)
    stage.cut = set()
    token = stage.publish(4, b"kept")
    stage.run(2)
    outcome = stage.outcome(token)
    assert isinstance(outcome, Published)
    for number in (2, 3, 4, 5):
        assert stage.delivered(number)[outcome.first] == b"kept"
    assert len({tuple(stage.delivered(number).items()) for number in (2, 3, 4, 5)}) == 1


def test_replaced_event_is_numbered_later_once() -> None:
    stage = Stage(5).start().run(1)
    stage.split((1, 2), (3, 4, 5))
    mine = stage.publish(1, b"mine")
    theirs = stage.publish(4, b"theirs")
    stage.run(2)
    assert stage.outcome(mine) is None
    assert stage.outcome(theirs) == Published(theirs, 1)
    stage.cut = set()
    stage.run(2)
    assert stage.outcome(mine) == Published(mine, 2)
    assert stage.delivered(2) == {1: b"theirs", 2: b"mine"}


def test_event_replaced_here_and_decided_elsewhere_is_numbered_once() -> None:
    """Another ballot's entry took the place, but never a majority; a third goes on with what is left of the first."""
    stage = Stage(5).start().run(1)
    first = stage.publish(1, b"first")
    stage.run(1)
    stage.split((1, 2), (3, 4, 5))
    mine = stage.publish(1, b"mine")
    stage.deliver()
    stage.split((1,), (2,), (3, 4, 5))
    stage.cut.discard((4, 1))
    stage.loses = lambda to, message: isinstance(message, EntryBatch) and to in (3, 5)
    theirs = stage.publish(4, b"theirs")
    stage.run(0.8)
    assert stage.cores[1].context.log.author == 4, "what it wrote lost its place"
    stage.loses = lambda to, message: False
    stage.split((1,), (4,), (2, 3, 5))
    later = stage.publish(3, b"later")
    stage.run(1)
    stage.cut = set()
    stage.run(3)
    assert [stage.outcome(token) for token in (first, mine)] == [Published(first, 1), Published(mine, 2)]
    values = {number: stage.delivered(number) for number in stage.numbers}
    assert all(each == values[1] for each in values.values())
    assert sorted(values[1].values()) == [b"first", b"later", b"mine", b"theirs"]
    assert {type(stage.outcome(token)) for token in (theirs, later)} == {Published}


def test_oversized_excess_and_empty_publishes_are_refused() -> None:
    stage = Stage(3, pending_bytes_max=5000).start().run(1)
    large, empty = stage.publish(1, bytes(3 << 20)), stage.publish(1)
    many = [stage.publish(2, bytes(900)) for _ in range(7)]
    kinds = [getattr(stage.outcome(token), "kind", "") for token in (large, empty, *many)]
    assert kinds[:2] == ["refused", "refused"]
    assert kinds[-1] == "busy"


# The work set.


def test_silent_member_leaves_by_an_agreed_change_and_returns_with_a_new_seat() -> None:
    stage = Stage(5).start().run(1)
    seat = stage.cores[5].context.seat
    stage.kill(5)
    stage.run(4)
    assert 5 in stage.members(1), "not before 5 s"
    stage.run(3)
    assert all(stage.members(number) == [1, 2, 3, 4] for number in (1, 2, 3, 4))
    stage.start(5).run(2)
    assert stage.states()[5] == "WRK"
    assert stage.members(2) == [1, 2, 3, 4, 5]
    assert stage.cores[5].context.seat != seat


def test_restarted_node_replaces_its_old_seat_at_once() -> None:
    stage = Stage(5).start().run(1)
    stage.publish(1, b"a")
    stage.deliver()
    stage.kill(1)
    stage.start(1)
    stage.run(2.5)
    assert stage.states() == dict.fromkeys((1, 2, 3, 4, 5), "WRK")
    assert len(stage.histories()) == 1
    assert stage.cores[1].context.me in stage.cores[3].context.log.members


def test_first_node_restarted_with_an_empty_list_begins_no_second_history() -> None:
    stage = Stage(3).start().run(1)
    stage.publish(2, b"a")
    stage.run(1)
    history = stage.cores[2].context.history
    stage.kill(1)
    stage.start(1, listed=())
    stage.run(3)
    assert stage.histories() == {history}
    assert stage.states() == {1: "WRK", 2: "WRK", 3: "WRK"}


def test_minority_is_in_err_with_a_reason_and_returns() -> None:
    stage = Stage(5).start().run(1)
    stage.split((1, 2), (3, 4, 5))
    stage.run(5.9)
    assert stage.states() == {1: "ERR", 2: "ERR", 3: "WRK", 4: "WRK", 5: "WRK"}
    refused = stage.outcome(stage.publish(1, b"no"))
    assert isinstance(refused, Unpublished)
    assert refused.kind == "refused"
    assert "2 of the 5" in refused.reason
    token = stage.publish(3, b"yes")
    stage.run(3)
    assert stage.outcome(token) == Published(token, 1)
    assert stage.members(3) == [3, 4, 5]
    stage.cut = set()
    stage.run(4)
    assert set(stage.states().values()) == {"WRK"}
    assert stage.members(3) == [1, 2, 3, 4, 5]
    states = [effect.state for number, effect in stage.effects if number == 1 and isinstance(effect, Became)]
    assert (
        states[-3:] == [SequenceState.ERR, SequenceState.DSC, SequenceState.WRK]
        or SequenceState.DSC in states[states.index(SequenceState.ERR) :]
    )


def test_two_halves_without_a_majority_continue_together_with_their_entries() -> None:
    stage = Stage(4).start().run(1)
    stage.publish(1, b"a")
    stage.run(1)
    seats = {core.context.seat for core in stage.cores.values()}
    stage.split((1, 2), (3, 4))
    stage.run(20)
    assert set(stage.states().values()) == {"ERR"}
    stage.cut = set()
    token = stage.publish(3, b"b")
    stage.run(3)
    assert set(stage.states().values()) == {"WRK"}
    assert {core.context.seat for core in stage.cores.values()} == seats, "nobody forgot anything"
    assert isinstance(stage.outcome(token), Unpublished)
    token = stage.publish(3, b"c")
    stage.run(1)
    assert stage.outcome(token) == Published(token, 2)


def test_one_of_two_continues_after_the_other_lost_its_memory() -> None:
    stage = Stage(2).start().run(1)
    stage.publish(2, b"a")
    stage.run(1)
    history = stage.cores[1].context.history
    stage.kill(2)
    stage.run(6)
    assert stage.states() == {1: "ERR"}, "the other may be alive and publishing"
    stage.start(2).run(3)
    assert stage.states() == {1: "WRK", 2: "WRK"}
    assert stage.histories() == {history}
    token = stage.publish(2, b"b")
    stage.run(1)
    assert stage.outcome(token) == Published(token, 2)


# Two histories.


def two_histories(*published: int) -> Stage:
    stage = Stage(2)
    stage.cut = {(1, 2), (2, 1)}
    stage.start(listed=())
    stage.run(3)
    for number in published:
        stage.publish(number, b"of %d" % number)
    stage.run(1)
    assert len(stage.histories()) == 2
    stage.cut = set()
    stage.run(6)
    return stage


@pytest.mark.parametrize("published", [1, 2])
def test_history_without_events_joins_the_other(published: int) -> None:
    stage = two_histories(published)
    assert stage.states() == {1: "WRK", 2: "WRK"}
    assert stage.delivered(published) == {1: b"of %d" % published}
    assert len(stage.histories()) == 1


def test_two_histories_without_events_become_one() -> None:
    assert len(two_histories().histories()) == 1


def test_two_histories_with_events_are_in_err_and_both_named() -> None:
    stage = two_histories(1, 2)
    assert stage.states() == {1: "ERR", 2: "ERR"}
    names = [core.context.name for core in stage.cores.values()]
    assert all(name in core.context.reason for name in names for core in stage.cores.values())
    stage.kill(2)
    stage.run(7)
    assert stage.states() == {1: "WRK"}, "the other is out of sight"
