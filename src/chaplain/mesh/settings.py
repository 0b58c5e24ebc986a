"""What a user may change about the mesh: its timings and every bound it keeps.

What happens at a bound is said beside it. Values that are part of the formats stand in `wire/limits.py`.
"""

from __future__ import annotations

import msgspec

from chaplain.core import Frozen
from chaplain.errors import ConfigError
from chaplain.units import SECOND_NS
from chaplain.wire.limits import FRAME_BYTES_MAX, STRINGS_MAX


class MeshSettings(Frozen, frozen=True):
    cluster: str = "chaplain"
    """Whose beacons are ours."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """What our greetings say of us beside pools and status."""

    heartbeat_ns: int = SECOND_NS
    """A node to which nothing was sent for so long gets a heartbeat. Also: how often one peer is asked for its roll."""
    ping_after_ns: int = 5 * SECOND_NS
    """A peer that was silent for so long is pinged, and again after as long."""
    gone_after_ns: int = 30 * SECOND_NS
    """A peer that was silent for so long is treated as dead."""

    nodes_max: int = 1024
    """Nodes we hold sessions with. One more is reported and not listened to."""
    clients_max: int = 4096
    """Likewise for clients."""
    pools_max: int = STRINGS_MAX
    """Pools a node may be in, we as well as each peer. One more is reported and not joined."""
    neighbours_max: int = 1024
    """Endpoints the layers above may want met. One more is reported and not dialled."""
    content_bytes_max: int = FRAME_BYTES_MAX - 1024
    """Content of one command; the rest of the frame is for command and seal. More is reported and not sent."""

    beacon_ns: int = SECOND_NS
    """How often we cast a beacon, if we cast any."""
    beacon_age_ns: int = 60 * SECOND_NS
    """A beacon older or newer than this is ignored; a neighbour found by beacon and unheard for so long is let go."""
    beacons_max: int = 256
    """Neighbours known by beacon alone. One more is counted and ignored."""
    beacons_per_second_max: int = 1000
    """Datagrams whose MAC is checked in one second. More are counted and ignored."""
    epoch_ns: int = 0
    """What to add to the core's time to get nanoseconds since 1970; 0 if the host's time counts from there."""

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
