"""The work set: whose memories count, and which of them together are enough.

Enough is more than half. One half is enough, too, if every member of the other half is known to have lost its memory
and all of this half agree: no majority of before can have been without one of them, and nobody else can ever speak. A
vacant seat never had a memory: nobody ever spoke for it, and nobody will.

Invariant: two sets that are enough, of one work set, share a member, if who counts dead seats has a seat there itself.
Those of different work sets need not, not even if these differ by one member (decision 0172).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from chaplain.sequence.messages.entry import SeatedMember, WorkSetChange

WorkSet = tuple[SeatedMember, ...]
"""In ascending order of identifiers; each at most once."""


def is_enough(members: WorkSet, seats: Collection[int], dead: Collection[int]) -> bool:
    """Whether these seats decide for the work set. `dead` are seats whose memory is known to be gone."""
    present = len([member for member in members if member.seat in seats])
    if 2 * present > len(members):
        return True
    alive = [member.seat for member in members if not _is_empty(member, dead)]
    return 2 * len(alive) >= len(members) and present > 0 and all(seat in seats for seat in alive)


def enough_index(members: WorkSet, held: Mapping[int, int], dead: Collection[int]) -> int:
    """The highest index that enough members hold, by seat. Most often more than half hold the very last."""
    ordered = sorted(held.values(), reverse=True)
    half = len(members) // 2
    if len(ordered) > half and ordered[half] == ordered[0]:
        return ordered[0]
    for index in dict.fromkeys(ordered):
        if is_enough(members, {seat for seat, through in held.items() if through >= index}, dead):
            return index
    return 0


def is_lost(members: WorkSet, dead: Collection[int]) -> bool:
    """More than half of the memories are gone: nothing can be decided any more."""
    return 2 * sum(1 for member in members if _is_empty(member, dead)) > len(members)


def _is_empty(member: SeatedMember, dead: Collection[int]) -> bool:
    return not member.seat or member.seat in dead


def changed(members: WorkSet, change: WorkSetChange) -> WorkSet:
    """The work set behind a change. One that does not fit leaves it as it is."""
    if not change.joins:
        left = tuple(member for member in members if member != change.member)
        return left or members
    if any(member.identifier == change.member.identifier for member in members):
        return members
    return tuple(sorted((*members, change.member)))


def successor(members: WorkSet, seat: int, wanting: Collection[int]) -> int:
    """Who is next: the first of those who want, going round from this seat; 0 if nobody does."""
    seats = [member.seat for member in members]
    start = seats.index(seat) + 1 if seat in seats else 0
    return next((other for other in seats[start:] + seats[:start] if other in wanting and other != seat), 0)
