"""What may be forgotten: events that every member has, below the newest ones that are to be kept.

Decides how high a stream's floor may be: everything below it is on the disk of every member, as their leaves said, and
read. A member that is silent is waited for (decision 0153). Also decides when a node that comes new, or had left, and
is below what others still have, takes over their floor: only if half of the members say it, so that no single one hides
the past. Refuses to know files.

Invariant: nothing unread, nothing that a member may lack, and none of the newest `keep_events` is below a floor that we
set.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.graph.anti_entropy import AntiEntropy
from chaplain.graph.context import GraphContext
from chaplain.graph.stream import Stream


def allowed_floor(common: GraphContext, syncing: AntiEntropy, stream: Stream) -> tuple[int, list[bytes]]:
    """How high the floor may be now, and who keeps it lower than it could be."""
    keep, model = common.settings.keep_events, stream.model
    if not keep or stream.durable < keep + max(keep // 4, 1):
        return model.floor, []
    wanted = model.height_above(keep)
    if wanted <= model.floor:
        return model.floor, []
    others = [member for member in common.members if member != common.identity.key]
    floors = {member: _floor_of(syncing, stream, member) for member in others}
    unread = [number for number in stream.unread.masks if not model.is_read(number)]
    own = min(_lowest(stream, unread), _lowest(stream, range(stream.durable, len(model))))
    floor = min(wanted, own, *floors.values())
    return max(model.floor, floor), [member for member in others if floors[member] < wanted]


def _floor_of(syncing: AntiEntropy, stream: Stream, member: bytes) -> int:
    """Below this the member has everything; 0 if it has not told us, or told what we do not know."""
    told = syncing.frontiers.get(member, {}).get(stream.name)
    numbers = [stream.find_durable(one) for one in told.ids] if told is not None else [-1]
    return 0 if -1 in numbers else _lowest(stream, stream.model.beyond(numbers))


def _lowest(stream: Stream, numbers: Iterable[int]) -> int:
    return min((stream.model.height_of(number) for number in numbers), default=1 << 32)


def told_floor(common: GraphContext, syncing: AntiEntropy, stream: Stream) -> int:
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
