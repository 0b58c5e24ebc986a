"""How often each identity may do what every node of the cluster has to act on.

Decides by tokens: each identity gets `per_second` of them a second and keeps at most two seconds' worth.

Bounds: an identity that has all of its tokens is not remembered, so nobody is who did nothing for two seconds.
"""

from __future__ import annotations

from chaplain.units import SECOND_NS

BURST_S = 2


class Budgets:
    def __init__(self, per_second: int) -> None:
        self._interval_ns = SECOND_NS // per_second
        self._full_ns: dict[bytes, int] = {}
        """When each identity will have all of its tokens again; the first to have them first, or nearly so."""

    def spend(self, now_ns: int, key: bytes) -> bool:
        """Whether the identity may do it once more."""
        while self._full_ns and next(iter(self._full_ns.values())) <= now_ns:
            del self._full_ns[next(iter(self._full_ns))]
        full_ns = max(self._full_ns.pop(key, 0), now_ns)
        spent = full_ns + self._interval_ns - now_ns <= BURST_S * SECOND_NS
        self._full_ns[key] = full_ns + self._interval_ns if spent else full_ns
        return spent
