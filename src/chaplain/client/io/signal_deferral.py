"""Holds a program's signal handlers back while the main thread drives a client.

Python runs handlers in the main thread, between any two instructions of it. One that raises, as Ctrl-C's does, would
leave a core half stepped, and one that calls the client would find it in use. So while the main thread drives, handlers
are replaced by one that takes a note and ends the waiting; when the wheel is given away they are put back, and what was
noted is handled then: a few milliseconds late at most.

What it cannot hold back are exceptions that other threads throw into this one: they end the client, as a defect does.
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

_NONE_OF_PYTHON = (None, signal.SIG_DFL, signal.SIG_IGN)

# What `signal` is made of, if it is there, without conversions to enumerations, which cost more than all the rest.
_signal: Any = sys.modules.get("_signal", signal)
_get: Callable[[int], Any] = _signal.getsignal
_set: Callable[[int, Any], Any] = _signal.signal


class SignalDeferral:
    """For the main thread: `with shield:` around driving. Where it is not the main thread that drives, use `OPEN`."""

    def __init__(self) -> None:
        self.held: dict[int, FrameType | None] = {}
        """Signals that came meanwhile."""
        self._found: list[Any] = []
        """What was installed for each of the signals the last time, ..."""
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        """... and which of it is to be held back."""
        self._up = False
        self._pid = os.getpid()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """An eventfd, raised when a signal comes: for what the driver waits on to watch."""
        return self._fd

    def __enter__(self) -> SignalDeferral:
        note = self._note
        found = list(map(_get, _NUMBERS))
        if found != self._found:
            self._handlers = self._to_hold(found)
            self._found = found
        self._up = True
        try:
            for number in self._handlers:
                _set(number, note)
        except BaseException:  # of a handler that had its turn in between
            self.__exit__()
            raise
        return self

    def _to_hold(self, found: list[Any]) -> dict[int, Callable[[int, FrameType | None], Any]]:
        handlers = dict(zip(_NUMBERS, found, strict=True))
        late = {number: self._handlers[number] for number, one in handlers.items() if one == self._note}
        handlers |= late  # they were not put back the last time
        return {number: handler for number, handler in handlers.items() if handler not in _NONE_OF_PYTHON}

    def __exit__(self, *_: object) -> None:
        self._up = False  # what is not put back, because a handler raises in between, goes on to whom it was meant for
        try:
            for number, handler in self._handlers.items():
                _set(number, handler)
        finally:
            if self.held:
                self._handle()

    def __del__(self) -> None:
        os.close(self._fd)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._up and os.getpid() == self._pid:
            self.held[number] = frame
            os.eventfd_write(self._fd, 1)
        else:
            self._handlers[number](number, frame)

    def _handle(self) -> None:
        """Every one of them, even if the first raises."""
        number, frame = self.held.popitem()
        try:
            handler = self._handlers.get(number)
            if handler is not None:
                handler(number, frame)
        finally:
            if self.held:
                self._handle()


class NoDeferral:
    """No shield: signals are another thread's business."""

    held: Sized = ()

    def __enter__(self) -> NoDeferral:
        return self

    def __exit__(self, *_: object) -> None:
        pass


OPEN = NoDeferral()
