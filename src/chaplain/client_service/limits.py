"""Limits of the layers below, checked here so that a client gets a readable refusal.

The layers below raise an exception when a limit is exceeded. A client may not use our library, so its messages are
checked before they are forwarded. Each check returns the reason for a refusal, or an empty string.
"""

from __future__ import annotations

from collections.abc import Collection

from chaplain.core import Frozen
from chaplain.gossip.settings import CONTENT_BYTES_MAX, GossipSettings
from chaplain.mesh.settings import MeshSettings

IDENTIFIER_END = 1 << 32
"""Identifiers of nodes are below this."""
ITEM_BYTES = 1024
"""Upper bound of the size of an item or a broadcast without its payload: header, names and numbers."""
REASON_LENGTH_MAX = 1000
"""Characters of a refusal. A layer may quote the client, whose request can fill a parcel's body."""


class Limits(Frozen, frozen=True):
    """Limits of gossip and mesh for what clients send."""

    content_bytes_max: int = CONTENT_BYTES_MAX
    """Size of an event, a question or an answer in gossip."""
    broadcast_bytes_max: int = MeshSettings().content_bytes_max - ITEM_BYTES
    """Size of a message to a pool in the mesh, less its header."""

    pools_max: int = MeshSettings().pools_max
    """Pools that the node may join."""
    kept_pools: frozenset[str] = frozenset()
    """Permanent pools: the node is in them whether or not a client listens there."""

    questions_max: int = GossipSettings().questions_max
    """Different questions that clients of the node may answer."""

    def bad_content(self, size_bytes: int) -> str:
        if size_bytes <= self.content_bytes_max:
            return ""
        return f"an event, a question or an answer holds at most {self.content_bytes_max} bytes, not {size_bytes}"

    def bad_broadcast(self, size_bytes: int) -> str:
        if size_bytes <= self.broadcast_bytes_max:
            return ""
        return f"a broadcast holds at most {self.broadcast_bytes_max} bytes, not {size_bytes}"

    def bad_pool(self, pool: str, joined: Collection[str]) -> str:
        """Check that the node may join this pool in addition to those in which it has listeners."""
        held = {*self.kept_pools, *joined}
        if pool in held or len(held) < self.pools_max:
            return ""
        return f"this node is in {len(held)} pools, which is the limit: leave one first, or ask another node"

    def bad_question(self, question: str, answered: Collection[str]) -> str:
        if question in answered or len(answered) < self.questions_max:
            return ""
        return f"clients of this node answer {len(answered)} questions, which is the limit: ask another node"


def bad_target(target: int | None) -> str:
    if target is None or 0 <= target < IDENTIFIER_END:
        return ""
    return f"a target is a node's id or its 32-bit identifier, not {target}"
