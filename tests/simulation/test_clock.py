"""A node's clock: drift and jumps forward are seen, going back is not."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.world.clock import EPOCH_NS, Clock

SECOND = 10**9


def test_correct_clock_follows_world_time_from_the_epoch():
    clock = Clock()
    assert clock.read(0) == EPOCH_NS
    assert clock.read(5) == EPOCH_NS + 5
    assert clock.world_time(EPOCH_NS + 7) == 7


def test_clock_set_back_stands_still_and_a_new_process_reads_the_new_time():
    clock = Clock()
    clock.read(10 * SECOND)
    clock.jump(10 * SECOND, -4 * SECOND)
    assert clock.read(11 * SECOND) == EPOCH_NS + 10 * SECOND
    assert clock.read(15 * SECOND) == EPOCH_NS + 11 * SECOND
    clock.jump(15 * SECOND, -4 * SECOND)
    clock.process_started()
    assert clock.read(15 * SECOND) == EPOCH_NS + 7 * SECOND


def test_mended_clock_follows_world_time():
    clock = Clock()
    clock.jump(0, SECOND)
    clock.drift(0, 100)
    assert clock.drifts()
    assert clock.error_ns(0) == SECOND
    clock.set_right(SECOND)
    assert clock.read(2 * SECOND) == EPOCH_NS + 2 * SECOND
    assert not clock.drifts()


@given(st.lists(st.tuples(st.integers(0, SECOND), st.integers(-SECOND, SECOND), st.integers(-(10**5), 10**5))))
def test_clock_never_decreases_and_world_time_is_its_inverse(changes):
    clock, now, last = Clock(), 0, 0
    for wait, jump, ppm in changes:
        now += wait
        clock.jump(now, jump)
        clock.drift(now, ppm)
        shown = clock.read(now)
        assert shown >= last
        last = shown
        then = clock.world_time(shown + SECOND)
        assert clock._raw(then) >= shown + SECOND > clock._raw(then - 1)
