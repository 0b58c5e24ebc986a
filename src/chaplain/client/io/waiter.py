"""One who blocks until a call has ended.

Takes the call's outcome as a future does. While somebody else drives, it sleeps, and can be rung to look again: because
its outcome is there, or because nobody drives any more.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import Any


class Waiter:
    __slots__ = ("_bell", "_error", "_result", "over")

    def __init__(self) -> None:
        self.over = False
        """The outcome is there."""
        self._result: Any = None
        self._error: BaseException | None = None
        self._bell: Lock | None = None  # held until it is rung

    def arm(self) -> None:
        """From now on it can be rung. Who means to sleep looks whether it is over after this, not before."""
        if self._bell is None:
            bell = Lock()
            bell.acquire()
            self._bell = bell

    def sleep(self, timeout_s: float) -> None:
        """Until it is rung, which may have happened before."""
        self.arm()
        assert self._bell is not None
        if not self.over:
            self._bell.acquire(timeout=max(0.0, timeout_s))

    def ring(self) -> None:
        assert self._bell is not None, "only who is armed can be rung"
        with suppress(RuntimeError):  # it is ringing
            self._bell.release()

    @property
    def rings(self) -> bool:
        return self._bell is not None and not self._bell.locked()

    def result(self) -> Any:
        """What came of the call, once it is over: given, or raised."""
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            self._error = None  # it knows the frames that know us: nobody should have to collect that

    # As a future.

    def done(self) -> bool:
        return self.over

    def set_result(self, result: Any, /) -> None:
        self._result = result
        self.over = True
        if self._bell is not None:
            self.ring()

    def set_exception(self, exception: BaseException, /) -> None:
        self._error = exception
        self.over = True
        if self._bell is not None:
            self.ring()
