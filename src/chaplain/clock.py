"""Unix time for a long-lived process: monotonic, continuous while the machine sleeps, and without jumps.

Peers refuse a node whose clock is more than a minute off. So this clock must follow a system clock that was wrong at
start and was corrected later, while timers must not see a jump. It therefore runs up to a fifth faster or slower until
it is right. Everything that runs on it tolerates this (the simulator lets clocks drift as much), and a system clock
that is wrong for a moment has little effect.

Invariant: `now_ns` never decreases. Between two calls it advances by four fifths to six fifths of the elapsed time,
within a nanosecond. One thread at a time may use a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

ELAPSED_NS = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
FIFTH = 5
READ_INTERVAL_NS = 100_000_000
"""The interval at which the clock reads the system clock."""
SLACK_NS = 100_000_000
"""The clock ignores smaller differences: it cannot read two clocks at the same moment."""


class Clock:
    __slots__ = ("_base_ns", "_elapsed_ns", "_read_ns", "_to_follow_ns", "_unix_ns", "error_ns")

    def __init__(
        self,
        unix_ns: Callable[[], int] = time.time_ns,
        elapsed_ns: Callable[[], int] = ELAPSED_NS,
    ) -> None:
        self._unix_ns, self._elapsed_ns = unix_ns, elapsed_ns
        self._read_ns, self._base_ns = elapsed_ns(), unix_ns()
        self._to_follow_ns = 0
        self.error_ns = 0
        """The lead of the system clock over this one at the last reading; negative if it was behind."""

    def now_ns(self) -> int:
        elapsed_ns = self._elapsed_ns()
        passed_ns = elapsed_ns - self._read_ns
        now_ns = self._base_ns + passed_ns
        if self._to_follow_ns:
            change_max_ns = passed_ns // FIFTH
            # Slew instead of step: at most a fifth of the elapsed time, in either direction.
            now_ns += max(-change_max_ns, min(self._to_follow_ns, change_max_ns))
        if passed_ns >= READ_INTERVAL_NS:
            self._read_ns, self._base_ns = elapsed_ns, now_ns
            self.error_ns = self._unix_ns() - now_ns
            self._to_follow_ns = self.error_ns if abs(self.error_ns) > SLACK_NS else 0
        return now_ns
