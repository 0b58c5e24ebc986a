"""Token buckets by identity: how often each may do something, or how much it may cost.

Each identity gets `per_second` tokens a second and keeps at most `burst_s` seconds' worth. `spend` refuses what it has
no token for. `charge` takes tokens for what was done already: an identity may owe as many as it may keep.

Bounds: an identity that has all of its tokens is not remembered, so nobody is who did nothing for twice `burst_s`.
"""

from __future__ import annotations

from chaplain.units import SECOND_NS

BURST_S = 2.0


class Budgets:
    def __init__(self, per_second: int, burst_s: float = BURST_S) -> None:
        self._interval_ns = SECOND_NS // per_second
        self._burst_ns = int(burst_s * SECOND_NS)
        self._full_ns: dict[bytes, int] = {}
        """When each identity will have all of its tokens again; the first to have them first, or nearly so."""

    def spend(self, now_ns: int, key: bytes) -> bool:
        """Whether the identity may do it once more."""
        full_ns = self._take_out(now_ns, key)
        spent = full_ns + self._interval_ns - now_ns <= self._burst_ns
        self._full_ns[key] = full_ns + self._interval_ns if spent else full_ns
        return spent

    def charge(self, now_ns: int, key: bytes, tokens: int) -> None:
        """The identity has done what costs this much."""
        full_ns = self._take_out(now_ns, key) + tokens * self._interval_ns
        self._full_ns[key] = min(full_ns, now_ns + 2 * self._burst_ns)

    def owes(self, now_ns: int, key: bytes) -> bool:
        """Whether the identity was charged more than it had."""
        return self._full_ns.get(key, 0) - now_ns > self._burst_ns

    def _take_out(self, now_ns: int, key: bytes) -> int:
        while self._full_ns and next(iter(self._full_ns.values())) <= now_ns:
            del self._full_ns[next(iter(self._full_ns))]
        return max(self._full_ns.pop(key, 0), now_ns)
