"""Ids of events whose timestamps are too far in the future, and when each becomes acceptable.

graph.txt: an event is not valid "if it's too far in the future from now". An event that is ahead of this node's clock
by more than `ahead_ns` is refused, whether broadcast or fetched, and so are its descendants
(docs/decisions/graph-events.md). Only ids
are stored. Peers that have the events send their leaves every `sync_ns`, so this node fetches the events once they are
acceptable. At the bound the oldest id is dropped; its event is checked again when it next arrives.
"""

from __future__ import annotations


class FutureEvents:
    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._due: dict[bytes, int] = {}
        """By event id: when the event becomes acceptable."""

    def __len__(self) -> int:
        return len(self._due)

    def put(self, event_id: bytes, due_ns: int) -> None:
        self._due.pop(event_id, None)
        self._due[event_id] = due_ns
        while len(self._due) > self._count_max:
            del self._due[next(iter(self._due))]

    def due_ns(self, event_id: bytes) -> int:
        """The time from which the event is acceptable; 0 if it is not deferred."""
        return self._due.get(event_id, 0)

    def is_early(self, now_ns: int, event_id: bytes) -> bool:
        """True if the event is still deferred. An entry that is due is removed."""
        due_ns = self._due.get(event_id)
        if due_ns is not None and now_ns >= due_ns:
            del self._due[event_id]
        return due_ns is not None and now_ns < due_ns
