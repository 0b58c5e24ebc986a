"""Waiting without an end, for threads.

Python looks whether a signal came before it waits, and is woken by one that comes meanwhile. One that comes between the
two, or that the kernel gives to another thread, wakes nobody: Ctrl-C would be lost. So whoever waits long wakes up now
and again for nothing.
"""

from __future__ import annotations

import time

NAP_S = 0.5


def nap(left_s: float | None) -> float:
    """How long to wait this time, of what is left; None: for ever."""
    return NAP_S if left_s is None else min(left_s, NAP_S)


class Patience:
    """How long a thread waits at most, of the time in which this process runs.

    Whoever waits looks after every nap. If it did not look for longer, the process stood still (a debugger, a
    machine that was put to sleep), and those who would have brought an answer did, too.
    """

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._looked_s = time.monotonic()

    def left_s(self) -> float:
        now_s = time.monotonic()
        self._left_s -= min(now_s - self._looked_s, 2 * NAP_S)
        self._looked_s = now_s
        return self._left_s
