"""Members that came too late, and are waited for while they are away.

    lacks what went ──▶ takes a checkpoint, and starts again: away ──▶ here, catching up ──▶ has our latest checkpoint

Whoever takes a checkpoint from others is away for the moment in which it starts from it. If what follows that
checkpoint went meanwhile, because nobody connected needed it, it would have to take another, and be away again, for as
long as the others go on. So it counts as connected, with what it said last, until it has caught up.

Decides who is waited for. Refuses to know what goes (`archive`).

Bounds: nobody is waited for longer than `RETURN_NS` after it left.
"""

from __future__ import annotations

RETURN_NS = 60_000_000_000
"""A process that starts anew and reads a large state is there again well before."""


class LaggingMembers:
    def __init__(self) -> None:
        self._lagging: set[int] = set()
        """Members that lacked what went, and have not come to our latest checkpoint since."""
        self._away: dict[int, tuple[int, int]] = {}
        """Those of them that left: the last checkpoint that they said they have, and until when they are waited for."""

    def on_offer(self, node: int, *, lacking: bool, latest: bool) -> None:
        """A member said what it has."""
        if lacking:
            self._lagging.add(node)
        elif latest:
            self._lagging.discard(node)

    def on_connected(self, node: int) -> None:
        self._away.pop(node, None)

    def on_disconnected(self, now_ns: int, node: int, index: int) -> None:
        if node in self._lagging:
            self._away[node] = (index, now_ns + RETURN_NS)

    def expire(self, now_ns: int) -> None:
        """Wait no longer for who has been away too long."""
        for node in [node for node, (_, until_ns) in self._away.items() if now_ns >= until_ns]:
            del self._away[node]
            self._lagging.discard(node)

    def checkpoints(self) -> list[int]:
        """What those that are away have."""
        return [index for index, _ in self._away.values()]
