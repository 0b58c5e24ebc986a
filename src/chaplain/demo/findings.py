"""Parts that every step of the demo uses: the list of findings, the type of the progress callback, and waiting."""

from __future__ import annotations

import time
from collections.abc import Callable

from chaplain.core import Frozen
from chaplain.errors import ChaplainError

Progress = Callable[[str], None]
"""Receives a line of progress for the user."""

WAIT_S = 30.0
"""The demo fails if a condition that it waits for does not hold after this time."""


class DemoFinding(Frozen, frozen=True):
    """One row of the demo's result: what was promised, what was found, and whether the promise was kept."""

    promise: str
    promised: str
    found: str
    kept: bool


class Findings:
    """Collects findings in the order in which the steps make them."""

    def __init__(self) -> None:
        self.all: list[DemoFinding] = []
        self.latencies: list[tuple[float, float]] = []
        """Of each single write: when it was acknowledged, in seconds since 1970, and its latency in milliseconds."""

    def add(self, promise: str, promised: object, found: object, kept: bool) -> None:
        self.all.append(DemoFinding(promise, str(promised), str(found), kept))

    def equal(self, promise: str, promised: object, found: object) -> None:
        self.add(promise, promised, found, promised == found)

    def at_most(self, promise: str, limit_s: float, found_s: float) -> None:
        self.add(promise, f"at most {limit_s:g} s", f"{found_s:.2f} s", found_s <= limit_s)

    def kept(self) -> bool:
        return all(finding.kept for finding in self.all)


def wait(what: str, is_reached: Callable[[], bool]) -> None:
    """Wait until the condition holds. Raises after `WAIT_S`."""
    end = time.monotonic() + WAIT_S
    while not is_reached():
        if time.monotonic() > end:
            raise ChaplainError(f"waited {WAIT_S:g} s for {what}, in vain")
        time.sleep(0.05)
