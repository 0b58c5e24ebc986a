"""How much of the node's time requests of clients get.

A turn of the loop serves requests for `turn_ns` at most; what other nodes said is looked at before the next turn. A
client alone is always served: it takes nothing from anybody.

While clients contend, the node serves only light clients (`chaplain.node.fair_queue`) if it was busy for more than
`share` of the time lately, or has many writes under way. All work of the node counts, also what it does for
requests that other nodes serve: so a request that costs little where it is served and much elsewhere is held back as
well. Other clients wait until the node has rested for long enough, but at most `REST_NS_MAX`, so that none starves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

TURN_NS = 1_000_000
SHARE = 0.35
REST_NS_MAX = 100_000_000


class Clients(Protocol):
    """A core whose requests of clients wait to be served."""

    @property
    def waiting(self) -> bool:
        """Whether requests wait."""

    @property
    def light_waiting(self) -> bool:
        """Whether requests of light clients wait."""

    @property
    def contended(self) -> bool:
        """Whether several clients use the cluster."""

    @property
    def behind(self) -> bool:
        """Whether many writes are under way."""


class Turns:
    def __init__(
        self,
        clients: Clients,
        turn_ns: int = TURN_NS,
        share: float = SHARE,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clients = clients
        self._turn_ns = turn_ns
        self._share = share
        self._clock_ns = clock_ns
        self._rested_ns = 0
        """When the node will have rested for all that it did."""
        self._served_ns = 0
        """When a client was served last that need not be light."""

    def worked(self, busy_ns: int) -> None:
        """The node was busy for this time, up to now."""
        now_ns = self._clock_ns()
        rested_ns = max(self._rested_ns, now_ns - busy_ns) + int(busy_ns / self._share)
        self._rested_ns = min(rested_ns, now_ns + REST_NS_MAX)

    def wait_ns(self) -> int | None:
        """How long it is until the next request may be served; None if none waits."""
        if not self._clients.waiting:
            return None
        return 0 if self._clients.light_waiting else self._rest_ns()

    def serve(self, serve_one: Callable[[bool], None]) -> None:
        """One turn. `serve_one(True)` serves a light client, `serve_one(False)` whoever is next."""
        if not self._clients.waiting:
            return
        began_ns = now_ns = self._clock_ns()
        while now_ns - began_ns < self._turn_ns:
            light = self._rest_ns() > 0
            if not (self._clients.light_waiting if light else self._clients.waiting):
                return
            serve_one(light)
            now_ns = self._clock_ns()
            if not light:
                self._served_ns = now_ns

    def _rest_ns(self) -> int:
        """How long it is until clients that are not light may be served; 0: they may be now."""
        if not self._clients.contended:
            return 0
        until_ns = self._served_ns + REST_NS_MAX
        return max(0, (until_ns if self._clients.behind else min(self._rested_ns, until_ns)) - self._clock_ns())
