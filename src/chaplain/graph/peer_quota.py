"""Per-peer quota: the bytes a peer may be served, the work it may cause, and when it is ignored.

A peer that requests too much is served later. A peer that keeps requesting, or sends invalid messages, collects
strikes; at `strikes_max` it is ignored for `ban_ns`. Invariant: an honest peer that requests one page after the other
never gets a strike.
"""

from __future__ import annotations

from chaplain.graph.settings import GraphSettings
from chaplain.units import SECOND_NS

STRIKES_FORGIVEN_PER_S = 4


class TokenBucket:
    """A token bucket: at most `burst` tokens, refilled at `per_s` tokens a second. The level may become negative."""

    __slots__ = ("_burst", "_filled_ns", "_rate", "level")

    def __init__(self, burst: int, per_s: int, now_ns: int) -> None:
        self._burst = burst
        self._rate = per_s
        self._filled_ns = now_ns
        self.level = burst

    def fill(self, now_ns: int) -> int:
        """Add the tokens for the time since the last refill; return the level."""
        passed_ns = max(0, now_ns - self._filled_ns)
        added = passed_ns * self._rate // SECOND_NS
        if added:  # a shorter time than one token takes is kept for the next call
            self.level = min(self._burst, self.level + added)
            self._filled_ns = now_ns
        return self.level


class PeerQuota:
    """The quota of one peer, across its sessions."""

    def __init__(self, settings: GraphSettings, now_ns: int) -> None:
        self._settings = settings
        self._served = TokenBucket(settings.served_burst_bytes, settings.served_bytes_per_s, now_ns)
        self._work = TokenBucket(settings.work_burst, settings.work_per_s, now_ns)
        self._strikes = TokenBucket(settings.strikes_max, STRIKES_FORGIVEN_PER_S, now_ns)
        self.banned_ns = 0
        """Messages of the peer are ignored before this time."""

    def may_be_served(self, now_ns: int) -> bool:
        return self._served.fill(now_ns) > 0

    def served(self, size_bytes: int) -> None:
        self._served.level -= size_bytes

    def takes_work(self, now_ns: int, pieces: int) -> bool:
        """Reserve unrequested work. False if the quota does not cover it: the caller then drops the message."""
        if self._work.fill(now_ns) < pieces:
            return False
        self._work.level -= pieces
        return True

    def strike(self, now_ns: int, weight: int = 1) -> bool:
        """Record an offence. True if the peer is ignored from now on."""
        self._strikes.fill(now_ns)
        self._strikes.level -= weight
        if self._strikes.level > 0 or now_ns < self.banned_ns:
            return False
        self.banned_ns = now_ns + self._settings.ban_ns
        self._strikes.level = self._settings.strikes_max
        return True

    def banned(self, now_ns: int) -> bool:
        return now_ns < self.banned_ns
