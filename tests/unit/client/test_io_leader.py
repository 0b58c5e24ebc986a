"""Who drives, who is rung and who is kicked: the wheel, one act at a time, in every order Hypothesis can think of."""

from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import integers

from chaplain.client.io import io_leader as io_leader_module
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
    return waiter.woken


def kicked(io_leader: IoLeader) -> bool:
    return not io_leader._background_wakeup.locked()


def made() -> tuple[IoLeader, Wakes]:
    wakes = Wakes()
    return IoLeader(wakes), wakes


def dozing() -> tuple[IoLeader, Wakes]:
    """The engine's thread dozes, because somebody drove when it looked; nobody does now."""
    io_leader, wakes = made()
    assert io_leader.try_lead(1, Waiter(), None)
    assert not io_leader.try_lead_in_background()
    io_leader.release(wake_background=False)
    assert not kicked(io_leader)
    return io_leader, wakes


def test_a_lone_caller_drives_and_wakes_nobody() -> None:
    io_leader, wakes = dozing()
    for call in range(3):
        assert io_leader.try_lead(1, Waiter(), Cancelled(call))
        assert io_leader.take_queue() == [Cancelled(call)]
        io_leader.release(wake_background=False)
    assert wakes.count == 0
    assert not kicked(io_leader)


def test_who_comes_second_wakes_the_driver_and_is_rung_when_it_leaves() -> None:
    io_leader, wakes = made()
    first, second, third = Waiter(), Waiter(), Waiter()
    assert io_leader.try_lead(1, first, Cancelled(1))
    assert not io_leader.try_lead(2, second, Cancelled(2))
    assert not io_leader.try_lead(3, third, Cancelled(3))
    assert wakes.count == 1, "one wake-up is enough for both"
    assert io_leader.take_queue() == [Cancelled(1), Cancelled(2), Cancelled(3)]
    second.set_result(b"")
    io_leader.release(wake_background=False)
    assert rung(third), "the second has what it wanted, and would not drive"
    assert io_leader.try_lead(3, third, None)


def test_who_was_rung_and_goes_without_driving_passes_it_on() -> None:
    io_leader, _ = made()
    first, second, third = Waiter(), Waiter(), Waiter()
    io_leader.try_lead(1, first, None)
    io_leader.try_lead(2, second, None)
    io_leader.try_lead(3, third, None)
    io_leader.release(wake_background=False)
    assert (rung(second), rung(third)) == (True, False)
    io_leader.remove_waiter(second)
    assert rung(third)


def test_what_nobody_waits_for_is_the_engines() -> None:
    io_leader, wakes = dozing()
    io_leader.submit(Cancelled(1))
    assert kicked(io_leader)
    assert wakes.count == 0
    io_leader.sleep_in_background()
    assert io_leader.try_lead_in_background()
    assert io_leader.take_queue() == [Cancelled(1)]
    io_leader.release(wake_background=False)
    io_leader.submit(Cancelled(2))
    assert wakes.count == 1, "it watches now"


def test_what_is_put_in_while_a_driver_leaves_is_the_engines() -> None:
    io_leader, wakes = dozing()
    io_leader.try_lead(1, Waiter(), None)
    io_leader.submit(Cancelled(1))
    assert wakes.count == 1
    io_leader.release(wake_background=False)
    assert kicked(io_leader)


def test_the_engine_does_not_doze_while_somebody_waits_without_driving() -> None:
    io_leader, _ = dozing()
    with io_leader.passive_wait:
        assert kicked(io_leader)
        io_leader.sleep_in_background()
        assert io_leader.try_lead(1, Waiter(), None)
        assert not io_leader.try_lead_in_background()
        io_leader.release(wake_background=False)
        assert kicked(io_leader)
    io_leader.sleep_in_background()
    assert io_leader.try_lead(1, Waiter(), None)
    io_leader.release(wake_background=False)
    assert not kicked(io_leader)


def test_a_doze_ends_when_nobody_drove_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_leader_module, "BACKGROUND_SLEEP_S", 0.001)
    io_leader, _ = dozing()
    io_leader.sleep_in_background()
    assert io_leader.try_lead_in_background()


def test_an_end_wakes_everybody_and_takes_no_more() -> None:
    io_leader, wakes = dozing()
    io_leader.try_lead(1, Waiter(), None)
    io_leader.end()
    assert kicked(io_leader)
    assert wakes.count == 1
    with pytest.raises(Closed):
        io_leader.submit(Cancelled(1))
    with pytest.raises(Closed):
        io_leader.try_lead(1, Waiter(), Cancelled(1))
    assert not io_leader.try_lead(1, Waiter(), None), "who waits already is told otherwise"


def test_the_engine_does_not_drive_after_the_end() -> None:
    """It may have looked just before whether that has come. Then a turn would read the waking, and watch for ever."""
    io_leader, _ = dozing()
    io_leader.try_lead(1, Waiter(), None)
    io_leader.end()
    assert not io_leader.try_lead_in_background()
    io_leader.sleep_in_background()
    assert io_leader.ended


class EveryOrder(RuleBasedStateMachine):
    """Callers 1 to 4 and the engine's thread. `asleep` are the callers that only a ring brings back."""

    def __init__(self) -> None:
        super().__init__()
        self.io_leader, self.wakes = made()
        self.waiters: dict[int, Waiter] = {}
        self.asleep: set[int] = set()
        self.seen = 0
        self.watching = False

    def _try(self, caller: int, event: Cancelled | None) -> None:
        if not self.io_leader.try_lead(caller, self.waiters[caller], event):
            self.asleep.add(caller)

    @rule(caller=integers(1, 4), calls=integers(0, 1))
    def come(self, caller: int, calls: int) -> None:
        if caller not in self.waiters:
            self.waiters[caller] = Waiter()
            self._try(caller, Cancelled(caller) if calls else None)

    @rule(caller=integers(1, 4))
    def put(self, caller: int) -> None:
        if self.io_leader.thread != caller:
            self.io_leader.submit(Cancelled(caller))

    @rule(caller=integers(1, 4), over=integers(0, 1))
    def wake_up(self, caller: int, over: int) -> None:
        """Rung; or `over`, by a time-out or a signal, which need no ring."""
        if caller in self.asleep and (over or rung(self.waiters[caller])):
            self.asleep.discard(caller)
            waiter = self.waiters[caller]
            waiter.wait(0)
            if over or waiter.finished:
                self.io_leader.remove_waiter(waiter)
                del self.waiters[caller]
            else:
                self._try(caller, None)

    @precondition(lambda self: self.io_leader.thread in self.waiters)
    @rule(other=integers(1, 4))
    def tell(self, other: int) -> None:
        self.io_leader.take_queue()
        if other in self.waiters:
            self.waiters[other].set_result(b"")

    @precondition(lambda self: self.io_leader.thread in self.waiters)
    @rule(wake_background=integers(0, 1))
    def release(self, wake_background: int) -> None:
        del self.waiters[self.io_leader.thread]
        self.io_leader.release(wake_background=bool(wake_background))

    @rule()
    def engine(self) -> None:
        if self.io_leader.thread == ENGINE:
            self.io_leader.take_queue()
            self.io_leader.release(wake_background=False)
            self.watching, self.seen = True, self.wakes.count
        elif not self.watching or self.wakes.count > self.seen:
            if self.io_leader.background_sleeps:
                self.io_leader._background_wakeup.acquire(blocking=False)
            self.watching = False
            self.io_leader.try_lead_in_background()

    @invariant()
    def somebody_is_on_the_way(self) -> None:
        io_leader = self.io_leader
        engine_comes = not self.watching and (not io_leader.background_sleeps or kicked(io_leader))
        wanted = any(rung(self.waiters[caller]) and not self.waiters[caller].finished for caller in self.asleep)
        if io_leader.thread or engine_comes or wanted:
            return
        assert not io_leader._queue or (self.watching and self.wakes.count > self.seen), "what was put in is forgotten"
        waiting = [caller for caller in self.asleep if not self.waiters[caller].finished]
        assert not waiting or self.watching, "nobody drives for those who wait"


EveryOrder.TestCase.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
TestEveryOrder = EveryOrder.TestCase
