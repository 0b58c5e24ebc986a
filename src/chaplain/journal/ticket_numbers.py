"""The host's numbers for what the parts of a journal ask of its disk, and for checks of signatures.

Each part numbers its own writes, reads and checks; the host sees numbers of ours. Writes are told in the order in which
they were asked for, so telling one tells all before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from chaplain.core import Persist
from chaplain.journal.consensus.events import ReadLog
from chaplain.journal.events import Verify


class TicketNumbers:
    def __init__(self) -> None:
        self._tickets: deque[tuple[int, str, int]] = deque()
        """Writes on their way: the ticket here, the part, the ticket there."""
        self._ticket = 0
        self._tokens: dict[int, tuple[str, int]] = {}
        self._token = 0
        self._checks: dict[int, tuple[str, int]] = {}
        self._check = 0

    def write(self, part: str, effect: Persist) -> Persist:
        self._ticket += 1
        self._tickets.append((self._ticket, part, effect.ticket))
        return Persist(self._ticket, effect.operations)

    def written(self, ticket: int) -> Iterator[tuple[str, int]]:
        """Whose writes are on disk with this ticket, and what they call them."""
        while self._tickets and self._tickets[0][0] <= ticket:
            _, part, own = self._tickets.popleft()
            yield part, own

    def read(self, part: str, effect: ReadLog) -> ReadLog:
        self._token += 1
        self._tokens[self._token] = (part, effect.token)
        return ReadLog(self._token, effect.start, effect.end)

    def took(self, token: int) -> tuple[str, int]:
        """Whose read it was, and what they call it."""
        return self._tokens.pop(token)

    def check(self, part: str, effect: Verify) -> Verify:
        self._check += 1
        self._checks[self._check] = (part, effect.ticket)
        return Verify(self._check, effect.items)

    def checked(self, ticket: int) -> tuple[str, int]:
        """Whose check it was, and what they call it."""
        return self._checks.pop(ticket)
