"""Waits for state that the engine's thread changes, in threads. Keep it in step with `chaplain.client.aio.waiting`.

A signal handler may raise in the main thread between any two steps. Nothing here can be left locked or half done by
that: each wait has a lock of its own, which only the engine releases.

CPython checks for signals before a lock wait, and a signal that arrives during the wait interrupts it. A signal that
arrives between the two, or that the kernel delivers to another thread, interrupts nothing: Ctrl-C would be lost. Waits
are therefore cut into slices of `SLICE_S`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, RLock, Thread, current_thread
from typing import Any, TypeVar
from weakref import WeakMethod

T = TypeVar("T")

SLICE_S = 0.5


class CallFuture:
    """The outcome of one call, for the one thread that waits for it."""

    __slots__ = ("_arrived", "_error", "_finished", "_result")

    def __init__(self) -> None:
        self._finished = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._arrived = Lock()
        self._arrived.acquire()

    def result(self) -> Any:
        """Wait for the outcome, and return the call's result or raise its error."""
        while not self._arrived.acquire(timeout=SLICE_S):
            pass
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            self._error = None  # breaks the reference cycle error → traceback → frame → this future

    def done(self) -> bool:
        return self._finished

    def set_result(self, result: Any, /) -> None:
        self._result = result
        self._finished = True
        self._arrived.release()

    def set_exception(self, exception: BaseException, /) -> None:
        self._error = exception
        self._finished = True
        self._arrived.release()


class Notifier:
    """Lets threads wait until the engine's thread has changed something."""

    def __init__(self) -> None:
        self.lock = RLock()  # reentrant: the garbage collector may run a finalizer at any allocation
        """Held while a condition is checked and its result is taken. Hold it to change what conditions read."""
        self._wakeups: deque[Lock] = deque()

    def notify(self) -> None:
        """Make every waiting thread check its condition again. Call it after the change; it needs no lock."""
        with suppress(IndexError):  # another thread notifies, too
            for _ in range(len(self._wakeups)):
                self._wakeups.popleft().release()

    def wait_for(self, take: Callable[[], T | None], timeout_s: float | None) -> T | None:
        """Return what `take` returns as soon as that is not None, or None after `timeout_s` seconds."""
        with self.lock:
            if (taken := take()) is not None:
                return taken
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        wakeup = Lock()
        wakeup.acquire()
        try:
            while True:
                self._wakeups.append(wakeup)  # before the check: a change after the check finds it
                with self.lock:
                    if (taken := take()) is not None:
                        return taken
                while not wakeup.acquire(timeout=_slice_s(end_s)):
                    if end_s is not None and time.monotonic() >= end_s:
                        return None
        finally:
            with suppress(ValueError, IndexError):  # a notification removed it, or removes another
                self._wakeups.remove(wakeup)


class Ticker:
    """Calls a method of its owner again and again, in a thread. It ends with its owner, even if nobody closes it.

    The method returns the seconds until the next call, or None to end. It must not raise.
    """

    def __init__(self, act: Callable[[], float | None]) -> None:
        self._woken = Event()
        self._closed = Event()
        arguments = (WeakMethod(act), self._woken, self._closed)
        self._thread = Thread(target=_tick, args=arguments, name="chaplain consumer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Call the method soon."""
        self._woken.set()

    def close(self) -> None:
        """End. The method is not running when this returns."""
        self._closed.set()
        self._woken.set()
        if self._thread is not current_thread():
            self._thread.join()


def _tick(method: WeakMethod[Callable[[], float | None]], woken: Event, closed: Event) -> None:
    while (act := method()) is not None and not closed.is_set():
        woken.clear()
        wait_s = act()
        if wait_s is None:
            return
        del act  # the owner may be collected during the wait
        woken.wait(wait_s)


def _slice_s(end_s: float | None) -> float:
    return SLICE_S if end_s is None else max(0.0, min(SLICE_S, end_s - time.monotonic()))


def begin(first_wait: Callable[[], object]) -> None:
    """Wait now: a caller gets errors at once, and misses nothing that a listener is to receive."""
    first_wait()
