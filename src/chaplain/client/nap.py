"""Waiting without an end, for threads.

Python looks whether a signal came before it waits, and is woken by one that comes meanwhile. One that comes between the
two, or that the kernel gives to another thread, wakes nobody: Ctrl-C would be lost. So whoever waits long wakes up now
and again for nothing.
"""

from __future__ import annotations

NAP_S = 0.5


def nap(left_s: float | None) -> float:
    """How long to wait this time, of what is left; None: for ever."""
    return NAP_S if left_s is None else min(left_s, NAP_S)
