"""Long waits for threads, in slices.

CPython checks for pending signals before a lock wait, and a signal that arrives during the wait interrupts it. A signal
that arrives between the two, or that the kernel delivers to another thread, interrupts nothing: Ctrl-C would be lost.
Long waits are therefore cut into slices of `SLICE_S`.
"""

from __future__ import annotations

import time

SLICE_S = 0.5


def wait_slice(left_s: float | None) -> float:
    """How long to wait this time, given the seconds that are left; None means without a limit."""
    return SLICE_S if left_s is None else min(left_s, SLICE_S)


class RunningTimeout:
    """A timeout that counts only time in which this process runs.

    The waiting thread calls `left_s` after every slice. A gap of more than two slices means that the process was
    stopped (a debugger, a suspended machine). The threads that would have brought the answer were stopped, too, so the
    rest of the gap is not counted.
    """

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._checked_s = time.monotonic()

    def left_s(self) -> float:
        """Seconds that are left."""
        now_s = time.monotonic()
        self._left_s -= min(now_s - self._checked_s, 2 * SLICE_S)
        self._checked_s = now_s
        return self._left_s
