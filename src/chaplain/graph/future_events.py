"""Events whose time has not come: which they are, and when it will.

graph.txt: an event is not valid "if it's too far in the future from now". One that is ahead of this node's clock by
more than a bound is not taken, whichever way it comes, and neither is what was written behind it (decision 0085). Only
ids are kept here: whoever has the events tells their leaves every two seconds, so they are fetched when their time has
come. Bounded; what goes at the bound is looked at again when it comes again.
"""

from __future__ import annotations


class FutureEvents:
    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._due: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._due)

    def put(self, event_id: bytes, due_ns: int) -> None:
        self._due.pop(event_id, None)
        self._due[event_id] = due_ns
        while len(self._due) > self._count_max:
            del self._due[next(iter(self._due))]

    def due_ns(self, event_id: bytes) -> int:
        """When its time comes; 0 if nothing is known against it."""
        return self._due.get(event_id, 0)

    def has(self, now_ns: int, event_id: bytes) -> bool:
        """Whether it is too early for this one. What is due is forgotten."""
        due_ns = self._due.get(event_id)
        if due_ns is not None and now_ns >= due_ns:
            del self._due[event_id]
        return due_ns is not None and now_ns < due_ns
