"""Maps the ticket and token numbers of the journal's parts to numbers that are unique on the host.

Each part numbers its own writes, log reads and signature checks. The host reports writes in the order in which they
were requested, so one report covers all writes before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from chaplain.core import Persist
from chaplain.journal.consensus.events import ReadLog
from chaplain.journal.events import Verify


class TicketNumbers:
    """Operations under way, each with the part that requested it and the part's own number."""

    def __init__(self) -> None:
        self._tickets: deque[tuple[int, str, int]] = deque()
        """Writes under way: the host's ticket, the part, and the part's ticket."""
        self._ticket = 0
        self._tokens: dict[int, tuple[str, int]] = {}
        self._token = 0
        self._checks: dict[int, tuple[str, int]] = {}
        self._check = 0

    def number_write(self, part: str, effect: Persist) -> Persist:
        self._ticket += 1
        self._tickets.append((self._ticket, part, effect.ticket))
        return Persist(self._ticket, effect.operations)

    def completed_writes(self, ticket: int) -> Iterator[tuple[str, int]]:
        """All writes up to this ticket: the part and the part's ticket of each."""
        while self._tickets and self._tickets[0][0] <= ticket:
            _, part, own = self._tickets.popleft()
            yield part, own

    def number_read(self, part: str, effect: ReadLog) -> ReadLog:
        self._token += 1
        self._tokens[self._token] = (part, effect.token)
        return ReadLog(self._token, effect.start, effect.end)

    def completed_read(self, token: int) -> tuple[str, int]:
        """The part that requested this read, and its token."""
        return self._tokens.pop(token)

    def number_check(self, part: str, effect: Verify) -> Verify:
        self._check += 1
        self._checks[self._check] = (part, effect.ticket)
        return Verify(self._check, effect.items)

    def completed_check(self, ticket: int) -> tuple[str, int]:
        """The part that requested this check, and its ticket."""
        return self._checks.pop(ticket)
