"""Creates the directory of a new cluster: keys, the settings of each node, and the file that clients read.

DIR/cluster.toml                 endpoints, node keys, the default client's identity file; never a secret
DIR/client.identity              the default client's key
DIR/node-1/node.toml, identity, keyring, wrapping, pid, log, segments/disk

A cluster on one machine runs from this directory. For a cluster on several machines, the operator copies each node's
folder to its machine.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaplain import durable
from chaplain.client.connect.identity_file import format_identity_file
from chaplain.config import CLUSTER_FILE, NODE_FILE, NODE_IDS_MAX, SEGMENTS
from chaplain.core import Frozen
from chaplain.errors import ConfigError
from chaplain.journal.consensus.hard_state import DISK_BYTES
from chaplain.journal.messages.membership import SERIALIZERS_MAX
from chaplain.link.auth.identity import Identity, to_text
from chaplain.link.auth.keyring import CLUSTER_KEY_BYTES, KeyRing
from chaplain.link.endpoint import split_endpoint
from chaplain.link.settings import GCM
from chaplain.runtime.layers.journal import DISK_FILE, WRAPPING_FILE, check_copies
from chaplain.runtime.secret_files import write_secret
from chaplain.runtime.supported_platform import check_platform

PORTS = range(12_000, 30_000)
"""The range that is searched for free ports. It lies below the kernel's ephemeral ports: an outgoing connection could
otherwise take a node's port before the node restarts."""
PORTS_VARIABLE = "CHAPLAIN_PORTS"
"""Environment variable with another range, as `first-last`. Concurrent test runs on one machine use disjoint ranges."""


class NodeSplit(Frozen, frozen=True):
    """The nodes of a new cluster that are index-only serializers: they order payloads but do not store them."""

    index_only: int = 0
    """The first `index_only` nodes are index-only serializers; 0 if all nodes serialize and store data."""
    copies: int = 0
    """Nodes that store a payload before it is ordered. 0 means two, or one if only one node stores data."""

    def check(self, nodes: int) -> None:
        if not 1 <= nodes <= NODE_IDS_MAX:
            raise ConfigError(f"a cluster has 1 to {NODE_IDS_MAX} nodes, not {nodes}")
        check_copies(self.index_only, nodes, self._copies(nodes))
        serializers = self.index_only or nodes
        if serializers > SERIALIZERS_MAX:
            remedy = "create fewer and add others with `chaplain member add`, or choose --index-only"
            raise ConfigError(f"at most {SERIALIZERS_MAX} nodes serialize, not {serializers}: {remedy}")

    def _copies(self, nodes: int) -> int:
        return self.copies or (min(2, nodes - self.index_only) if self.index_only else 0)

    def listed(self, number: int) -> dict[str, object]:
        """Return this node's entries for the clients' file."""
        return {"index_only": True} if number <= self.index_only else {}

    def table(self, nodes: int) -> dict[str, Mapping[str, object]]:
        """Return the tables for every node's file."""
        if not self.index_only:
            return {}
        serializers = [str(number) for number in range(1, self.index_only + 1)]
        return {"journal": {"index_only": serializers, "copies": self._copies(nodes)}}


def make_cluster(
    directory: Path,
    count: int,
    database: str,
    base_port: int | None,
    split: NodeSplit = NodeSplit(),  # noqa: B008 frozen
    *,
    seal: str = GCM,
) -> None:
    """Create the directory of a cluster on this machine."""
    check_platform()
    split.check(count)
    check_empty(directory)
    ports = free_ports(2 * count) if base_port is None else check_ports(base_port, 2 * count)
    endpoints = [f"tcp://127.0.0.1:{port}" for port in ports[:count]]
    _make(directory, endpoints, [f"127.0.0.1:{port}" for port in ports[count:]], database, split=split, seal=seal)


def make_distributed_cluster(
    directory: Path,
    endpoints: Sequence[str],
    database: str,
    http: str,
    split: NodeSplit = NodeSplit(),  # noqa: B008 frozen
    *,
    seal: str = GCM,
) -> None:
    """Create the directory of a cluster on several machines: a folder for each machine, and the clients' file.

    `http` is the address at which each node serves monitoring on its own machine.
    """
    split.check(len(endpoints))
    for endpoint in endpoints:
        split_endpoint(endpoint)
    check_http(http)
    if len({*endpoints}) < len(endpoints):
        raise ConfigError("two nodes cannot be reached at one endpoint; give each its own")
    check_empty(directory)
    _make(directory, endpoints, [http] * len(endpoints), database, local=False, split=split, seal=seal)


def check_http(http: str) -> None:
    """Check the address for monitoring: `host:port`. Port 0 means any free port; an empty text disables monitoring."""
    host, _, port = http.rpartition(":")
    if http and (not host or not port.isdecimal() or int(port) > 0xFFFF):
        raise ConfigError(f"http must be address:port, such as 127.0.0.1:7480, not {http!r}")


def check_empty(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty and holds no {CLUSTER_FILE}; choose another directory")


def _make(
    directory: Path,
    endpoints: Sequence[str],
    https: Sequence[str],
    database: str,
    *,
    split: NodeSplit,
    seal: str,
    local: bool = True,
) -> None:
    """Write the directory; delete everything again on failure.

    `cluster.toml` is written last: a directory without it is not a cluster.
    """
    made_directory = not directory.exists()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        _fill(directory.resolve(), endpoints, https, database, local=local, split=split, seal=seal)
    except BaseException:
        for inside in [directory] if made_directory else list(directory.iterdir()):
            shutil.rmtree(inside, ignore_errors=True)
        raise


def _fill(
    directory: Path,
    endpoints: Sequence[str],
    https: Sequence[str],
    database: str,
    *,
    local: bool,
    split: NodeSplit,
    seal: str,
) -> None:
    chance = random.SystemRandom()
    cluster = (
        f"{directory.name[:100]}-{chance.randbytes(4).hex()}".encode("ascii", "replace").decode().replace(" ", "-")
    )
    identities = [Identity.generate(chance) for _ in endpoints]
    client = Identity.generate(chance)
    ring = KeyRing(chance.randbytes(CLUSTER_KEY_BYTES)).text()
    keys = [to_text(identity.key) for identity in identities]
    disks = [chance.randbytes(DISK_BYTES).hex() for _ in endpoints]
    wrapping = KeyRing(chance.randbytes(CLUSTER_KEY_BYTES)).text()
    for number, identity in enumerate(identities, 1):
        folder = directory / f"node-{number}"
        (folder / SEGMENTS).mkdir(mode=0o700, parents=True)
        folder.chmod(0o700)
        durable.sync(folder)
        write_secret(folder / "identity", identity.text())
        write_secret(folder / "keyring", ring)
        write_secret(folder / WRAPPING_FILE, wrapping)
        durable.write_new(folder / DISK_FILE, disks[number - 1] + "\n")
        settings = {
            "cluster": cluster,
            "id": number,
            "bind": endpoints[number - 1],
            "http": https[number - 1],
            "database": database,
            "seal": seal,
            "neighbours": [endpoint for endpoint in endpoints if endpoint != endpoints[number - 1]],
        }
        nodes = {str(other): key for other, key in enumerate(keys, 1)}
        tables: dict[str, Mapping[str, object]] = {
            "clients": {"default": to_text(client.key)},
            "nodes": nodes,
            "uris": {str(other): endpoint for other, endpoint in enumerate(endpoints, 1)},
            "disks": {str(other): disk for other, disk in enumerate(disks, 1)},
            **split.table(len(endpoints)),
        }
        durable.write_new(folder / NODE_FILE, to_toml(settings, tables))
    identity_file = format_identity_file(client, cluster, seal, (identity.key for identity in identities))
    write_secret(directory / "client.identity", identity_file)
    top = {"cluster": cluster, "seal": seal, "identity": "client.identity"}
    listed = [
        {"id": number, "endpoint": endpoint, "key": key, **({"http": http} if local else {}), **split.listed(number)}
        for number, (endpoint, key, http) in enumerate(zip(endpoints, keys, https, strict=True), 1)
    ]
    durable.write_new(directory / CLUSTER_FILE, cluster_text(top, listed))


def cluster_text(top: Mapping[str, object], nodes: Sequence[Mapping[str, object]]) -> str:
    return to_toml(top, {}) + "".join(f"\n[[nodes]]\n{to_toml(node, {})}" for node in nodes)


def to_toml(values: Mapping[str, object], tables: Mapping[str, Mapping[str, object]]) -> str:
    """Write TOML. Supports only numbers, booleans, strings and lists of strings without control characters."""
    lines = [f"{name} = {_toml_value(value)}\n" for name, value in values.items()]
    for table, rows in tables.items():
        lines.append(f"\n[{table}]\n")
        lines.extend(f"{_toml_value(name)} = {_toml_value(value)}\n" for name, value in rows.items())
    return "".join(lines)


def _toml_value(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(part) for part in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def free_ports(count: int) -> list[int]:
    """Choose random ports of the range on which nothing listens now."""
    found: list[int] = []
    ports = _chosen_ports()
    for port in random.SystemRandom().sample(ports, len(ports)):
        if _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise ConfigError("no free ports were found; give --base-port")


def _chosen_ports() -> range:
    given = os.environ.get(PORTS_VARIABLE, "")
    if not given:
        return PORTS
    first, _, last = given.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) <= 0xFFFF):
        raise ConfigError(f"{PORTS_VARIABLE} must be two ports, such as 12000-12999, not {given!r}")
    return range(int(first), int(last) + 1)


def check_ports(base: int, count: int) -> list[int]:
    ports = list(range(base, base + count))
    if base < 1 or ports[-1] > 0xFFFF:
        raise ConfigError(f"--base-port {base} does not leave room for {count} ports; choose one below {65536 - count}")
    for port in ports:
        if not _is_free(port):
            raise ConfigError(f"port {port} is taken; choose another --base-port ({count} ports from it are used)")
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
