"""Limits reports, so that a flood of one kind cannot hide the others. Omitted reports are counted.

Each event and reason has its own limit for each second. Invariant: memory is bounded, because events and reasons are
from a fixed set.
"""

from __future__ import annotations

from chaplain.core import Report
from chaplain.units import SECOND_NS


class Reports:
    __slots__ = ("_per_second_max", "_windows")

    def __init__(self, per_second_max: int) -> None:
        self._per_second_max = per_second_max
        self._windows: dict[tuple[str, str], tuple[int, int, int]] = {}
        """By event and reason: the current second, the reports made in that second, and the reports omitted since the
        last one that was made.
        """

    def make(
        self, now_ns: int, event: str, reason: str, peer: str = "", detail: dict[str, str | int] | None = None
    ) -> Report | None:
        """Return the report, or None if this second's reports of its kind are used up."""
        second = now_ns // SECOND_NS
        last, made, left_out = self._windows.get((event, reason), (second, 0, 0))
        if last != second:
            made = 0
        if made >= self._per_second_max:
            self._windows[event, reason] = (second, made, left_out + 1)
            return None
        self._windows[event, reason] = (second, made + 1, 0)
        full: dict[str, str | int] = {"reason": reason, **(detail or {})}
        if left_out:
            full["left_out"] = left_out
        return Report(event, peer, full)
