"""From what a user gives to `connect` to everything a connection is made of.

Reads files and the environment once, before anything is dialled; every mistake is a `ConfigError` that says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom
from typing import TypeAlias

from chaplain.client.core import ClientCore
from chaplain.client.events import Settings
from chaplain.client.requests import check_timeout
from chaplain.core import Frozen
from chaplain.errors import ConfigError, Malformed
from chaplain.link.core import LinkCore
from chaplain.link.identity import KEY_BYTES, Identity, from_text, new_instance
from chaplain.link.settings import GCM, LinkSettings, split_endpoint
from chaplain.link.sockets import Sockets

Secret: TypeAlias = Identity | str | Path
"""An identity, or the path of its file."""

_REPORTS_PER_SECOND_MAX = 1000
"""A client has few endpoints, and must know why each of them failed."""


class Opening(Frozen, frozen=True):
    """All that is needed to connect. Holds the identity, whose secret no `repr` shows."""

    endpoints: tuple[str, ...]
    identity: Identity
    node_keys: frozenset[bytes]
    cluster: str
    timeout_s: float
    seal: str = GCM

    def build(self) -> tuple[ClientCore, Sockets]:
        """A fresh instance: a core, and sockets to run it over."""
        chance = SystemRandom()
        instance = new_instance(chance)
        settings = LinkSettings(self.cluster, seal=self.seal, reports_per_second_max=_REPORTS_PER_SECOND_MAX)
        link = LinkCore(self.identity, instance, settings, chance, pinned=self.node_keys)
        core = ClientCore(link, self.identity.identifier, self.endpoints, Settings(), chance)
        return core, Sockets(instance)


def prepare(
    cluster: str | Path | None,
    *,
    endpoints: Sequence[str] | None,
    identity: Secret | None,
    node_keys: Sequence[str | bytes] | None,
    name: str | None,
    node: int | None,
    timeout_s: float,
) -> Opening:
    """What was given goes before what the cluster file says."""
    check_timeout(timeout_s)
    if endpoints is None or identity is None or node_keys is None:
        raise ConfigError("no cluster given")
    chosen = tuple(endpoints)
    for endpoint in chosen:
        split_endpoint(endpoint)
    return Opening(
        endpoints=chosen,
        identity=read_identity(identity),
        node_keys=frozenset(read_key(key) for key in node_keys),
        cluster=name or "chaplain",
        timeout_s=timeout_s,
    )


def read_identity(secret: Secret) -> Identity:
    if isinstance(secret, Identity):
        return secret
    try:
        return Identity.parse(Path(secret).read_text())
    except OSError as error:
        raise ConfigError(f"identity file {secret}: {error.strerror}; make one with `chaplain key new`") from None
    except (Malformed, UnicodeDecodeError) as error:
        raise ConfigError(f"identity file {secret}: {error}") from None


def read_key(key: str | bytes) -> bytes:
    if isinstance(key, bytes):
        if len(key) != KEY_BYTES:
            raise ConfigError(f"a node's key has {KEY_BYTES} bytes, not {len(key)}")
        return key
    try:
        return from_text(key, KEY_BYTES, "node key")
    except Malformed as error:
        raise ConfigError(f"{error}: copy it from cluster.toml") from None
