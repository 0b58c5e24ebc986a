"""Rates, counts and bytes in use. Pure: callers give the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from chaplain.gateway.problems import Problem


class TokenBucket:
    """Allows `per_second` requests on average, and `burst` at once."""

    __slots__ = ("_burst", "_left", "_per_second", "_since_s")

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = float(burst)
        self._since_s = 0.0

    def take(self, now_s: float) -> bool:
        """Take one. False if none is left."""
        passed_s, self._since_s = max(0.0, now_s - self._since_s), now_s
        self._left = min(self._burst, self._left + passed_s * self._per_second)
        if self._left < 1:
            return False
        self._left -= 1
        return True


class InUse:
    """Counts what is in use, in all and by owner, within bounds."""

    def __init__(self, most: int, full: Problem, each: int | None = None, each_full: Problem | None = None) -> None:
        self._most = most
        self._full = full
        self._each = most if each is None else each
        self._each_full = each_full or full
        self._total = 0
        self._by_owner: Counter[Hashable] = Counter()

    @property
    def total(self) -> int:
        return self._total

    @contextmanager
    def hold(self, owner: Hashable = None, amount: int = 1) -> Iterator[None]:
        """Use this amount during the block. Raises the problem of the bound that it would exceed."""
        if self._total + amount > self._most:
            raise _again(self._full)
        if self._by_owner[owner] + amount > self._each:
            raise _again(self._each_full)
        self._total += amount
        self._by_owner[owner] += amount
        try:
            yield
        finally:
            self._total -= amount
            self._by_owner[owner] -= amount
            if not self._by_owner[owner]:
                del self._by_owner[owner]  # owners come and go


def _again(problem: Problem) -> Problem:
    """A copy to raise: a raised exception collects tracebacks."""
    return Problem(problem.kind, problem.detail, headers=problem.headers)
