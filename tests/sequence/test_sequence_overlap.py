"""Whoever decides and whoever takes the lock share a memory, however the work set changed between them."""

from __future__ import annotations

from sequence_stage import Stage

from chaplain.sequence.entry import EntryKind, decode_entries
from chaplain.sequence.events import Published
from chaplain.sequence.messages import Events, Fill, Message

SEEDS = range(1, 8)


def changes(message: Message) -> bool:
    return isinstance(message, Events) and any(e.kind is EntryKind.CHANGE for e in decode_entries(message.entries))


def grown_unheard(seed: int) -> Stage:
    """Four became five by 3, 4 and 5. Node 1 has not heard of it; 2 holds the change, not that it is decided."""
    stage = Stage(4, seed=seed).start().run(1)
    stage.publish(3, b"a")
    stage.run(1)
    assert stage.holder() == 3
    stage.numbers = (1, 2, 3, 4, 5)
    began = False

    def loses(to: int, message: Message) -> bool:
        nonlocal began
        first, began = changes(message) and not began, began or changes(message)
        return began and (to == 1 or (to == 2 and not (first or changes(message))))

    stage.loses = loses
    stage.start(5).run(1)
    assert [stage.members(number) for number in (2, 3)] == [[1, 2, 3, 4], [1, 2, 3, 4, 5]]
    return stage


def restart(stage: Stage, *numbers: int) -> None:
    for number in numbers:
        stage.kill(number)
    stage.loses = lambda to, message: False
    stage.start(*numbers)


def test_half_of_the_old_set_does_not_go_on_without_what_the_new_one_decided() -> None:
    for seed in SEEDS:
        stage = grown_unheard(seed)
        token = stage.publish(3, b"m")
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


def test_what_one_holds_unknowing_that_it_is_decided_is_not_displaced() -> None:
    for seed in SEEDS:
        stage = grown_unheard(seed)
        stage.cut = {(4, 5)}
        token = stage.publish(3, b"m")
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
