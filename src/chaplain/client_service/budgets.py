"""Token buckets by identity: bounds for the frequency or the cost of requests.

Each identity gets `per_second` tokens a second and keeps at most `burst_s` seconds' worth. `spend` refuses an action
for which the identity has no token. `charge` takes tokens for an action that is already done: an identity may have a
debt of `debt_s` seconds' worth.

Bound: an identity whose bucket is full is not stored, so an identity that was idle for `burst_s` and `debt_s` takes no
memory.
"""

from __future__ import annotations

from chaplain.units import SECOND_NS

BURST_S = 2.0
"""Default capacity of a bucket, in seconds' worth of tokens."""


class Budgets:
    """The token buckets of all identities."""

    def __init__(self, per_second: int, burst_s: float = BURST_S, debt_s: float = 0.0) -> None:
        self._interval_ns = SECOND_NS // per_second
        self._burst_ns = int(burst_s * SECOND_NS)
        self._charged_ns_max = int((burst_s + debt_s) * SECOND_NS)
        self._full_ns: dict[bytes, int] = {}
        """When each bucket will be full again; roughly in this order."""

    def spend(self, now_ns: int, key: bytes) -> bool:
        """Take a token of this identity. Returns False if it has none."""
        full_ns = self._take_out(now_ns, key)
        spent = full_ns + self._interval_ns - now_ns <= self._burst_ns
        self._full_ns[key] = full_ns + self._interval_ns if spent else full_ns
        return spent

    def charge(self, now_ns: int, key: bytes, tokens: int) -> None:
        """Take this many tokens of the identity, for an action that is already done."""
        full_ns = self._take_out(now_ns, key) + tokens * self._interval_ns
        self._full_ns[key] = min(full_ns, now_ns + self._charged_ns_max)

    def owes(self, now_ns: int, key: bytes) -> bool:
        """True if the identity was charged more than it had."""
        return self._full_ns.get(key, 0) - now_ns > self._burst_ns

    def _take_out(self, now_ns: int, key: bytes) -> int:
        """Forget full buckets, and take this identity's entry out: when its bucket will be full."""
        while self._full_ns and next(iter(self._full_ns.values())) <= now_ns:
            del self._full_ns[next(iter(self._full_ns))]
        return max(self._full_ns.pop(key, 0), now_ns)
