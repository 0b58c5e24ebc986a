"""Dry runs: packs that are executed without effect before they are ordered, and the packs that wait behind them.

Decides only which packs wait. Packs of a lane are ordered by id, so no pack may overtake one whose dry run is under
way. Does not know how a dry run is done, or its result.

Invariant: at most one pack of a lane is in a dry run. All later packs of the lane wait behind it.
"""

from __future__ import annotations

from chaplain.journal.events import DryRun
from chaplain.journal.messages.ingest import AcceptedPack


class DryRunQueue:
    """Lanes with a dry run under way."""

    def __init__(self) -> None:
        self._ticket = 0
        self.lanes: dict[int, int] = {}
        """By lane: the ticket of its dry run."""
        self._groups: dict[int, list[AcceptedPack]] = {}
        """By ticket: the pack in the dry run, and those that wait behind it."""

    def begin(self, taken: AcceptedPack) -> DryRun:
        """Start a dry run of this pack."""
        assert taken.heading.client_id not in self.lanes, "two packs of a lane are in a dry run"
        self._ticket += 1
        self.lanes[taken.heading.client_id] = self._ticket
        self._groups[self._ticket] = [taken]
        return DryRun(self._ticket, taken.entry.stream, bytes(taken.entry.raw))

    def queue_behind(self, taken: AcceptedPack) -> bool:
        """If a pack of the lane is in a dry run, queue this one behind it and return True."""
        ticket = self.lanes.get(taken.heading.client_id)
        if ticket is not None:
            self._groups[ticket].append(taken)
        return ticket is not None

    def end(self, ticket: int) -> list[AcceptedPack]:
        """The pack of this dry run and those behind it; empty if they were returned meanwhile."""
        group = self._groups.pop(ticket, [])
        if group:
            del self.lanes[group[0].heading.client_id]
        return group

    def clear(self) -> list[AcceptedPack]:
        """Remove and return all packs."""
        groups = list(self._groups.values())
        self._groups.clear()
        self.lanes.clear()
        return [taken for group in groups for taken in group]
