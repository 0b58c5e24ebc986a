"""Queue of signature checks: results come out in the order in which the items went in.

Decides when checks are requested: everything that has arrived since the last request goes into one `Verify`. Does not
know where signatures are checked, or what follows. An item without a known key has no check.

Invariant: items leave in order, whatever the order of the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from chaplain.journal.events import Verified, Verify
from chaplain.journal.messages.signing import ConfigCheck, PackCheck

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

    def __init__(self) -> None:
        self._ticket = 0
        self.pending: list[tuple[T, tuple[int | None, ...]]] = []
        """Items that no `Verify` contains yet."""
        self._checks: list[PackCheck | ConfigCheck] = []
        """Checks of the pending items."""
        self._requests: deque[_Request[T]] = deque()
        self._answers: dict[int, tuple[bool, ...]] = {}

    def add(self, item: T, checks: Sequence[PackCheck | ConfigCheck | None]) -> None:
        positions: list[int | None] = []
        for check in checks:
            positions.append(None if check is None else len(self._checks))
            if check is not None:
                self._checks.append(check)
        self.pending.append((item, tuple(positions)))

    def request_checks(self) -> Verify:
        """The `Verify` for all pending items."""
        self._ticket += 1
        self._requests.append(_Request(self._ticket, self.pending, len(self._checks)))
        verify = Verify(self._ticket, tuple(self._checks))
        self.pending, self._checks = [], []
        return verify

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
