"""A minimal future for a thread that blocks until a call has ended.

While another thread leads the I/O, the waiter sleeps. It is woken when its outcome has arrived, or when no thread leads
and this one should.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import Any


class Waiter:
    """The future of one blocking call."""

    __slots__ = ("_error", "_result", "_wakeup", "finished")

    def __init__(self) -> None:
        self.finished = False
        """True once the outcome has arrived."""
        self._result: Any = None
        self._error: BaseException | None = None
        self._wakeup: Lock | None = None  # held; released to wake the waiter

    def prepare_wakeup(self) -> None:
        """Allow `wake`. A thread that means to sleep checks `finished` after this call, not before."""
        if self._wakeup is None:
            wakeup = Lock()
            wakeup.acquire()
            self._wakeup = wakeup

    def wait(self, timeout_s: float) -> None:
        """Block until woken or until `timeout_s` has passed. A wake-up before the call counts."""
        self.prepare_wakeup()
        assert self._wakeup is not None
        if not self.finished:
            self._wakeup.acquire(timeout=max(0.0, timeout_s))

    def wake(self) -> None:
        """Wake the thread that waits, or its next `wait`."""
        assert self._wakeup is not None, "call prepare_wakeup first"
        with suppress(RuntimeError):  # a wake-up is pending already
            self._wakeup.release()

    @property
    def woken(self) -> bool:
        """True if a wake-up is pending."""
        return self._wakeup is not None and not self._wakeup.locked()

    def result(self) -> Any:
        """Return the call's result or raise its error. Only once `finished` is true."""
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            self._error = None  # breaks the reference cycle error → traceback → frame → this waiter

    # The interface of a future.

    def done(self) -> bool:
        return self.finished

    def set_result(self, result: Any, /) -> None:
        self._result = result
        self.finished = True
        if self._wakeup is not None:
            self.wake()

    def set_exception(self, exception: BaseException, /) -> None:
        self._error = exception
        self.finished = True
        if self._wakeup is not None:
            self.wake()
