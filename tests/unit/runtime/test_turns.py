"""How much of the loop's time requests of clients get, by a clock that is told how long each takes."""

from __future__ import annotations

from chaplain.runtime.turns import Turns

MILLISECOND = 1_000_000


class Loop:
    def __init__(self, cost_ns: int, waiting: int, share: float = 0.5) -> None:
        self.now_ns = 0
        self.cost_ns = cost_ns
        self.waiting = waiting
        self.contended = True
        self.turns = Turns(MILLISECOND, share, lambda: self.now_ns)

    def turn(self) -> int:
        """How many requests were served in it."""
        before = self.waiting
        self.turns.serve(lambda: self.waiting > 0, lambda: self.contended, self._serve)
        return before - self.waiting

    def _serve(self) -> None:
        self.waiting -= 1
        self.now_ns += self.cost_ns


def test_a_turn_ends_when_its_time_is_over() -> None:
    loop = Loop(MILLISECOND // 10, 1000)
    assert loop.turn() == 10


def test_a_request_that_takes_longer_than_a_turn_is_served_alone() -> None:
    assert Loop(5 * MILLISECOND, 1000).turn() == 1


def test_while_requests_wait_they_take_no_more_than_their_share_of_the_time() -> None:
    loop = Loop(MILLISECOND // 10, 100_000, share=0.25)
    served = 0
    while loop.now_ns < 1000 * MILLISECOND:
        served += loop.turn()
        loop.now_ns += MILLISECOND // 10  # something else
    assert abs(served * loop.cost_ns - 250 * MILLISECOND) < 20 * MILLISECOND


def test_when_nothing_waits_any_more_the_next_request_is_served_at_once() -> None:
    loop = Loop(MILLISECOND // 10, 5)
    assert loop.turn() == 5
    loop.waiting = 1
    assert loop.turns.rest_ns() == 0
    assert loop.turn() == 1


def test_a_client_alone_is_served_without_a_rest() -> None:
    loop = Loop(MILLISECOND // 10, 1000)
    loop.contended = False
    assert loop.turn() == 10
    assert loop.turns.rest_ns() == 0
    assert loop.turn() == 10


def test_the_rest_after_a_full_turn_is_known() -> None:
    loop = Loop(MILLISECOND // 10, 1000)
    loop.turn()
    assert loop.turns.rest_ns() == MILLISECOND
    assert loop.turn() == 0
    loop.now_ns += MILLISECOND
    assert loop.turn() == 10
