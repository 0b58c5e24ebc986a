"""When each call is to be given up.

A heap with forgetful entries: a call that ends only leaves the table, and its entry is thrown away when it comes up.
Invariant: entries never outnumber live calls by more than a constant factor, so memory follows what is under way.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

_SLACK = 64


class Deadlines:
    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def set(self, call: int, due_ns: int) -> None:
        self._due[call] = due_ns
        heappush(self._heap, (due_ns, call))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._heap = [(due, call) for call, due in self._due.items()]
            heapify(self._heap)

    def clear(self, call: int) -> None:
        self._due.pop(call, None)

    def next_ns(self) -> int | None:
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_ns: int) -> list[int]:
        """The calls whose time has come, the longest overdue first."""
        calls = []
        while (due := self.next_ns()) is not None and due <= now_ns:
            call = heappop(self._heap)[1]
            del self._due[call]
            calls.append(call)
        return calls
