"""The checker of histories: it accepts what an order explains, and nothing else."""

from __future__ import annotations

import random

from tests.support.linearizability import (
    Answered,
    Asked,
    Operation,
    StreamState,
    is_linearizable,
    step_of_stream,
)

WRITE = Asked((b"k",))


def holds(*history: Operation) -> bool:
    return is_linearizable(history, StreamState(), step_of_stream)


def test_concurrent_writes_have_any_order_and_consecutive_ones_have_one() -> None:
    first, second = Answered(True, 0), Answered(True, 1)
    assert holds(Operation(1, 9, WRITE, second), Operation(2, 8, WRITE, first))
    assert not holds(Operation(1, 2, WRITE, second), Operation(3, 4, WRITE, first))


def test_two_writes_at_one_offset_are_not_linearizable() -> None:
    swap = Asked((b"k",), 0)
    assert not holds(Operation(1, 9, swap, Answered(True, 0)), Operation(2, 8, swap, Answered(True, 0)))
    assert holds(Operation(1, 9, swap, Answered(True, 0)), Operation(2, 8, swap, Answered(False, 1)))
    assert not holds(Operation(1, 2, swap, Answered(False, 1)))


def test_version_of_a_key_ignores_other_keys() -> None:
    update = Asked((b"k",), None, ((b"k", 0),))
    other = Operation(3, 4, Asked((b"l",)), Answered(True, 1))
    written = Operation(1, 2, WRITE, Answered(True, 0))
    assert holds(written, other, Operation(5, 6, update, Answered(True, 2)))
    assert not holds(written, Operation(3, 4, WRITE, Answered(True, 1)), Operation(5, 6, update, Answered(True, 2)))


def test_operation_without_an_answer_takes_effect_at_any_later_time_or_never() -> None:
    lost = Operation(1, None, WRITE, None)
    assert holds(lost, Operation(2, 3, WRITE, Answered(True, 0)))
    assert holds(lost, Operation(2, 3, WRITE, Answered(True, 0)), Operation(4, 5, WRITE, Answered(True, 2)))
    assert not holds(Operation(2, 3, WRITE, Answered(True, 1)), Operation(4, None, WRITE, None))


def test_random_histories_of_a_real_register_are_accepted_and_changed_ones_are_not() -> None:
    rng = random.Random(7)
    for _ in range(30):
        state, history, now = StreamState(), [], 0
        for _ in range(60):
            asked = Asked((rng.choice((b"a", b"b")),), rng.choice((None, state.length, state.length - 1)))
            now += 10
            good = asked.expect_offset in (None, state.length)
            answer = Answered(good, state.length)
            following = step_of_stream(state, asked, answer)
            assert following is not None
            history.append(Operation(now - rng.randrange(40), now + rng.randrange(40), asked, answer))
            state = following
        assert holds(*history)
        number = rng.randrange(30, 60)
        wrong = history[number]
        changed = wrong._replace(answer=wrong.answer._replace(offset=wrong.answer.offset + 20))
        assert not holds(*history[:number], changed, *history[number + 1 :])
