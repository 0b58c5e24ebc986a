"""What the layers below take, so that a client hears in words what they would have to raise at.

A client need not use our library, so everything that it says is checked here before it is handed on. Each check gives
the reason for a refusal, or nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from chaplain.core import Frozen
from chaplain.gossip.settings import CONTENT_BYTES_MAX, GossipSettings
from chaplain.mesh.settings import MeshSettings

IDENTIFIER_END = 1 << 32
ITEM_BYTES = 1024
"""More than an item or a broadcast has beside its payload: header, names, numbers."""
REASON_LENGTH_MAX = 1000
"""Characters of a refusal. A layer may repeat what the client said, which may fill a parcel's body by itself."""


class Limits(Frozen, frozen=True):
    content_bytes_max: int = CONTENT_BYTES_MAX
    """Of an event, a question or an answer, as gossip takes it."""
    broadcast_bytes_max: int = MeshSettings().content_bytes_max - ITEM_BYTES
    """Of a message to a pool, as the mesh takes it, with room for what goes before it."""

    pools_max: int = MeshSettings().pools_max
    """Pools that the node may be in."""
    kept_pools: frozenset[str] = frozenset()
    """Pools that the node is in, whether or not a client listens there."""

    questions_max: int = GossipSettings().questions_max
    """Different questions that clients of the node answer."""

    def bad_content(self, size_bytes: int) -> str:
        if size_bytes <= self.content_bytes_max:
            return ""
        return f"an event, a question or an answer holds at most {self.content_bytes_max} bytes, not {size_bytes}"

    def bad_broadcast(self, size_bytes: int) -> str:
        if size_bytes <= self.broadcast_bytes_max:
            return ""
        return f"a broadcast holds at most {self.broadcast_bytes_max} bytes, not {size_bytes}"

    def bad_pool(self, pool: str, joined: Collection[str]) -> str:
        """Whether the node may be in this one beside those in which it has listeners."""
        held = {*self.kept_pools, *joined}
        if pool in held or len(held) < self.pools_max:
            return ""
        return f"this node is in {len(held)} pools already, as many as it may be: leave one first, or ask another node"

    def bad_question(self, question: str, answered: Collection[str]) -> str:
        if question in answered or len(answered) < self.questions_max:
            return ""
        return f"clients of this node answer {len(answered)} questions already, as many as they may: ask another node"


def bad_target(target: int | None) -> str:
    if target is None or 0 <= target < IDENTIFIER_END:
        return ""
    return f"a target is a node's id or its 32-bit identifier, not {target}"
