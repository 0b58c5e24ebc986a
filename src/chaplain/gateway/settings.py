"""Bounds and time-outs of the gateway, and what happens at each of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from chaplain.core import Frozen
from chaplain.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB


class GatewaySettings(Frozen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings, in the order in which a request meets them."""

    connections_max: int = 512
    """One more connection is answered with `busy` (503) and closed."""
    connections_per_address_max: int = 256
    """Likewise, of one address: it cannot keep out the others. Behind a proxy it is the bound for all."""
    header_bytes_max: int = 16 * KIB
    """A longer request line with header fields is answered with `header-too-large` (431)."""
    header_seconds: float = 10.0
    """A connection whose header is not complete after this time is closed."""
    idle_seconds: float = 30.0
    """A connection without a request is closed after this time."""
    unauthenticated_per_second: float = 50.0
    """Requests without a valid token, of all addresses together. Further ones get `rate-limited` (429)."""
    unauthenticated_burst: int = 100
    token_per_second: float = 500.0
    """Requests of one token. Further ones get `rate-limited` (429)."""
    token_burst: int = 1000
    token_requests_max: int = 128
    """Requests of one token that are served at the same time. Further ones get `rate-limited` (429)."""
    body_bytes_max: int = 6 * MIB
    """A longer body gets `too-large` (413). It leaves room for a full write in base64."""
    body_seconds: float = 30.0
    """A body that is not complete after this time gets `request-timeout` (408)."""
    buffered_bytes_max: int = 256 * MIB
    """Bodies, reads under way (4 MiB each) and answers in memory. A request that does not fit gets `busy` (503)."""
    page_messages_max: int = 1000
    """A page of messages ends here; the answer says where the next one begins."""
    page_bytes_max: int = 1 * MIB
    """Likewise. A larger message is a page of its own."""
    request_seconds: float = 10.0
    """Time-out of the cluster for one request: then `unreachable` (503) or `unknown-outcome` (504)."""
    stalled_seconds: float = 30.0
    """A connection is closed if its client does not read 64 KiB of an answer in this time."""
    followers_max: int = 64
    """Streams of server-sent events in all. Further ones get `busy` (503). Each may buffer 4 MiB."""
    followers_per_token_max: int = 16
    """Likewise, of one token. Further ones get `rate-limited` (429)."""
    heartbeat_seconds: float = 15.0
    """A follower without messages gets a comment this often. The token is checked again at each one."""
    clients_max: int = 64
    """Identities with an open connection to the cluster. If all are in use, one more gets `busy` (503)."""
    client_idle_seconds: float = 300.0
    """A connection to the cluster is closed when it was not used for this time."""
    idempotency_seconds: float = 600.0
    """An idempotency key is remembered for this time after its answer."""
    idempotency_keys_max: int = 50_000
    """Remembered keys in all. No key is forgotten early: one more gets `busy` (503)."""
    idempotency_keys_per_token_max: int = 10_000
    """Likewise, of one token. One more gets `rate-limited` (429)."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")


def load_settings(file: Path | None) -> GatewaySettings:
    """Read settings from a TOML file; a missing name has its default. Raises `ConfigError`."""
    if file is None:
        return GatewaySettings()
    try:
        return msgspec.convert(tomllib.loads(file.read_text()), GatewaySettings)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None
