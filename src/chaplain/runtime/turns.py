"""How much of the loop's time requests of clients get.

A turn of the loop serves requests for `turn_ns` at most; what other nodes said is looked at before the next turn. While
requests of several clients still wait after a turn, the next one begins only when the loop has had time for others:
requests take at most `share` of it. A client alone never waits for that: it takes nothing from anybody.
"""

from __future__ import annotations

import time
from collections.abc import Callable

TURN_NS = 1_000_000
SHARE = 0.5


class Turns:
    def __init__(
        self, turn_ns: int = TURN_NS, share: float = SHARE, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._turn_ns = turn_ns
        self._rest = (1 - share) / share
        self._clock_ns = clock_ns
        self._next_ns = 0

    def rest_ns(self) -> int:
        """How long it is until the next turn may begin; 0: it may begin now."""
        return max(0, self._next_ns - self._clock_ns())

    def serve(self, waits: Callable[[], bool], contended: Callable[[], bool], serve_one: Callable[[], None]) -> None:
        """One turn, unless it is too early for one. `contended` says whether several clients want to be served."""
        if not waits() or self.rest_ns():
            return
        began_ns = now_ns = self._clock_ns()
        while waits() and now_ns - began_ns < self._turn_ns:
            serve_one()
            now_ns = self._clock_ns()
        if waits() and contended():
            self._next_ns = now_ns + int((now_ns - began_ns) * self._rest)
