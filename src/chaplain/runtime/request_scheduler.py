"""Decides when the event loop serves client requests, and for how long.

One iteration of the loop serves requests for at most `turn_ns`; then the loop handles messages of other nodes. If only
one client uses the cluster, its requests are never delayed.

While several clients contend and one of them is light, the node serves only light clients
(`chaplain.node.fair_queue`) in two cases: the node was recently busy for more than `share` of the time, or many writes
are in flight. The node is busy while its loop works, while its other threads do (they execute statements and check
signatures), and while many writes are in flight, because a large write keeps the disks of all nodes busy. Work for
requests that other nodes serve counts, too. So a request is also delayed if it is cheap on the serving node but
expensive on the others. The other clients wait until the node has been idle for long enough, but not longer than
`REST_NS_MAX`, or `REST_UNIT_NS` for each unit that the last of them cost. So none of them starves, and a node that is
always busy does not serve expensive requests as often as cheap ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from chaplain.units import MILLISECOND_NS, SECOND_NS

TURN_NS = MILLISECOND_NS
"""Time for client requests in one iteration of the loop."""
SHARE = 0.35
"""Part of the time that a contended node may be busy before it delays clients that are not light."""
REST_NS_MAX = 100 * MILLISECOND_NS
"""A client that is not light waits at most this long after a cheap request."""
REST_UNIT_NS = 2 * MILLISECOND_NS
"""After an expensive request, it waits at most this long for each unit of cost (`chaplain.costs`)."""
REST_COSTLY_NS_MAX = SECOND_NS
"""And it never waits longer than this."""


class ClientRequests(Protocol):
    """A core that queues client requests until the loop steps it with `Serve`."""

    @property
    def waiting(self) -> bool:
        """Whether any request is queued."""

    @property
    def light_waiting(self) -> bool:
        """Whether requests of light clients are queued."""

    @property
    def contended(self) -> bool:
        """Whether several clients use the cluster, and one of them is light."""

    @property
    def behind(self) -> bool:
        """Whether many writes are in flight."""

    @property
    def charged(self) -> int:
        """The cost of all requests that were served since the start."""


class RequestScheduler:
    def __init__(
        self,
        clients: ClientRequests,
        turn_ns: int = TURN_NS,
        share: float = SHARE,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        cpu_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        """`cpu_ns` returns the processor time of all threads of the node."""
        self._clients = clients
        self._turn_ns = turn_ns
        self._share = share
        self._clock_ns = clock_ns
        self._cpu_ns = cpu_ns
        self._recorded: tuple[int, int, bool] | None = None
        """The time and the processor time up to which busy time is recorded, and whether many writes were in flight
        then. None if clients did not contend.
        """
        self._rest_until_ns = 0
        """The time at which the loop's busy time will be `share` of the elapsed time again, if the loop is idle until
        then.
        """
        self._served_ns = 0
        """When the scheduler last allowed any client, not only a light one."""
        self._rest_ns_max = REST_NS_MAX
        """The longest time that these clients wait after that."""

    def record_busy(self, busy_ns: int) -> None:
        """Record that the loop was busy for the last `busy_ns`."""
        if not self._clients.contended:
            self._recorded = None
            return
        now_ns, cpu_ns = self._clock_ns(), self._cpu_ns()
        if self._recorded is not None:
            then_ns, then_cpu_ns, was_behind = self._recorded
            busy_ns = max(busy_ns, now_ns - then_ns if was_behind else cpu_ns - then_cpu_ns)
        self._recorded = (now_ns, cpu_ns, self._clients.behind)
        rest_until_ns = max(self._rest_until_ns, now_ns - busy_ns) + int(busy_ns / self._share)
        self._rest_until_ns = min(rest_until_ns, now_ns + REST_COSTLY_NS_MAX)

    def wait_ns(self) -> int | None:
        """Return the time until the next request may be served; None if no request is queued."""
        if not self._clients.waiting:
            return None
        return 0 if self._clients.light_waiting else self._rest_ns()

    def serve(self, serve_one: Callable[[bool], None]) -> None:
        """Serve requests for at most `turn_ns`.

        `serve_one(True)` serves the next light client, `serve_one(False)` the next client of any kind.
        """
        if not self._clients.waiting:
            return
        began_ns = now_ns = self._clock_ns()
        while now_ns - began_ns < self._turn_ns:
            light = self._rest_ns() > 0
            if not (self._clients.light_waiting if light else self._clients.waiting):
                return
            charged = self._clients.charged
            serve_one(light)
            now_ns = self._clock_ns()
            if not light:
                self._served_ns = now_ns
                cost_ns = (self._clients.charged - charged) * REST_UNIT_NS
                self._rest_ns_max = min(max(REST_NS_MAX, cost_ns), REST_COSTLY_NS_MAX)

    def _rest_ns(self) -> int:
        """Return the time until clients that are not light may be served; 0 if they may be served now."""
        if not self._clients.contended:
            return 0
        until_ns = self._served_ns + self._rest_ns_max
        return max(0, (until_ns if self._clients.behind else min(self._rest_until_ns, until_ns)) - self._clock_ns())
