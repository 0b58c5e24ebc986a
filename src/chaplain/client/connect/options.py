"""Turn the arguments of `connect` into everything that a connection needs.

Reads files and the environment once, before anything is dialled. Every error says what to do: `Misused` for a wrong
type or range, `ConfigError` for everything else.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom
from typing import TypeAlias

from chaplain.client.connect.identity_file import IdentityFile, parse_identity_file
from chaplain.client.connect.url import SCHEME, parse_url
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
URL_VARIABLE = "CHAPLAIN_URL"
IDENTITY_VARIABLE = "CHAPLAIN_IDENTITY"
DEFAULT_CLUSTER = "chaplain"
_NO_CLUSTER = (
    f"nothing to connect to: give a cluster's directory or URL, set {CLUSTER_VARIABLE} to it, or give endpoints,"
    " identity and node_keys (an identity file made by `chaplain client add` has the keys in it)"
)

_REPORTS_PER_SECOND_MAX = 1000
"""A client has few endpoints and must learn why each of them failed, so reports are hardly limited."""


class ConnectOptions(Frozen, frozen=True):
    """Everything that is needed to connect. `repr` shows no secret."""

    endpoints: tuple[str, ...]
    identity: Identity
    node_keys: frozenset[bytes]
    cluster: str
    timeout_s: float
    seal: str = GCM
    secret: bytes = b""
    """The HMAC secret, if packs are signed by HMAC."""
    learn_members: bool = True
    """True if the client may also connect to nodes that the cluster reports as members."""

    def __repr__(self) -> str:
        return f"ConnectOptions({self.endpoints!r}, {self.identity!r}, {self.cluster!r})"

    def describe(self) -> str:
        """For people: the cluster and its given endpoints."""
        return f"cluster {self.cluster!r} at {', '.join(self.endpoints)}"

    def build(self) -> tuple[ClientCore, Sockets]:
        """Create a client core with a new instance id, and the sockets to run it over."""
        random = SystemRandom()
        instance = new_instance(random)
        settings = LinkSettings(self.cluster, seal=self.seal, reports_per_second_max=_REPORTS_PER_SECOND_MAX)
        link = LinkCore(self.identity, instance, settings, random, pinned=self.node_keys)
        journal = ClientJournal(self.identity, self.cluster, random, secret=self.secret)
        given = (self.identity.identifier, self.endpoints, Settings(), random)
        return ClientCore(link, *given, journal=journal, learn_members=self.learn_members), Sockets(instance)


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
    """Of several values of a setting, the argument wins, then the environment, the cluster file, the identity file."""
    validation.timeout_s(timeout_s)
    if name is not None:
        validation.name("a cluster's name", name)
    if node is not None:
        node = validation.number("a node's id", node, 1)
    place = cluster if cluster is not None else os.environ.get(CLUSTER_VARIABLE) or os.environ.get(URL_VARIABLE)
    url = parse_url(place) if isinstance(place, str) and place.startswith(SCHEME) else None
    cluster_file = None if not place or url is not None else load_cluster(validation.path(place))
    nodes = () if cluster_file is None else cluster_file.nodes
    if url is not None:
        endpoints = url.endpoints if endpoints is None else endpoints
        identity, name = identity or url.identity, name or url.name
    if isinstance(endpoints, str):
        endpoints = [endpoint.strip() for endpoint in endpoints.split(",")]
    chosen = _endpoints_of(nodes, node) if endpoints is None else tuple(validation.several("endpoints", endpoints))
    secret = identity or os.environ.get(IDENTITY_VARIABLE) or (cluster_file and cluster_file.identity)
    if not chosen or not secret:
        raise ConfigError(_NO_CLUSTER)
    for endpoint in chosen:
        validation.endpoint(endpoint)
    identity_file = read_identity(secret)
    given: Sequence[str | bytes] = [listed.key for listed in nodes] or identity_file.node_keys
    keys = frozenset(map(read_key, given if node_keys is None else validation.several("keys", node_keys)))
    if not keys:
        raise ConfigError(_NO_CLUSTER)
    return ConnectOptions(
        endpoints=chosen,
        identity=identity_file.identity,
        node_keys=keys,
        cluster=name or (cluster_file.cluster if cluster_file else identity_file.cluster or DEFAULT_CLUSTER),
        timeout_s=timeout_s,
        seal=cluster_file.seal if cluster_file else identity_file.seal or GCM,
        secret=identity_file.secret,
        learn_members=node is None,
    )


def _endpoints_of(nodes: Sequence[ClusterNode], node: int | None) -> tuple[str, ...]:
    found = endpoints_of(nodes, node)
    if nodes and not found:
        ids = ", ".join(str(listed.id) for listed in nodes)
        raise ConfigError(f"the cluster has no node {node}: choose one of {ids}")
    return found


def read_identity(secret: Secret) -> IdentityFile:
    """Read an identity file. Raises `ConfigError`."""
    if isinstance(secret, Identity):
        return IdentityFile(secret)
    if isinstance(secret, str) and "\n" in secret:
        raise ConfigError(
            "identity is the path of an identity file, not its contents"
        )  # do not print it: it contains the secret
    try:
        return parse_identity_file(validation.path(secret).read_text())
    except OSError as error:
        raise ConfigError(f"identity file {secret}: {error.strerror}; make one with `chaplain key new`") from None
    except (Malformed, UnicodeDecodeError) as error:
        raise ConfigError(f"identity file {secret}: {error}") from None


def read_key(key: str | bytes) -> bytes:
    """Decode a node's public key. Raises `ConfigError`."""
    try:
        return validation.key("a node's key", key)
    except (Malformed, Misused) as error:
        raise ConfigError(f"{error}: copy it from cluster.toml") from None
