"""The work set: the members whose memories count, and which of them form a quorum.

A quorum is more than half of the members. Exactly half of them is a quorum, too, if all of this half agree, and every
member of the other half is known to have lost its memory. This is safe: every earlier majority contained a member of
this half, and the other half can never answer again. A vacant seat never had a memory, so it counts as lost.

Invariant: two quorums of one work set share a member, provided that only a member of the set counts dead seats. Quorums
of different work sets need not share one, even if the sets differ by one member (docs/decisions/sequence-order.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from chaplain.sequence.messages.entry import SeatedMember, WorkSetChange

WorkSet = tuple[SeatedMember, ...]
"""In ascending order of identifiers, each at most once."""


def is_quorum(members: WorkSet, seats: Collection[int], dead: Collection[int]) -> bool:
    """True if these seats are a quorum of the work set. `dead` are seats that are known to have lost their memory."""
    present = len([member for member in members if member.seat in seats])
    if 2 * present > len(members):
        return True
    alive = [member.seat for member in members if not _is_empty(member, dead)]
    return 2 * len(alive) >= len(members) and present > 0 and all(seat in seats for seat in alive)


def quorum_index(members: WorkSet, held: Mapping[int, int], dead: Collection[int]) -> int:
    """The highest index that a quorum holds, given each seat's index. Fast path: most members hold the last entry."""
    ordered = sorted(held.values(), reverse=True)
    half = len(members) // 2
    if len(ordered) > half and ordered[half] == ordered[0]:
        return ordered[0]
    for index in dict.fromkeys(ordered):
        if is_quorum(members, {seat for seat, through in held.items() if through >= index}, dead):
            return index
    return 0


def is_lost(members: WorkSet, dead: Collection[int]) -> bool:
    """True if more than half of the memories are lost: nothing can be decided any more."""
    return 2 * sum(1 for member in members if _is_empty(member, dead)) > len(members)


def _is_empty(member: SeatedMember, dead: Collection[int]) -> bool:
    return not member.seat or member.seat in dead


def changed(members: WorkSet, change: WorkSetChange) -> WorkSet:
    """The work set after a change. A change that does not fit leaves the set as it is."""
    if not change.joins:
        left = tuple(member for member in members if member != change.member)
        return left or members
    if any(member.identifier == change.member.identifier for member in members):
        return members
    return tuple(sorted((*members, change.member)))


def successor(members: WorkSet, seat: int, wanting: Collection[int]) -> int:
    """The next seat that wants the lock, in round-robin order from this seat; 0 if none does."""
    seats = [member.seat for member in members]
    start = seats.index(seat) + 1 if seat in seats else 0
    return next((other for other in seats[start:] + seats[:start] if other in wanting and other != seat), 0)
