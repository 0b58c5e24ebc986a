"""Answers of a host's worker threads to a simulated core: each arrives after a short random delay."""

from __future__ import annotations

from random import Random
from typing import Any

from chaplain.units import MILLISECOND_NS

_WITHIN_NS = 5 * MILLISECOND_NS


class DelayedAnswers:
    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._answers: list[tuple[int, Any]] = []

    def due(self) -> list[int]:
        """When answers arrive."""
        return [when for when, _ in self._answers]

    def add(self, now_ns: int, answer: Any) -> None:
        self._answers.append((now_ns + self._rng.randrange(_WITHIN_NS), answer))

    def take(self, now_ns: int) -> list[Any]:
        """The answers that have arrived, in the order of the requests."""
        come = [answer for when, answer in self._answers if when <= now_ns]
        self._answers = [later for later in self._answers if later[0] > now_ns]
        return come
