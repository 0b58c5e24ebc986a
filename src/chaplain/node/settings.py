"""The settings of a node, and of what it records for Spark."""

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
    """Bounds for the time and memory that client requests take."""

    paced: bool = False
    """Whether the host sends `Serve` for each request, which limits their time; else `Drained` serves all of them."""
    session_bytes_max: int = 16 << 20
    """Waiting requests of one session. Beyond this bound, or the next two, the session is closed."""
    identity_bytes_max: int = 64 << 20
    """Waiting requests of all sessions of one identity."""
    bytes_max: int = 256 << 20
    """Waiting requests of all clients."""
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
    client_service: ClientServiceSettings = ClientServiceSettings()
    clients: ClientSettings = ClientSettings()
    beacon: bool = False
    """Whether to discover neighbours by UDP beacons, too."""
    neighbours: tuple[str, ...] = ()
    """Endpoints to join the cluster through; one that answers is enough."""
    node_ids: Mapping[int, int] = {}
    """Node ids, for people, by identifier; a node without one is named by its identifier."""
    rotation_timeout_ns: int = ROTATION_NS


class RecorderSettings(Frozen, frozen=True):
    pools: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    """Types of events; `*` for all."""
    pending_bytes_max: int = 16 << 20
    """Messages that wait for the disk; further ones are not recorded, and their number is reported."""

    @property
    def records(self) -> bool:
        return bool(self.pools or self.events)
