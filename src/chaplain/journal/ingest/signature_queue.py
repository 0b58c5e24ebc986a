"""Questions to whoever checks signatures, and their answers in the order of the questions.

Decides when a check is asked for: everything that has come since the last time goes into one question. Refuses to know
who checks, where, and what is done with the answer. Items that nothing is known to check against are not asked for.

Invariant: things come out in the order in which they went in, whatever the order of the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from chaplain.journal.events import Verified, Verify
from chaplain.journal.messages.signing import ConfigCheck, PackCheck

T = TypeVar("T")


class _Asked(Generic[T]):
    def __init__(self, ticket: int, things: list[tuple[T, tuple[int | None, ...]]], size: int) -> None:
        self.ticket = ticket
        self.things = things
        """Each with the places of its checks among the question's items."""
        self.size = size


class SignatureQueue(Generic[T]):
    def __init__(self) -> None:
        self._ticket = 0
        self.new: list[tuple[T, tuple[int | None, ...]]] = []
        """What is to be asked for."""
        self._items: list[PackCheck | ConfigCheck] = []
        self._asked: deque[_Asked[T]] = deque()
        self._answers: dict[int, tuple[bool, ...]] = {}

    def add(self, thing: T, checks: Sequence[PackCheck | ConfigCheck | None]) -> None:
        places: list[int | None] = []
        for check in checks:
            places.append(None if check is None else len(self._items))
            if check is not None:
                self._items.append(check)
        self.new.append((thing, tuple(places)))

    def ask(self) -> Verify:
        """The question for everything new."""
        self._ticket += 1
        self._asked.append(_Asked(self._ticket, self.new, len(self._items)))
        question = Verify(self._ticket, tuple(self._items))
        self.new, self._items = [], []
        return question

    def answered(self, event: Verified) -> list[tuple[T, tuple[bool | None, ...]]]:
        """Everything whose turn has come, with the result of each check; None where there was nothing to check."""
        self._answers[event.ticket] = event.results
        done: list[tuple[T, tuple[bool | None, ...]]] = []
        while self._asked and self._asked[0].ticket in self._answers:
            asked = self._asked.popleft()
            results = self._answers.pop(asked.ticket)
            assert len(results) == asked.size, "as many answers as questions"
            for thing, places in asked.things:
                done.append((thing, tuple([None if place is None else results[place] for place in places])))
        return done
