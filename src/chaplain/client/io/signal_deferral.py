"""Defer the program's signal handlers while the main thread leads the I/O of a client.

Python runs signal handlers in the main thread, between any two bytecode instructions. A handler that raises, such as
the one for Ctrl-C, would leave the core half stepped. A handler that calls the client would find it in use. While the
main thread leads, every Python handler is therefore replaced by one that records the signal and ends the wait. When the
main thread stops leading, the handlers are restored and the recorded signals are handled: a few milliseconds late at
most.

Exceptions that another thread injects into this one cannot be deferred: they end the client, as a defect does.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sized
from types import FrameType
from typing import Any

_FAULTS = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
_NUMBERS = tuple(sorted(int(number) for number in signal.valid_signals() - _FAULTS if number < 32))

_NOT_PYTHON_HANDLERS = (None, signal.SIG_DFL, signal.SIG_IGN)

# The C module under `signal`, if present: without the conversion to enums, which costs more than everything else here.
_signal: Any = sys.modules.get("_signal", signal)
_get: Callable[[int], Any] = _signal.getsignal
_set: Callable[[int, Any], Any] = _signal.signal


class SignalDeferral:
    """Context manager for the main thread while it leads. Other threads use `NO_DEFERRAL`."""

    def __init__(self) -> None:
        self.pending: dict[int, FrameType | None] = {}
        """Signals that arrived while handlers were deferred, with their frames."""
        self._installed: list[Any] = []
        """The handler of each signal when deferral was last entered; used to detect changes."""
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        """The Python handlers among them, which are deferred."""
        self._active = False
        self._pid = os.getpid()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """An eventfd that becomes readable when a signal is recorded; the leader polls it with the sockets."""
        return self._fd

    def __enter__(self) -> SignalDeferral:
        record = self._record
        installed = list(map(_get, _NUMBERS))
        if installed != self._installed:
            self._handlers = self._handlers_to_defer(installed)
            self._installed = installed
        self._active = True
        try:
            for number in self._handlers:
                _set(number, record)
        except BaseException:  # raised by a handler that ran before it was replaced
            self.__exit__()
            raise
        return self

    def _handlers_to_defer(self, installed: list[Any]) -> dict[int, Callable[[int, FrameType | None], Any]]:
        handlers = dict(zip(_NUMBERS, installed, strict=True))
        not_restored = {number: self._handlers[number] for number, one in handlers.items() if one == self._record}
        handlers |= not_restored  # a handler that raised kept these from being restored the last time
        return {number: handler for number, handler in handlers.items() if handler not in _NOT_PYTHON_HANDLERS}

    def __exit__(self, *_: object) -> None:
        # If a handler raises during the loop, `_record` forwards signals to the handlers that are not restored yet.
        self._active = False
        try:
            for number, handler in self._handlers.items():
                _set(number, handler)
        finally:
            if self.pending:
                self._run_pending()

    def __del__(self) -> None:
        os.close(self._fd)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self._active and os.getpid() == self._pid:
            self.pending[number] = frame
            os.eventfd_write(self._fd, 1)
        else:
            self._handlers[number](number, frame)

    def _run_pending(self) -> None:
        """Run the handlers of all recorded signals, even if one of them raises."""
        number, frame = self.pending.popitem()
        try:
            handler = self._handlers.get(number)
            if handler is not None:
                handler(number, frame)
        finally:
            if self.pending:
                self._run_pending()


class NoDeferral:
    """A no-op for threads other than the main one: Python runs no signal handlers there."""

    pending: Sized = ()

    def __enter__(self) -> NoDeferral:
        return self

    def __exit__(self, *_: object) -> None:
        pass


NO_DEFERRAL = NoDeferral()
