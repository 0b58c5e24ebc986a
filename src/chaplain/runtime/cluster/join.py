"""Makes the directory of a node that joins a cluster, and writes it into, or out of, the file that clients read.

What all nodes share (founding, ring, wrapping key, bounds and times) is taken from the folder of a node that is there;
what is its own (identity, disk id, address) is new; who belongs to the cluster now (roster) is as the cluster tells it.
The folder can be carried to another machine; it holds the cluster's secrets.
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

_ALIKE = (
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
"""Settings, and tables of settings, that a new node takes over from the node it is added beside."""


class JoiningNode(Frozen, frozen=True):
    """A node's folder that was made, and what the cluster has to know of it."""

    node: ClusterNode
    folder: Path
    disk: str


def make_folder(
    directory: Path,
    number: int,
    endpoint: str,
    http: str,
    roster: LastKnownMembers | None = None,
    *,
    holds_data: bool = True,
) -> JoiningNode:
    """Write the folder of a new node, modelled on one of the cluster's that is here.

    It knows those of the roster by their keys. One that shall hold no data, where serializers are index-only, has no
    database, either.
    """
    cluster = load_cluster(directory)
    model = _model(directory, cluster)
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
        bare = not holds_data and bool(model.texts("journal.index_only"))
        made = _fill(folder, ClusterNode(number, endpoint, "", http, bare), model, cluster)
        if roster is not None:
            durable.write_new(folder / LAST_KNOWN_MEMBERS_FILE, roster.text())
        # A node elsewhere is asked as clients ask it, not over its monitoring.
        return made if local else msgspec.structs.replace(made, node=msgspec.structs.replace(made.node, http=""))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _model(directory: Path, cluster: ClusterFile) -> NodeConfig:
    for node in cluster.nodes:
        file = directory / f"node-{node.id}" / NODE_FILE
        if file.is_file():
            return load_node(file, {})
    raise ConfigError(f"no node's folder is in {directory}: run this where one is, for the newcomer needs its secrets")


def _fill(folder: Path, node: ClusterNode, model: NodeConfig, cluster: ClusterFile) -> JoiningNode:
    chance = random.SystemRandom()
    identity, disk = Identity.generate(chance), chance.randbytes(DISK_BYTES).hex()
    (folder / SEGMENTS).mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    durable.sync(folder)
    rotated = model.path("data") / KEYRING_FILE
    write_secret(folder / "identity", identity.text())
    write_secret(folder / "keyring", (rotated if rotated.exists() else model.path("keyring")).read_text())
    wrapping = model.path("data") / WRAPPING_FILE
    if wrapping.exists():
        write_secret(folder / WRAPPING_FILE, wrapping.read_text())
    durable.write_new(folder / DISK_FILE, disk + "\n")
    settings = {
        "cluster": model.text("cluster"),
        "id": node.id,
        "bind": node.endpoint,
        "http": node.http,
        "database": "none" if node.index_only else model.text("database"),
        "seal": model.text("seal"),
        "neighbours": [other.endpoint for other in cluster.nodes],
    }
    founding = {"nodes": model.nodes, "uris": model.uris, "disks": model.disks}
    taken = _taken_over(model)
    journal: dict[str, object] = {"disk": disk, **taken.pop("journal", {})}
    if model.texts("journal.index_only"):
        journal |= {"index_only": [*model.texts("journal.index_only")], "copies": model.number("journal.copies")}
    tables: dict[str, Mapping[str, object]] = {"clients": model.clients, "journal": journal, **taken}
    tables |= {name: {str(node): value for node, value in table.items()} for name, table in founding.items()}
    durable.write_new(folder / NODE_FILE, to_toml(settings, tables))
    return JoiningNode(msgspec.structs.replace(node, key=to_text(identity.key)), folder, disk)


def _taken_over(model: NodeConfig) -> dict[str, dict[str, object]]:
    """What somebody set in the model's file and all nodes should have alike, by table: how much is kept, how large
    files are, how long is waited.
    """
    tables: dict[str, dict[str, object]] = {}
    for name, value in model.values.items():
        table, _, setting = name.partition(".")
        if model.origins[name] != "default" and (table in _ALIKE or name in _ALIKE):
            tables.setdefault(table, {})[setting] = value
    return tables


def list_node(directory: Path, node: ClusterNode) -> None:
    """Clients may reach the node from now on."""
    _rewrite(directory, lambda nodes: [*(one for one in nodes if one.id != node.id), node])


def unlist_node(directory: Path, number: int) -> None:
    _rewrite(directory, lambda nodes: [one for one in nodes if one.id != number])


def _rewrite(directory: Path, change: Callable[[Sequence[ClusterNode]], list[ClusterNode]]) -> None:
    cluster = load_cluster(directory)
    nodes = change(cluster.nodes)
    identity = os.path.relpath(cluster.identity, directory.resolve())
    top = {"cluster": cluster.cluster, "seal": cluster.seal, "identity": identity}
    listed = [{name: value for name, value in msgspec.structs.asdict(node).items() if value} for node in nodes]
    durable.put(directory / CLUSTER_FILE, cluster_text(top, listed))
