"""From what a user gives to `connect` to everything a connection is made of.

Reads files and the environment once, before anything is dialled. Every mistake is told with what to do: as a
`ConfigError`, or as `Misused` if it is one of type or range.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom
from typing import TypeAlias

from chaplain.client.connect.identity_file import Passport, read_passport
from chaplain.client.protocol.core import ClientCore
from chaplain.client.protocol.events import Settings
from chaplain.client.protocol.journal.core import ClientJournal
from chaplain.client.types import validation
from chaplain.config import ClusterNode, endpoints_of, load_cluster
from chaplain.core import Frozen
from chaplain.errors import ConfigError, Malformed, Misused
from chaplain.link.auth.identity import Identity, new_instance
from chaplain.link.core import LinkCore
from chaplain.link.settings import GCM, LinkSettings
from chaplain.link.zmq.sockets import Sockets

Secret: TypeAlias = Identity | str | Path
"""An identity, or the path of its file."""

CLUSTER_VARIABLE = "CHAPLAIN_CLUSTER"
IDENTITY_VARIABLE = "CHAPLAIN_IDENTITY"
DEFAULT_CLUSTER = "chaplain"
_NOWHERE = (
    f"nothing to connect to: give a cluster's directory, set {CLUSTER_VARIABLE} to it, or give endpoints, identity and"
    " node_keys (an identity file made by `chaplain client add` has the keys in it)"
)

_REPORTS_PER_SECOND_MAX = 1000
"""A client has few endpoints, and must know why each of them failed."""


class ConnectOptions(Frozen, frozen=True):
    """All that is needed to connect. Holds the identity, whose secret no `repr` shows."""

    endpoints: tuple[str, ...]
    identity: Identity
    node_keys: frozenset[bytes]
    cluster: str
    timeout_s: float
    seal: str = GCM
    secret: bytes = b""
    """Of an HMAC, if packs are signed by one."""
    learns: bool = True
    """Whether nodes of which the cluster says that they belong to it make up for those that were given."""

    def __repr__(self) -> str:
        return f"Opening({self.endpoints!r}, {self.identity!r}, {self.cluster!r})"

    def build(self) -> tuple[ClientCore, Sockets]:
        """A fresh instance: a core, and sockets to run it over."""
        chance = SystemRandom()
        instance = new_instance(chance)
        settings = LinkSettings(self.cluster, seal=self.seal, reports_per_second_max=_REPORTS_PER_SECOND_MAX)
        link = LinkCore(self.identity, instance, settings, chance, pinned=self.node_keys)
        journal = ClientJournal(self.identity, self.cluster, chance, secret=self.secret)
        given = (self.identity.identifier, self.endpoints, Settings(), chance)
        return ClientCore(link, *given, journal=journal, learns=self.learns), Sockets(instance)


def prepare(
    cluster: str | Path | None,
    *,
    endpoints: str | Sequence[str] | None,
    identity: Secret | None,
    node_keys: Sequence[str | bytes] | None,
    name: str | None,
    node: int | None,
    timeout_s: float,
) -> ConnectOptions:
    """What was given goes before the environment, that before the cluster file, that before the identity file."""
    validation.timeout_s(timeout_s)
    if name is not None:
        validation.name("a cluster's name", name)
    if node is not None:
        node = validation.number("a node's id", node, 1)
    where = cluster if cluster is not None else os.environ.get(CLUSTER_VARIABLE)
    known = None if not where else load_cluster(validation.path(where))
    nodes = () if known is None else known.nodes
    if isinstance(endpoints, str):
        endpoints = [endpoint.strip() for endpoint in endpoints.split(",")]
    chosen = _endpoints_of(nodes, node) if endpoints is None else tuple(validation.several("endpoints", endpoints))
    secret = identity or os.environ.get(IDENTITY_VARIABLE) or (known and known.identity)
    if not chosen or not secret:
        raise ConfigError(_NOWHERE)
    for endpoint in chosen:
        validation.endpoint(endpoint)
    passport = read_identity(secret)
    given: Sequence[str | bytes] = [listed.key for listed in nodes] or passport.node_keys
    keys = frozenset(map(read_key, given if node_keys is None else validation.several("keys", node_keys)))
    if not keys:
        raise ConfigError(_NOWHERE)
    return ConnectOptions(
        endpoints=chosen,
        identity=passport.identity,
        node_keys=keys,
        cluster=name or (known.cluster if known else passport.cluster or DEFAULT_CLUSTER),
        timeout_s=timeout_s,
        seal=known.seal if known else passport.seal or GCM,
        secret=passport.secret,
        learns=node is None,
    )


def _endpoints_of(nodes: Sequence[ClusterNode], node: int | None) -> tuple[str, ...]:
    found = endpoints_of(nodes, node)
    if nodes and not found:
        ids = ", ".join(str(listed.id) for listed in nodes)
        raise ConfigError(f"the cluster has no node {node}: choose one of {ids}")
    return found


def read_identity(secret: Secret) -> Passport:
    if isinstance(secret, Identity):
        return Passport(secret)
    if isinstance(secret, str) and "\n" in secret:
        raise ConfigError("identity is the path of an identity file, not what is in it")  # and not to be shown
    try:
        return read_passport(validation.path(secret).read_text())
    except OSError as error:
        raise ConfigError(f"identity file {secret}: {error.strerror}; make one with `chaplain key new`") from None
    except (Malformed, UnicodeDecodeError) as error:
        raise ConfigError(f"identity file {secret}: {error}") from None


def read_key(key: str | bytes) -> bytes:
    try:
        return validation.key("a node's key", key)
    except (Malformed, Misused) as error:
        raise ConfigError(f"{error}: copy it from cluster.toml") from None
