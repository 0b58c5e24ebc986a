"""Members that lacked dropped messages, and for which the log is retained while they are disconnected.

    lacks messages ──▶ installs a checkpoint and restarts: disconnected ──▶ connected ──▶ has our latest checkpoint

A node that installs a checkpoint disconnects while it restarts. Meanwhile its peers could drop the messages after that
checkpoint, because no connected member needs them. The node would then have to install another checkpoint and restart
again, repeatedly while the others make progress. A lagging member therefore counts as connected, with its last offer,
until it has caught up.

Decides for which members the log is retained. Refuses to know what is dropped (`checkpointer`).

Bounds: the log is retained for a member for at most `RETURN_NS` after it disconnected.
"""

from __future__ import annotations

RETURN_NS = 60_000_000_000
"""Long enough for a process to restart and to read a large state."""


class LaggingMembers:
    """The members that lag behind, connected or not."""

    def __init__(self) -> None:
        self._lagging: set[int] = set()
        """Members that lacked dropped messages and have not reached our latest checkpoint since."""
        self._away: dict[int, tuple[int, int]] = {}
        """For each of them that disconnected: its last checkpoint, and until when the log is retained for it."""

    def on_offer(self, node: int, *, lacking: bool, latest: bool) -> None:
        """A member sent an offer. `lacking`: it lacks dropped messages. `latest`: it has our latest checkpoint."""
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
        """Stop to wait for members that were disconnected for `RETURN_NS`."""
        for node in [node for node, (_, until_ns) in self._away.items() if now_ns >= until_ns]:
            del self._away[node]
            self._lagging.discard(node)

    def checkpoints(self) -> list[int]:
        """The last checkpoints of the disconnected members."""
        return [index for index, _ in self._away.values()]
