"""Packs that are tried out before they are ordered, each with those behind it on its lane.

Decides only who waits for whom: what is on a lane is ordered in the order of its ids, so nothing passes a pack that is
tried out. Refuses to know what trying out means, and what comes of it.

Invariant: of a lane at most one pack is tried out at a time; everything else of it that came since waits behind it.
"""

from __future__ import annotations

from chaplain.journal.events import Rehearse
from chaplain.journal.messages.ingest import AcceptedPack


class DryRunQueue:
    def __init__(self) -> None:
        self._ticket = 0
        self._lanes: dict[int, int] = {}
        """The ticket of the pack that is tried out, by lane."""
        self._groups: dict[int, list[AcceptedPack]] = {}
        """By ticket: the pack, and those behind it."""

    def begin(self, taken: AcceptedPack) -> Rehearse:
        assert taken.heading.client_id not in self._lanes, "two packs of a lane are tried out"
        self._ticket += 1
        self._lanes[taken.heading.client_id] = self._ticket
        self._groups[self._ticket] = [taken]
        return Rehearse(self._ticket, taken.entry.stream, bytes(taken.entry.raw))

    def hold(self, taken: AcceptedPack) -> bool:
        """Whether the pack has to wait behind another one of its lane; from now on it does."""
        ticket = self._lanes.get(taken.heading.client_id)
        if ticket is not None:
            self._groups[ticket].append(taken)
        return ticket is not None

    def end(self, ticket: int) -> list[AcceptedPack]:
        """The pack that was tried out, and those behind it; none if they were given back meanwhile."""
        group = self._groups.pop(ticket, [])
        if group:
            del self._lanes[group[0].heading.client_id]
        return group

    def clear(self) -> list[AcceptedPack]:
        """Give everything back."""
        groups = list(self._groups.values())
        self._groups.clear()
        self._lanes.clear()
        return [taken for group in groups for taken in group]
