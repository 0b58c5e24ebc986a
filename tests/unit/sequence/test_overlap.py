"""Whoever decides and whoever takes the lock share a memory, however the work set changed between them."""

from __future__ import annotations

from chaplain.sequence.events import Published
from chaplain.sequence.messages.entry import EntryKind, SeatedMember, decode_entries
from chaplain.sequence.messages.peer import EntryBatch, Fill, Message
from tests.unit.sequence.sequence_stage import Stage

SEEDS = range(1, 8)


def changes(message: Message) -> bool:
    return isinstance(message, EntryBatch) and any(e.kind is EntryKind.CHANGE for e in decode_entries(message.entries))


def grown(stage: Stage, unhearing: tuple[int, ...]) -> Stage:
    """One more joined by the word of the last. Of those who hear no more, the first holds the change, the rest not."""
    stage.start().run(1)
    last, new = stage.numbers[-1], stage.numbers[-1] + 1
    stage.publish(last, b"a")
    stage.run(1)
    assert stage.holder() == last
    began = False

    def loses(to: int, message: Message) -> bool:
        nonlocal began
        began = began or changes(message)
        return began and to in unhearing and not (to == unhearing[0] and changes(message))

    stage.loses = loses
    stage.numbers = (*stage.numbers, new)
    stage.start(new).run(1)
    assert len(stage.members(last)) == len(stage.members(unhearing[0])) + 1
    return stage


def restart(stage: Stage, *numbers: int) -> None:
    for number in numbers:
        stage.kill(number)
    stage.loses = lambda to, message: False
    stage.start(*numbers)


def test_half_of_the_old_set_cannot_continue_without_the_new_sets_decisions() -> None:
    for seed in SEEDS:
        stage = grown(Stage(4, seed=seed), unhearing=(2, 1))
        token = stage.publish(4, b"m")
        stage.run(0.2)
        assert stage.outcome(token) == Published(token, 2)
        stage.cut = {(5, 1), (5, 2)}
        restart(stage, 3, 4)
        stage.publish(1, b"x")
        stage.run(3)
        stage.cut = set()
        stage.run(8)
        assert set(stage.states().values()) == {"WRK"}
        assert all(stage.delivered(number)[2] == b"m" for number in stage.cores)


def test_decided_entry_survives_a_lock_change_by_an_uninformed_holder() -> None:
    for seed in SEEDS:
        stage = grown(Stage(4, seed=seed), unhearing=(2, 1))
        stage.cut = {(3, 5)}
        token = stage.publish(4, b"m")
        stage.deliver()
        assert stage.outcome(token) == Published(token, 2)
        assert 2 not in stage.delivered(5)
        stage.cut = {(5, 1), (5, 2)}
        restart(stage, 3, 4)
        stage.loses = lambda to, message: isinstance(message, Fill) and to == 2
        late = stage.publish(1, b"x")
        stage.run(3)
        stage.cut, stage.loses = set(), lambda to, message: False
        stage.run(8)
        assert set(stage.states().values()) == {"WRK"}
        assert stage.outcome(late) == Published(late, 3)
        assert all(stage.delivered(number) == {1: b"a", 2: b"m", 3: b"x"} for number in stage.cores)


def test_majority_of_the_old_set_cannot_continue_without_half_of_the_new_set() -> None:
    """What 4, 5 and 6 hold is decided by half of six if the rest are dead; for 6 by what it heard of 4 and 5."""
    for seed in SEEDS:
        stage = grown(Stage(5, seed=seed), unhearing=(1, 2, 3))
        stage.publish(5, b"m")
        stage.deliver()
        stage.loses = lambda to, message: to == 6 or (isinstance(message, Fill) and to == 1)
        stage.split((1, 2, 3), (4, 5, 6))
        stage.cut -= {(one, other) for one in (1, 2, 3) for other in (4, 5, 6)}
        stage.publish(1, b"x")
        stage.run(1.5)
        stage.cut = set()
        stage.run(1)
        restart(stage, 1, 2, 3)
        stage.cut = {(4, 6), (5, 6)}
        stage.run(1)
        stage.cut = set()
        stage.run(8)
        assert {stage.delivered(number).get(2) for number in stage.cores} == {b"m"}


def joins_unheard() -> Stage:
    """Five are to become six. Node 1 alone holds the change; its author, 3, and 4 are gone."""
    stage = Stage(5).start().run(1)
    stage.publish(3, b"a")
    stage.run(1)
    assert stage.holder() == 3
    stage.numbers = (1, 2, 3, 4, 5, 6)
    stage.loses = lambda to, message: to != 1 and changes(message)
    stage.start(6)
    while not stage.cores[1].context.log.changing:
        stage.run(0.01)
    stage.kill(3)
    stage.kill(4)
    stage.loses = lambda to, message: False
    return stage


def test_joining_node_grants_the_lock_before_it_knows_that_it_counts() -> None:
    """1, 2 and 5 are most of five, and with 6 most of six."""
    stage = joins_unheard()
    assert not stage.cores[6].context.may_be_counted
    stage.cut = {(1, 2), (1, 5), (1, 6)}
    token = stage.publish(1, b"b")
    stage.run(0.1)
    stage.cut = set()
    stage.run(3)
    assert stage.outcome(token) == Published(token, 2)
    stage.run(8)
    assert set(stage.states().values()) == {"WRK"}
    assert stage.members(6) == [1, 2, 5, 6]


def test_holder_without_enough_of_the_new_set_is_in_err() -> None:
    """Without 6 only half of the six are here, and the others may remember more."""
    stage = joins_unheard()
    stage.kill(6)
    stage.publish(1, b"b")
    stage.run(12)
    assert stage.states()[1] == "ERR"
    assert "reaches 3 of the 6 members" in stage.cores[1].context.reason
    stage.start(3, 4, 6).run(12)
    assert set(stage.states().values()) == {"WRK"}
    assert len(stage.histories()) == 1


def test_exact_half_counts_only_for_a_member_of_it() -> None:
    """Another may have words of seats that died before the rest did, and the rest went on meanwhile."""
    context = Stage(1).start().cores[1].context
    context.peers.dead.add(20)
    assert context.dead((context.me, SeatedMember(2, 20))) == {20}
    assert context.dead((SeatedMember(2, 20), SeatedMember(3, 30))) == ()
