"""Creates the folder of a node that joins a cluster, and adds nodes to or removes them from the clients' file.

The new folder copies what all nodes share (founding configuration, key ring, wrapping key, limits and time-outs) from
the folder of an existing node. Identity, disk id and address are new. The current members come from the running cluster
(`roster`). The folder can be copied to another machine; it contains the cluster's secrets.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from chaplain import durable
from chaplain.config import (
    CLUSTER_FILE,
    NODE_FILE,
    SEGMENTS,
    ClusterFile,
    ClusterNode,
    NodeConfig,
    load_cluster,
    load_node,
)
from chaplain.core import Frozen
from chaplain.errors import ConfigError
from chaplain.journal.consensus.hard_state import DISK_BYTES
from chaplain.journal.storage.last_known_members import LAST_KNOWN_MEMBERS_FILE, LastKnownMembers
from chaplain.link.auth.identity import Identity, to_text
from chaplain.link.endpoint import split_endpoint
from chaplain.node.keyring_store import KEYRING_FILE
from chaplain.runtime.cluster.create import check_http, cluster_text, free_ports, to_toml
from chaplain.runtime.layers.journal import DISK_FILE, WRAPPING_FILE
from chaplain.runtime.secret_files import write_secret

_COPIED_SETTINGS = (
    "mesh",
    "gossip",
    "graph",
    "sequence",
    "bounds",
    "journal.segment_bytes",
    "journal.election_seconds",
    "journal.keep_bytes",
    "journal.keep_seconds",
    "journal.keep_stopped_bytes",
    "journal.room_bytes_min",
)
"""Settings and tables of settings that a new node copies from the existing node."""


class JoiningNode(Frozen, frozen=True):
    """The folder of a new node, and what the cluster has to know about the node."""

    node: ClusterNode
    folder: Path
    disk: str


def make_folder(
    directory: Path,
    number: int,
    endpoint: str,
    http: str,
    last_known_members: LastKnownMembers | None = None,
    *,
    holds_data: bool = True,
) -> JoiningNode:
    """Write the folder of a new node, based on the folder of an existing node in `directory`.

    The new node accepts the members in `last_known_members` by their keys. In a cluster with index-only serializers,
    a node without data has no database.
    """
    cluster = load_cluster(directory)
    template = _template(directory, cluster)
    local = not endpoint
    if not local:
        split_endpoint(endpoint)
        check_http(http)
    if local:
        ports = free_ports(2)
        endpoint, http = f"tcp://127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
    folder = directory / f"node-{number}"
    if folder.exists():
        raise ConfigError(f"{folder} exists already; move it away, or give another id")
    try:
        bare = not holds_data and bool(template.texts("journal.index_only"))
        made = _fill(folder, ClusterNode(number, endpoint, "", http, bare), template, cluster)
        if last_known_members is not None:
            durable.write_new(folder / LAST_KNOWN_MEMBERS_FILE, last_known_members.text())
        # `cluster status` queries a node on another machine as a client, not over its HTTP port.
        return made if local else msgspec.structs.replace(made, node=msgspec.structs.replace(made.node, http=""))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _template(directory: Path, cluster: ClusterFile) -> NodeConfig:
    for node in cluster.nodes:
        file = directory / f"node-{node.id}" / NODE_FILE
        if file.is_file():
            return load_node(file, {})
    raise ConfigError(f"{directory} contains no node's folder: run this where one is, because the new node copies it")


def _fill(folder: Path, node: ClusterNode, template: NodeConfig, cluster: ClusterFile) -> JoiningNode:
    chance = random.SystemRandom()
    identity, disk = Identity.generate(chance), chance.randbytes(DISK_BYTES).hex()
    (folder / SEGMENTS).mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    durable.sync(folder)
    rotated = template.path("data") / KEYRING_FILE
    write_secret(folder / "identity", identity.text())
    write_secret(folder / "keyring", (rotated if rotated.exists() else template.path("keyring")).read_text())
    wrapping = template.path("data") / WRAPPING_FILE
    if wrapping.exists():
        write_secret(folder / WRAPPING_FILE, wrapping.read_text())
    durable.write_new(folder / DISK_FILE, disk + "\n")
    settings = {
        "cluster": template.text("cluster"),
        "id": node.id,
        "bind": node.endpoint,
        "http": node.http,
        "database": "none" if node.index_only else template.text("database"),
        "seal": template.text("seal"),
        "neighbours": [other.endpoint for other in cluster.nodes],
    }
    founding = {"nodes": template.nodes, "uris": template.uris, "disks": template.disks}
    copied = _copied_settings(template)
    journal: dict[str, object] = {"disk": disk, **copied.pop("journal", {})}
    if template.texts("journal.index_only"):
        journal |= {"index_only": [*template.texts("journal.index_only")], "copies": template.number("journal.copies")}
    tables: dict[str, Mapping[str, object]] = {"clients": template.clients, "journal": journal, **copied}
    tables |= {name: {str(node): value for node, value in table.items()} for name, table in founding.items()}
    durable.write_new(folder / NODE_FILE, to_toml(settings, tables))
    return JoiningNode(msgspec.structs.replace(node, key=to_text(identity.key)), folder, disk)


def _copied_settings(template: NodeConfig) -> dict[str, dict[str, object]]:
    """Return, by table, the settings that differ from the defaults and should be equal on all nodes.

    These are retention, file sizes, limits and time-outs.
    """
    tables: dict[str, dict[str, object]] = {}
    for name, value in template.values.items():
        table, _, setting = name.partition(".")
        if template.origins[name] != "default" and (table in _COPIED_SETTINGS or name in _COPIED_SETTINGS):
            tables.setdefault(table, {})[setting] = value
    return tables


def list_node(directory: Path, node: ClusterNode) -> None:
    """Add the node to the clients' file, so that clients can connect to it."""
    _rewrite(directory, lambda nodes: [*(other for other in nodes if other.id != node.id), node])


def unlist_node(directory: Path, number: int) -> None:
    """Remove the node from the clients' file."""
    _rewrite(directory, lambda nodes: [node for node in nodes if node.id != number])


def _rewrite(directory: Path, change: Callable[[Sequence[ClusterNode]], list[ClusterNode]]) -> None:
    cluster = load_cluster(directory)
    nodes = change(cluster.nodes)
    identity = os.path.relpath(cluster.identity, directory.resolve())
    top = {"cluster": cluster.cluster, "seal": cluster.seal, "identity": identity}
    listed = [{name: value for name, value in msgspec.structs.asdict(node).items() if value} for node in nodes]
    durable.put(directory / CLUSTER_FILE, cluster_text(top, listed))
