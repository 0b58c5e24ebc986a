"""Commands that go on until they are stopped end as soon as nobody reads them: `chaplain event listen | head -1`.

A pipe that its reader has closed says so to whoever writes next. One that waits for news may have nothing to write for
hours, so a thread watches the output meanwhile, and breaks off the wait with a signal, as Ctrl-C does.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNAL = signal.SIGUSR1


@contextmanager
def while_somebody_reads() -> Iterator[None]:
    """Raise `BrokenPipeError` here once the standard output is closed at its other end. For the main thread."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # a program that catches what we print; it reads for as long as it likes
        yield
        return
    done, end = os.pipe()
    before = signal.signal(_SIGNAL, _break_off)
    watcher = threading.Thread(target=_watch, args=(output, done, threading.get_ident()), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(end)
        watcher.join()
        os.close(done)
        signal.signal(_SIGNAL, before)


def _watch(output: int, done: int, listener: int) -> None:
    watched = select.poll()
    watched.register(output, 0)  # only what is told without being asked for: that it is closed, or broken
    watched.register(done, 0)
    if any(descriptor == output for descriptor, _ in watched.poll()):
        signal.pthread_kill(listener, _SIGNAL)


def _break_off(number: int, frame: FrameType | None) -> None:
    raise BrokenPipeError


def discard_output() -> None:
    """Nothing more can be said there, not even what Python still has to say when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
