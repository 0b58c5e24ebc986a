"""Detects whether several clients use the cluster at the moment, and whether a light one is among them.

A node sees the clients that it serves itself, and, in the agreed messages of the journal, every client that writes
anywhere. Clients contend while the node sees two of them within `CONTENTION_NS`. A client alone never contends. Several
clients that are all not light (`node.fair_queue`) contend, but none of them is held back: they share by turns.
"""

from __future__ import annotations

from chaplain.units import SECOND_NS

CONTENTION_NS = 3 * SECOND_NS
LIGHT_UNITS_MAX = 25
"""Requests that cost more (`chaplain.costs`) do not show that their client is light."""


class Contention:
    def __init__(self) -> None:
        self._last = b""
        """The key of the client that was seen last."""
        self._change_ns = -CONTENTION_NS
        """The last time at which two consecutive requests came from different clients."""
        self._light_ns = -CONTENTION_NS
        """The last time at which a light client was seen."""

    def see_light(self, now_ns: int, units: int) -> None:
        """Requests of a light client were served here or executed, and cost so much.

        A client that sends expensive requests is light between two of them if it is held back. It does not count, or
        two such clients would hold each other back for ever.
        """
        if units <= LIGHT_UNITS_MAX:
            self._light_ns = now_ns

    def see(self, now_ns: int, key: bytes) -> None:
        """A request of this client was served here or executed."""
        if key != self._last:
            if self._last:
                self._change_ns = now_ns
            self._last = key

    def extend(self, now_ns: int) -> None:
        """Many writes are in flight here. A light client that waits behind them is not seen before they are executed.

        Without this, the clients that delay it would not be held back any more, and it would wait for ever.
        """
        if self.has_light(now_ns):
            self._change_ns = self._light_ns = now_ns

    def holds(self, now_ns: int) -> bool:
        return now_ns - self._change_ns < CONTENTION_NS

    def has_light(self, now_ns: int) -> bool:
        """Whether clients contend, and one of them is light."""
        return self.holds(now_ns) and now_ns - self._light_ns < CONTENTION_NS
