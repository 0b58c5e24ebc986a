"""What may be set about a link, and every bound it keeps. What happens at each bound: docs/connection.md."""

from __future__ import annotations

import re

from chaplain.core import Frozen
from chaplain.errors import ConfigError
from chaplain.link.endpoint import split_endpoint
from chaplain.units import MIB, SECOND_NS

GCM = "aes-256-gcm"
HMAC = "hmac-sha256"

_CLUSTER = re.compile(r"[\x21-\x7e]{1,128}")

BUNDLE_BYTES_MAX = 60 * 1024
"""So that a bundle is one message to ZeroMQ, and every size in it fits two octets."""

SESSIONS_MAX = 4_096


class LinkSettings(Frozen, frozen=True):
    cluster: str
    """Only those who name the same cluster talk."""
    endpoint: str = ""
    """Where others reach us, as tcp://address:port. Empty for a client."""
    seal: str = GCM
    """`aes-256-gcm` or `hmac-sha256` (readable on the way, not changeable)."""
    version: tuple[int, int] = (2, 0)
    knock_window_ns: int = 60 * SECOND_NS
    """How far the clock of somebody who knocks may be from ours."""
    knocks_max: int = 65_536
    """Knocks remembered, for nodes and for clients separately; at this number further ones are refused."""
    knocks_per_client_max: int = 4_096
    greeting_timeout_ns: int = 10 * SECOND_NS
    """From dialling, or from a client's first greeting, to a session."""
    redial_min_ns: int = 50_000_000
    redial_max_ns: int = 3 * SECOND_NS // 2
    """A node that starts is to be found within 2 s, even one that knows nobody: the others dial it."""
    queue_bytes_max: int = 16 * MIB
    """Bytes waiting on one channel; ordinary commands beyond it are dropped and told."""
    identity_queue_bytes_max: int = 32 * MIB
    """Bytes waiting for all sessions of one client's key; commands beyond it are dropped and told."""
    clients_queue_bytes_max: int = 128 * MIB
    """Bytes waiting for all clients; at this number each key may have an equal part of it, and no more."""
    reserve_bytes: int = MIB
    """What urgent commands may take on top."""
    bundle_bytes_max: int = 48 * 1024
    """Commands said in one wake-up share sealed frames up to this size; with 0 each goes alone, and at once."""
    sessions_max: int = SESSIONS_MAX
    """Of nodes, and of clients as many again: however many clients there are, a node finds room. Greetings that would
    make one more are refused."""
    sessions_per_client_max: int = 128
    """Of one client's key, so that one client leaves room for others."""
    calls_max: int = 1_024
    """Endpoints dialled; beyond it `Meet` and dial-backs are refused."""
    half_greeted_max: int = 256
    """Clients greeted but not proven; beyond it the oldest of them is hung up."""
    bindings_max: int = 4_096
    """Identifiers remembered after their sessions ended; beyond it the oldest is forgotten."""
    reports_per_second_max: int = 5
    """For each kind and reason; what is left out is counted in the next report."""

    def __post_init__(self) -> None:
        if not _CLUSTER.fullmatch(self.cluster):
            raise ConfigError(f"cluster: 1 to 128 visible ASCII characters wanted, not {self.cluster!r}")
        if self.endpoint:
            split_endpoint(self.endpoint)
        if self.seal not in (GCM, HMAC):
            raise ConfigError(f"seal: {GCM} or {HMAC}, not {self.seal!r}")
        if not 0 < self.redial_min_ns <= self.redial_max_ns:
            raise ConfigError("redial: the shortest wait must be positive and at most the longest")
        if not 0 <= self.bundle_bytes_max <= BUNDLE_BYTES_MAX:
            raise ConfigError(f"bundle_bytes_max: 0 to {BUNDLE_BYTES_MAX} wanted, not {self.bundle_bytes_max}")
