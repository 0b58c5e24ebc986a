"""Ids of events that their authors broadcast too late, and that are refused however often their authors send them.

graph.txt: an event is not valid if it is "too far in the past from now". A first broadcast shows that the author did
not write the event while it was away: the author, or its clock, is wrong. The author repeats an unread event, names it
in its leaves and serves it, so the refusal must be remembered. Another member that sends the event has accepted it;
then this node accepts it, too, or the two could never become equal. The same holds if an event with a valid timestamp
descends from it (docs/decisions/graph-events.md). At the bound the oldest id is dropped.
"""

from __future__ import annotations


class RefusedEvents:
    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._authors: dict[bytes, bytes] = {}
        """By event id: the author."""

    def __len__(self) -> int:
        return len(self._authors)

    def __contains__(self, event_id: bytes) -> bool:
        return event_id in self._authors

    def ids(self) -> list[bytes]:
        return list(self._authors)

    def put(self, event_id: bytes, author: bytes) -> None:
        self._authors.pop(event_id, None)
        self._authors[event_id] = author
        while len(self._authors) > self._count_max:
            del self._authors[next(iter(self._authors))]

    def forget(self, event_id: bytes) -> None:
        self._authors.pop(event_id, None)

    def forget_author_of(self, event_id: bytes) -> None:
        """Forget the event and all others of its author, on which it may depend."""
        author = self._authors.get(event_id)
        if author is not None:
            self._authors = {one: by for one, by in self._authors.items() if by != author}

    def refuses(self, event_id: bytes, sender: bytes) -> bool:
        """True if the event was refused and the sender is its author."""
        return self._authors.get(event_id) == sender
