"""The deadline of each pending call.

A heap with lazy deletion: ending a call only removes it from the table, and its heap entry is discarded when it reaches
the top. Invariant: the heap has at most twice as many entries as there are live calls, plus a constant, so memory is
proportional to the pending calls.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

_SLACK = 64
"""Stale heap entries that are tolerated in addition to one for each live call."""


class Deadlines:
    """Deadlines by call."""

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def set(self, call: int, due_ns: int) -> None:
        """Set or replace the deadline of a call."""
        self._due[call] = due_ns
        heappush(self._heap, (due_ns, call))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._heap = [(due, call) for call, due in self._due.items()]
            heapify(self._heap)

    def clear(self, call: int) -> None:
        """Remove the deadline of a call, if it has one."""
        self._due.pop(call, None)

    def next_ns(self) -> int | None:
        """The earliest deadline; None if there is none."""
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_ns: int) -> list[int]:
        """Remove and return the calls whose deadline has passed, earliest first."""
        calls = []
        while (due := self.next_ns()) is not None and due <= now_ns:
            call = heappop(self._heap)[1]
            del self._due[call]
            calls.append(call)
        return calls
