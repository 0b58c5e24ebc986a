"""Signal handlers are held back while the shield is up, and all of them have their turn afterwards."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from chaplain.client.io.signal_deferral import SignalDeferral

pytestmark = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="Python handles signals in the main thread"
)


class Interrupted(BaseException):
    pass


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """SIGUSR1 is put down here; SIGUSR2 also raises."""
    seen: list[int] = []

    def put_down(number: int, _frame: object) -> None:
        seen.append(number)
        if number == signal.SIGUSR2:
            raise Interrupted

    before = {number: signal.signal(number, put_down) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_is_handled_when_the_shield_is_down_and_is_announced_before(handled: list[int]) -> None:
    deferral = SignalDeferral()
    installed = signal.getsignal(signal.SIGUSR1)
    with deferral:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert handled == []
        assert list(deferral.pending) == [signal.SIGUSR1]
        assert os.eventfd_read(deferral.fileno()) == 2
    assert handled == [signal.SIGUSR1]
    assert not deferral.pending
    assert signal.getsignal(signal.SIGUSR1) is installed


def test_what_a_handler_raises_comes_out_of_the_shield_and_others_have_their_turn(handled: list[int]) -> None:
    deferral = SignalDeferral()
    deferral.__enter__()
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR2)
    assert handled == []
    with pytest.raises(Interrupted):
        deferral.__exit__()
    assert sorted(handled) == [signal.SIGUSR1, signal.SIGUSR2]
    with deferral:
        pass
    assert len(handled) == 2


def test_what_a_program_changes_is_not_undone(handled: list[int]) -> None:
    deferral = SignalDeferral()
    with deferral:
        pass
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with deferral:
        signal.raise_signal(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    assert handled == []


def test_a_handler_that_could_not_be_put_back_still_has_its_signals(handled: list[int]) -> None:
    deferral = SignalDeferral()
    deferral.__enter__()
    note = signal.getsignal(signal.SIGUSR1)
    deferral.__exit__()
    signal.signal(signal.SIGUSR1, note)
    signal.raise_signal(signal.SIGUSR1)
    assert handled == [signal.SIGUSR1]
    with deferral:
        signal.raise_signal(signal.SIGUSR1)
    assert len(handled) == 2
    assert signal.getsignal(signal.SIGUSR1) != note


def test_shields_of_two_clients_fit_into_each_other(handled: list[int]) -> None:
    with SignalDeferral() as outer:
        with SignalDeferral() as inner:
            signal.raise_signal(signal.SIGUSR1)
            assert inner.pending
            assert not outer.pending
        assert outer.pending
        assert handled == []
    assert handled == [signal.SIGUSR1]
