"""Unix time for a process that lives long: it never goes back, goes on while the machine sleeps, and never leaps.

Others refuse whoever is more than a minute off, so a clock that was wrong at the start and was set since must be
followed; timers must not see it being set. So time goes faster or slower by a fifth until it is right: what runs on it
bears that (the simulator lets clocks drift as much), and a clock that was set wrongly for a moment does little harm.

Invariant: what `now_ns` gives never falls, and between two calls grows by four fifths to six fifths of the time that
went by, but for a nanosecond. Belongs to one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

ELAPSED_NS = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
FIFTH = 5
LOOK_NS = 100_000_000
"""How often the system's clock is looked at."""
SLACK_NS = 100_000_000
"""Less is not followed: two clocks cannot be read at one moment."""


class Clock:
    __slots__ = ("_base_ns", "_elapsed_ns", "_looked_ns", "_to_follow_ns", "_unix_ns", "error_ns")

    def __init__(
        self,
        unix_ns: Callable[[], int] = time.time_ns,
        elapsed_ns: Callable[[], int] = ELAPSED_NS,
    ) -> None:
        self._unix_ns, self._elapsed_ns = unix_ns, elapsed_ns
        self._looked_ns, self._base_ns = elapsed_ns(), unix_ns()
        self._to_follow_ns = 0
        self.error_ns = 0
        """How far the system's clock was ahead of this one when it was last looked at, or behind if it is negative."""

    def now_ns(self) -> int:
        elapsed_ns = self._elapsed_ns()
        passed_ns = elapsed_ns - self._looked_ns
        now_ns = self._base_ns + passed_ns
        if self._to_follow_ns:
            most_ns = passed_ns // FIFTH
            now_ns += max(-most_ns, min(self._to_follow_ns, most_ns))
        if passed_ns >= LOOK_NS:
            self._looked_ns, self._base_ns = elapsed_ns, now_ns
            self.error_ns = self._unix_ns() - now_ns
            self._to_follow_ns = self.error_ns if abs(self.error_ns) > SLACK_NS else 0
        return now_ns
