"""What may be forgotten: events that every member has, below the newest ones that are to be kept.

Decides how high a stream's floor may be: everything below it is on the disk of every member that has not left, as their
leaves said, and read. Also decides when a node that was away, and is below what others still have, takes over their
floor: only if half of the members say it, so that no single one hides the past. Refuses to know files.

Invariant: nothing unread, nothing that a member may lack, and none of the newest `keep_events` is below a floor that we
set.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.graph.common import Common
from chaplain.graph.stream import Stream
from chaplain.graph.syncing import Syncing


def allowed_floor(common: Common, syncing: Syncing, stream: Stream) -> int:
    """How high the floor may be now."""
    keep, model = common.settings.keep_events, stream.model
    if not keep or stream.durable < keep + max(keep // 4, 1):
        return model.floor
    floor = model.height_above(keep)
    for member in common.members:
        if member != common.identity.key:
            floor = min(floor, _floor_of(syncing, stream, member))
    unread = [number for number in stream.unread.masks if not model.is_read(number)]
    floor = min(floor, _lowest(stream, unread), _lowest(stream, range(stream.durable, len(model))))
    return max(model.floor, floor)


def _floor_of(syncing: Syncing, stream: Stream, member: bytes) -> int:
    """Below this the member has everything; 0 if it has not told us, or told what we do not know."""
    told = syncing.frontiers.get(member, {}).get(stream.name)
    numbers = [stream.find_durable(one) for one in told.ids] if told is not None else [-1]
    return 0 if -1 in numbers else _lowest(stream, stream.model.beyond(numbers))


def _lowest(stream: Stream, numbers: Iterable[int]) -> int:
    return min((stream.model.height_of(number) for number in numbers), default=1 << 32)


def told_floor(common: Common, syncing: Syncing, stream: Stream) -> int:
    """The highest floor that half of the members, or more, say they have."""
    floors = [
        told.floor
        for member in common.members
        if (told := syncing.frontiers.get(member, {}).get(stream.name)) is not None and member != common.identity.key
    ]
    enough = max(1, len(common.members) // 2)
    return 0 if len(floors) < enough else sorted(floors, reverse=True)[enough - 1]


def is_below(stream: Stream, floor: int) -> bool:
    """Whether all that we have ends below this: then nobody can give us what lies between."""
    return floor > stream.model.floor and all(stream.model.height_of(leaf) < floor for leaf in stream.model.leaves)
