"""What a node is told when it is made, and which of what passes it puts on record."""

from __future__ import annotations

from collections.abc import Mapping

from chaplain.client_service.events import ClientServiceSettings
from chaplain.client_service.messages import ROTATION_NS
from chaplain.core import Frozen
from chaplain.gossip.settings import GossipSettings
from chaplain.link.settings import LinkSettings
from chaplain.mesh.settings import MeshSettings
from chaplain.node.fair_queue import LIGHT_PER_SECOND


class ClientSettings(Frozen, frozen=True):
    """Bounds on the time and memory that requests of clients take of a node."""

    paced: bool = False
    """Whether the host says `Serve` for each request, and so how much time they get; else `Drained` serves all."""
    session_bytes_max: int = 16 << 20
    """Requests of one session that wait to be served. With more of them its session ends, and so for the next two."""
    identity_bytes_max: int = 64 << 20
    """Of all sessions of one identity."""
    bytes_max: int = 256 << 20
    """Of all clients."""
    behind_bytes: int = 64 << 10
    """With more octets of writes under way, only light clients are served while clients contend. A write and a
    configuration request count as 4 KiB beside their octets.
    """
    light_per_second: int = LIGHT_PER_SECOND
    """Units of cost (`costs`) that one identity may cause in one second and still be served before others."""


class NodeSettings(Frozen, frozen=True):
    link: LinkSettings
    mesh: MeshSettings
    gossip: GossipSettings
    desk: ClientServiceSettings = ClientServiceSettings()
    clients: ClientSettings = ClientSettings()
    beacon: bool = False
    """Whether to find neighbours by datagrams, too."""
    neighbours: tuple[str, ...] = ()
    """Endpoints to join the cluster through; one that answers is enough."""
    node_ids: Mapping[int, int] = {}
    """The names people know nodes by, from their identifiers; others go by their identifier."""
    rotation_timeout_ns: int = ROTATION_NS


class RecorderSettings(Frozen, frozen=True):
    pools: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    """Types of events; `*` for all."""
    pending_bytes_max: int = 16 << 20

    @property
    def records(self) -> bool:
        return bool(self.pools or self.events)
