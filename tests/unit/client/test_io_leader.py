"""Who drives, who is rung and who is kicked: the wheel, one act at a time, in every order Hypothesis can think of."""

from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import integers

from chaplain.client.io import io_leader as wheel_module
from chaplain.client.io.io_leader import IoLeader
from chaplain.client.io.waiter import Waiter
from chaplain.client.protocol.events import Cancelled
from chaplain.errors import Closed

ENGINE = threading.get_ident()
"""In these tests one thread plays everybody: the engine's own takes the wheel under this number."""


class Wakes:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def rung(waiter: Waiter) -> bool:
    return waiter.rings


def kicked(wheel: IoLeader) -> bool:
    return not wheel._kick.locked()


def made() -> tuple[IoLeader, Wakes]:
    wakes = Wakes()
    return IoLeader(wakes), wakes


def dozing() -> tuple[IoLeader, Wakes]:
    """The engine's thread dozes, because somebody drove when it looked; nobody does now."""
    wheel, wakes = made()
    assert wheel.take(1, Waiter(), None)
    assert not wheel.take_over()
    wheel.leave(soon=False)
    assert not kicked(wheel)
    return wheel, wakes


def test_a_lone_caller_drives_and_wakes_nobody() -> None:
    wheel, wakes = dozing()
    for call in range(3):
        assert wheel.take(1, Waiter(), Cancelled(call))
        assert wheel.taken_in() == [Cancelled(call)]
        wheel.leave(soon=False)
    assert wakes.count == 0
    assert not kicked(wheel)


def test_who_comes_second_wakes_the_driver_and_is_rung_when_it_leaves() -> None:
    wheel, wakes = made()
    first, second, third = Waiter(), Waiter(), Waiter()
    assert wheel.take(1, first, Cancelled(1))
    assert not wheel.take(2, second, Cancelled(2))
    assert not wheel.take(3, third, Cancelled(3))
    assert wakes.count == 1, "one wake-up is enough for both"
    assert wheel.taken_in() == [Cancelled(1), Cancelled(2), Cancelled(3)]
    second.set_result(b"")
    wheel.leave(soon=False)
    assert rung(third), "the second has what it wanted, and would not drive"
    assert wheel.take(3, third, None)


def test_who_was_rung_and_goes_without_driving_passes_it_on() -> None:
    wheel, _ = made()
    first, second, third = Waiter(), Waiter(), Waiter()
    wheel.take(1, first, None)
    wheel.take(2, second, None)
    wheel.take(3, third, None)
    wheel.leave(soon=False)
    assert (rung(second), rung(third)) == (True, False)
    wheel.go(second)
    assert rung(third)


def test_what_nobody_waits_for_is_the_engines() -> None:
    wheel, wakes = dozing()
    wheel.put(Cancelled(1))
    assert kicked(wheel)
    assert wakes.count == 0
    wheel.doze()
    assert wheel.take_over()
    assert wheel.taken_in() == [Cancelled(1)]
    wheel.leave(soon=False)
    wheel.put(Cancelled(2))
    assert wakes.count == 1, "it watches now"


def test_what_is_put_in_while_a_driver_leaves_is_the_engines() -> None:
    wheel, wakes = dozing()
    wheel.take(1, Waiter(), None)
    wheel.put(Cancelled(1))
    assert wakes.count == 1
    wheel.leave(soon=False)
    assert kicked(wheel)


def test_the_engine_does_not_doze_while_somebody_waits_without_driving() -> None:
    wheel, _ = dozing()
    with wheel.attended:
        assert kicked(wheel)
        wheel.doze()
        assert wheel.take(1, Waiter(), None)
        assert not wheel.take_over()
        wheel.leave(soon=False)
        assert kicked(wheel)
    wheel.doze()
    assert wheel.take(1, Waiter(), None)
    wheel.leave(soon=False)
    assert not kicked(wheel)


def test_a_doze_ends_when_nobody_drove_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_module, "DOZE_S", 0.001)
    wheel, _ = dozing()
    wheel.doze()
    assert wheel.take_over()


def test_an_end_wakes_everybody_and_takes_no_more() -> None:
    wheel, wakes = dozing()
    wheel.take(1, Waiter(), None)
    wheel.end()
    assert kicked(wheel)
    assert wakes.count == 1
    with pytest.raises(Closed):
        wheel.put(Cancelled(1))
    with pytest.raises(Closed):
        wheel.take(1, Waiter(), Cancelled(1))
    assert not wheel.take(1, Waiter(), None), "who waits already is told otherwise"


def test_the_engine_does_not_drive_after_the_end() -> None:
    """It may have looked just before whether that has come. Then a turn would read the waking, and watch for ever."""
    wheel, _ = dozing()
    wheel.take(1, Waiter(), None)
    wheel.end()
    assert not wheel.take_over()
    wheel.doze()
    assert wheel.ended


class EveryOrder(RuleBasedStateMachine):
    """Callers 1 to 4 and the engine's thread. `asleep` are the callers that only a ring brings back."""

    def __init__(self) -> None:
        super().__init__()
        self.wheel, self.wakes = made()
        self.waiters: dict[int, Waiter] = {}
        self.asleep: set[int] = set()
        self.seen = 0
        self.watching = False

    def _try(self, caller: int, event: Cancelled | None) -> None:
        if not self.wheel.take(caller, self.waiters[caller], event):
            self.asleep.add(caller)

    @rule(caller=integers(1, 4), calls=integers(0, 1))
    def come(self, caller: int, calls: int) -> None:
        if caller not in self.waiters:
            self.waiters[caller] = Waiter()
            self._try(caller, Cancelled(caller) if calls else None)

    @rule(caller=integers(1, 4))
    def put(self, caller: int) -> None:
        if self.wheel.driver != caller:
            self.wheel.put(Cancelled(caller))

    @rule(caller=integers(1, 4), over=integers(0, 1))
    def wake_up(self, caller: int, over: int) -> None:
        """Rung; or `over`, by a time-out or a signal, which need no ring."""
        if caller in self.asleep and (over or rung(self.waiters[caller])):
            self.asleep.discard(caller)
            waiter = self.waiters[caller]
            waiter.sleep(0)
            if over or waiter.over:
                self.wheel.go(waiter)
                del self.waiters[caller]
            else:
                self._try(caller, None)

    @precondition(lambda self: self.wheel.driver in self.waiters)
    @rule(other=integers(1, 4))
    def tell(self, other: int) -> None:
        self.wheel.taken_in()
        if other in self.waiters:
            self.waiters[other].set_result(b"")

    @precondition(lambda self: self.wheel.driver in self.waiters)
    @rule(soon=integers(0, 1))
    def leave(self, soon: int) -> None:
        del self.waiters[self.wheel.driver]
        self.wheel.leave(soon=bool(soon))

    @rule()
    def engine(self) -> None:
        if self.wheel.driver == ENGINE:
            self.wheel.taken_in()
            self.wheel.leave(soon=False)
            self.watching, self.seen = True, self.wakes.count
        elif not self.watching or self.wakes.count > self.seen:
            if self.wheel.dozes:
                self.wheel._kick.acquire(blocking=False)
            self.watching = False
            self.wheel.take_over()

    @invariant()
    def somebody_is_on_the_way(self) -> None:
        wheel = self.wheel
        engine_comes = not self.watching and (not wheel.dozes or kicked(wheel))
        wanted = any(rung(self.waiters[caller]) and not self.waiters[caller].over for caller in self.asleep)
        if wheel.driver or engine_comes or wanted:
            return
        assert not wheel._queue or (self.watching and self.wakes.count > self.seen), "what was put in is forgotten"
        waiting = [caller for caller in self.asleep if not self.waiters[caller].over]
        assert not waiting or self.watching, "nobody drives for those who wait"


EveryOrder.TestCase.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
TestEveryOrder = EveryOrder.TestCase
