"""Pruning: computes the highest floor that a stream may have.

Events below a floor that this node sets are on the disks of all members, as their leaves show, and are read. A silent
member blocks the floor (docs/decisions/graph-confirmation-and-pruning.md). This module also decides when a node that is
new, or had left, adopts a higher floor of the others: only if at least half of the members report that floor, so a
single member cannot hide events. Does not know files.

Invariant: a floor set by this node is above no unread event, no event that a member may lack, and none of the newest
`keep_events` events.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.graph.anti_entropy import AntiEntropy
from chaplain.graph.context import GraphContext
from chaplain.graph.stream import Stream


def allowed_floor(context: GraphContext, anti_entropy: AntiEntropy, stream: Stream) -> tuple[int, list[bytes]]:
    """The highest floor allowed now, and the members that block a higher one."""
    keep, model = context.settings.keep_events, stream.model
    if not keep or stream.durable < keep + max(keep // 4, 1):
        return model.floor, []
    wanted = model.height_above(keep)
    if wanted <= model.floor:
        return model.floor, []
    others = [member for member in context.members if member != context.identity.key]
    floors = {member: _complete_below(anti_entropy, stream, member) for member in others}
    unread = [number for number in stream.unread.masks if not model.is_read(number)]
    own = min(_lowest(stream, unread), _lowest(stream, range(stream.durable, len(model))))
    floor = min(wanted, own, *floors.values())
    return max(model.floor, floor), [member for member in others if floors[member] < wanted]


def _complete_below(anti_entropy: AntiEntropy, stream: Stream, member: bytes) -> int:
    """The height below which the member has all events. 0 if it has sent no leaves, or leaves unknown to us."""
    leaves = anti_entropy.frontiers.get(member, {}).get(stream.name)
    numbers = [stream.find_durable(one) for one in leaves.ids] if leaves is not None else [-1]
    return 0 if -1 in numbers else _lowest(stream, stream.model.beyond(numbers))


def _lowest(stream: Stream, numbers: Iterable[int]) -> int:
    return min((stream.model.height_of(number) for number in numbers), default=1 << 32)


def majority_floor(context: GraphContext, anti_entropy: AntiEntropy, stream: Stream) -> int:
    """The highest floor that at least half of the members, rounded down, report; not this node, but at least one."""
    floors = [
        leaves.floor
        for member in context.members
        if (leaves := anti_entropy.frontiers.get(member, {}).get(stream.name)) is not None
        and member != context.identity.key
    ]
    enough = max(1, len(context.members) // 2)
    return 0 if len(floors) < enough else sorted(floors, reverse=True)[enough - 1]


def is_below(stream: Stream, floor: int) -> bool:
    """True if all our events are below this floor: then no member can supply the events in between."""
    return floor > stream.model.floor and all(stream.model.height_of(leaf) < floor for leaf in stream.model.leaves)
