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
from collections.abc import Callable, Sized
from types import FrameType
from typing import Any

_FAULTS = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
_NUMBERS = tuple(sorted(int(number) for number in signal.valid_signals() - _FAULTS if number < 32))

# Without the conversions to and from enumerations, which cost more than all the rest.
_get: Callable[[int], Any] = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
_set: Callable[[int, Any], Any] = getattr(signal.signal, "__wrapped__", signal.signal)


class Shield:
    """For the main thread: `with shield:` around driving. Where it is not the main thread that drives, use `OPEN`."""

    def __init__(self) -> None:
        self.held: dict[int, FrameType | None] = {}
        """Signals that came meanwhile."""
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._up = False
        self._pid = os.getpid()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """An eventfd, raised when a signal comes: for what the driver waits on to watch."""
        return self._fd

    def __enter__(self) -> Shield:
        note = self._note
        found = {number: handler for number in _NUMBERS if callable(handler := _get(number))}
        for number, handler in found.items():
            if handler == note:  # not put back the last time
                found[number] = self._handlers[number]
        self._handlers = found
        self._up = True
        try:
            for number in found:
                _set(number, note)
        except BaseException:  # of a handler that had its turn in between
            self.__exit__()
            raise
        return self

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


class _Open:
    """No shield: signals are another thread's business."""

    held: Sized = ()

    def __enter__(self) -> _Open:
        return self

    def __exit__(self, *_: object) -> None:
        pass


OPEN = _Open()
