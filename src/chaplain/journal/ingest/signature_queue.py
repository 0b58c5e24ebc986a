"""Queue of signature checks: results come out in the order in which the items went in.

Decides where signatures are checked. The first few of a round of inputs are checked at once. All others are collected,
and one `Verify` contains all that arrived since the last request. Does not know what happens with the results. An item
without a known key has no check.

Invariant: items leave in the order of their arrival, even if the answers arrive in another order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Generic, TypeVar

from chaplain.journal.events import Verified, Verify
from chaplain.journal.messages.signing import ConfigCheck, PackCheck, holds

T = TypeVar("T")


class _Request(Generic[T]):
    """A `Verify` under way."""

    def __init__(self, ticket: int, items: list[tuple[T, tuple[int | None, ...]]], size: int) -> None:
        self.ticket = ticket
        self.items = items
        """Each item with the positions of its checks in the `Verify`."""
        self.size = size


class SignatureQueue(Generic[T]):
    """Items of type T that wait for their signature checks."""

    def __init__(self, checks_inline_max: int = 0, tokens: Iterator[int] | None = None) -> None:
        """Up to `checks_inline_max` signatures of a round are checked at once. `tokens` numbers the requests."""
        self._checks_inline_max = checks_inline_max
        self._round_ns = 0
        """The time of the inputs of this round: it is the same for all of them."""
        self._inline_left = checks_inline_max
        self._tokens = tokens or count(1)
        self.pending: list[tuple[T, tuple[int | None, ...]]] = []
        """Items that no `Verify` contains yet."""
        self._checks: list[PackCheck | ConfigCheck] = []
        """Checks of the pending items."""
        self._requests: deque[_Request[T]] = deque()
        self._answers: dict[int, tuple[bool, ...]] = {}

    def add(
        self, now_ns: int, item: T, checks: Sequence[PackCheck | ConfigCheck | None]
    ) -> Sequence[tuple[T, tuple[bool | None, ...]]]:
        """Return the item with its results if it was checked at once; otherwise queue it and return nothing."""
        if now_ns != self._round_ns:
            self._round_ns, self._inline_left = now_ns, self._checks_inline_max
        if not self.pending and not self._requests and len(checks) <= self._inline_left:
            self._inline_left -= len(checks)
            return ((item, tuple([None if check is None else holds(check) for check in checks])),)
        positions: list[int | None] = []
        for check in checks:
            positions.append(None if check is None else len(self._checks))
            if check is not None:
                self._checks.append(check)
        self.pending.append((item, tuple(positions)))
        return ()

    def request_checks(self) -> Verify:
        """The `Verify` for all pending items."""
        token, checks = next(self._tokens), self._checks
        self._requests.append(_Request(token, self.pending, len(checks)))
        self.pending, self._checks = [], []
        return Verify(token, tuple(checks))

    def on_verified(self, event: Verified) -> list[tuple[T, tuple[bool | None, ...]]]:
        """Items whose turn has come, each with the results of its checks; None where there was nothing to check."""
        self._answers[event.ticket] = event.results
        done: list[tuple[T, tuple[bool | None, ...]]] = []
        while self._requests and self._requests[0].ticket in self._answers:
            request = self._requests.popleft()
            results = self._answers.pop(request.ticket)
            assert len(results) == request.size, "a check without a result"
            for item, positions in request.items:
                done.append((item, tuple([None if position is None else results[position] for position in positions])))
        return done
