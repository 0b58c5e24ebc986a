"""Promises and what became of them."""

from __future__ import annotations

from chaplain.core import Frozen


class DemoFinding(Frozen, frozen=True):
    promise: str
    promised: str
    found: str
    kept: bool


class Findings:
    """Collects findings in the order they were made."""

    def __init__(self) -> None:
        self.all: list[DemoFinding] = []
        self.latencies: list[tuple[float, float]] = []
        """When single writes were acknowledged, in seconds since 1970, and after how many milliseconds."""

    def add(self, promise: str, promised: object, found: object, kept: bool) -> None:
        self.all.append(DemoFinding(promise, str(promised), str(found), kept))

    def equal(self, promise: str, promised: object, found: object) -> None:
        self.add(promise, promised, found, promised == found)

    def at_most(self, promise: str, limit_s: float, found_s: float) -> None:
        self.add(promise, f"at most {limit_s:g} s", f"{found_s:.2f} s", found_s <= limit_s)

    def kept(self) -> bool:
        return all(finding.kept for finding in self.all)
