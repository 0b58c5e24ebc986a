"""Rate limit, per identity, of requests that every node of the cluster has to act on.

A token bucket: each identity gets `per_second` tokens a second and keeps at most two seconds' worth.

Bound: an identity whose bucket is full is not stored, so identities that were idle for two seconds take no memory.
"""

from __future__ import annotations

from chaplain.units import SECOND_NS

BURST_S = 2
"""Capacity of a bucket, in seconds' worth of tokens."""


class Budgets:
    """The token buckets of all identities."""

    def __init__(self, per_second: int) -> None:
        self._interval_ns = SECOND_NS // per_second
        self._full_ns: dict[bytes, int] = {}
        """When each bucket will be full again; roughly in this order."""

    def spend(self, now_ns: int, key: bytes) -> bool:
        """Take a token of this identity. Returns False if it has none."""
        while self._full_ns and next(iter(self._full_ns.values())) <= now_ns:
            del self._full_ns[next(iter(self._full_ns))]
        full_ns = max(self._full_ns.pop(key, 0), now_ns)
        spent = full_ns + self._interval_ns - now_ns <= BURST_S * SECOND_NS
        self._full_ns[key] = full_ns + self._interval_ns if spent else full_ns
        return spent
