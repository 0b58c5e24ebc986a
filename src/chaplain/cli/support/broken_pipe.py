"""Ends a command that waits, as soon as the reader of its output is gone: `chaplain event listen | head -1`.

A process notices that its reader closed the pipe only when it writes. A command that waits for events may not write
for hours. While it waits, a thread therefore polls the standard output, and interrupts the main thread with a signal
when the other end is closed.
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
def stop_on_closed_output() -> Iterator[None]:
    """Raise `BrokenPipeError` in the block when the reader closes the standard output. For the main thread only."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # the standard output is an object in this process, which nobody can close
        yield
        return
    done, end = os.pipe()
    before = signal.signal(_SIGNAL, _raise_broken_pipe)
    watcher = threading.Thread(target=_watch, args=(output, done, threading.get_ident()), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(end)
        watcher.join()
        os.close(done)
        signal.signal(_SIGNAL, before)


def _watch(output: int, done: int, main_thread: int) -> None:
    watched = select.poll()
    watched.register(output, 0)  # an empty mask: poll reports only POLLHUP and POLLERR
    watched.register(done, 0)
    if any(descriptor == output for descriptor, _ in watched.poll()):
        signal.pthread_kill(main_thread, _SIGNAL)


def _raise_broken_pipe(number: int, frame: FrameType | None) -> None:
    raise BrokenPipeError


def discard_output() -> None:
    """Send the standard output to /dev/null, so that Python's own flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
