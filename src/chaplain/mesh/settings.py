"""The settings of the mesh: its timings and all its bounds.

The text beside each bound says what happens when it is reached. Values that are part of the formats are in
`wire/limits.py`.
"""

from __future__ import annotations

import msgspec

from chaplain.core import Frozen
from chaplain.errors import ConfigError
from chaplain.units import SECOND_NS
from chaplain.wire.limits import FRAME_BYTES_MAX, STRINGS_MAX


class MeshSettings(Frozen, frozen=True):
    cluster: str = "chaplain"
    """The cluster whose beacons this node accepts."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Headers of our greeting beside pools and status."""

    heartbeat_ns: int = SECOND_NS
    """A node gets a heartbeat when nothing was sent to it for this long.
    Also the interval at which one peer may be asked for its pool list."""
    ping_after_ns: int = 5 * SECOND_NS
    """A peer that was silent for this long is pinged, and again after each further interval."""
    gone_after_ns: int = 30 * SECOND_NS
    """A peer that was silent for this long is treated as dead."""

    nodes_max: int = 1024
    """Sessions with nodes. A further one is reported and ignored."""
    clients_max: int = 4096
    """Sessions with clients. A further one is reported and ignored."""
    pools_max: int = STRINGS_MAX
    """Pools that one node may be in. The bound applies to this node and to each peer. A further pool is reported and
    not joined.
    """
    neighbours_max: int = 1024
    """Endpoints that the layers above may request. A further one is reported and not dialled."""
    content_bytes_max: int = FRAME_BYTES_MAX - 1024
    """Content of one command; the rest of the frame is for command and seal. Larger content is reported, not sent."""

    beacon_ns: int = SECOND_NS
    """The interval between two beacons, if beacons are enabled."""
    beacon_age_ns: int = 60 * SECOND_NS
    """A beacon whose time differs more than this from ours is ignored. A neighbour found by beacon is forgotten after
    this time without a beacon."""
    beacons_max: int = 256
    """Neighbours known by beacon alone. A further one is counted and ignored."""
    beacons_per_second_max: int = 1000
    """Datagrams whose MAC is checked in one second. Further ones are counted and ignored."""
    epoch_ns: int = 0
    """Added to the core's time to get Unix time in nanoseconds; 0 if the host's time is Unix time."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ns < self.ping_after_ns < self.gone_after_ns:
            raise ConfigError("mesh: heartbeat, ping and gone times must be positive and grow in this order")
        if not 0 < self.pools_max <= STRINGS_MAX:
            raise ConfigError(f"mesh: pools_max must be 1 to {STRINGS_MAX}: a greeting counts them in one octet")
        if not 0 < self.content_bytes_max < FRAME_BYTES_MAX:
            raise ConfigError(f"mesh: content_bytes_max must be under the frame's {FRAME_BYTES_MAX} octets")
        bounds = (self.nodes_max, self.clients_max, self.neighbours_max, self.beacons_max, self.beacons_per_second_max)
        if min(bounds) < 1 or min(self.beacon_ns, self.beacon_age_ns) < 1:
            raise ConfigError("mesh: bounds and beacon times must be at least 1")
