"""The settings and all bounds of the link. docs/connection.md says what happens at each bound."""

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
"""Keeps a bundle within one ZeroMQ message, and every size in it within two octets."""

SESSIONS_MAX = 4_096


class LinkSettings(Frozen, frozen=True):
    cluster: str
    """Peers with another cluster name are refused."""
    endpoint: str = ""
    """The endpoint at which others reach this node, as tcp://address:port. Empty for a client."""
    seal: str = GCM
    """`aes-256-gcm`, or `hmac-sha256` (authenticated but not encrypted)."""
    version: tuple[int, int] = (2, 0)
    knock_window_ns: int = 60 * SECOND_NS
    """The largest accepted difference between our clock and the time in a connect token."""
    knocks_max: int = 65_536
    """Used tokens remembered, for nodes and for clients separately; at this number further tokens are refused."""
    knocks_per_client_max: int = 4_096
    """Used tokens remembered for one client; at this number its further tokens are refused."""
    greeting_timeout_ns: int = 10 * SECOND_NS
    """Time from dialling, or from a client's first greeting, to a session."""
    redial_min_ns: int = 50_000_000
    redial_max_ns: int = 3 * SECOND_NS // 2
    """Peers must find a restarted node within 2 s, even if it knows no other node: they dial it."""
    queue_bytes_max: int = 16 * MIB
    """Bytes queued on one channel; ordinary commands beyond it are dropped and reported."""
    identity_queue_bytes_max: int = 32 * MIB
    """Bytes queued for all sessions of one client's key; commands beyond it are dropped and reported."""
    clients_queue_bytes_max: int = 128 * MIB
    """Bytes queued for all clients; when it is reached, each key is limited to an equal share of it."""
    reserve_bytes: int = MIB
    """Additional bytes that urgent commands may use on a channel."""
    bundle_bytes_max: int = 48 * 1024
    """Commands of one wake-up share sealed frames up to this size; with 0 each command gets its own frame at once."""
    sessions_max: int = SESSIONS_MAX
    """Sessions with nodes, and as many again with clients, so that clients cannot take the places of nodes. A greeting
    that would create one more is refused."""
    sessions_per_client_max: int = 128
    """Sessions of one client's key, so that one client cannot take all places."""
    calls_max: int = 1_024
    """Endpoints dialled; beyond it, `Meet` and dialling back are refused."""
    half_greeted_max: int = 256
    """Clients that have greeted but not proven their presence; beyond it the oldest of them is disconnected."""
    bindings_max: int = 4_096
    """Identifiers remembered after their sessions ended; beyond it the oldest is forgotten."""
    reports_per_second_max: int = 5
    """Reports of each kind and reason in one second; the next report gives the number of omitted ones."""

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
