"""A node inside of a program's life: `chaplain.open` starts one, and it stops with the program.

For scripts, notebooks and tests. The directory is that of an ordinary cluster: `chaplain cluster up` may start the same
one later, and `chaplain member add` may add nodes to it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from chaplain.client.connect.options import ConnectOptions, prepare
from chaplain.client.sync import Client
from chaplain.client.types import validation
from chaplain.config import CLUSTER_FILE, load_cluster
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.cluster.local import START_S, bring_up, stop_nodes

LONE_ELECTION_S = 0.05
"""A node alone waits for no master, so that it serves at once. With others it keeps its own setting."""


class EmbeddedClient(Client):
    """A `Client` of a node that this program started. Closing it stops the node."""

    def __init__(self, options: ConnectOptions, folders: Sequence[Path]) -> None:
        """Use `chaplain.open`."""
        self._folders = list(folders)
        self._owner = os.getpid()
        super().__init__(options)

    def close(self) -> None:
        """Close the connection, and stop the node if this program started it."""
        super().close()
        if os.getpid() == self._owner:  # not in a fork of the program
            folders, self._folders = self._folders, []
            stop_nodes(folders)


def open(directory: str | Path, *, timeout: float = 10.0) -> EmbeddedClient:  # noqa: A001  part of the public API
    """Start a node in this directory and return a client of it, which stops the node when it is closed.

    A directory that does not exist is created, with a cluster of one node that has SQL on SQLite. The node also stops
    when this program ends or is killed. If the directory's node already runs, the client connects to it and does not
    stop it. `timeout` is the default time limit of calls in seconds.

    Raises `ConfigError` if the directory contains something else, and `ClusterFailed` if the node does not start.
    """
    validation.timeout_s(timeout)
    place = validation.path(directory)
    folders = start_nodes(place)
    try:
        options = prepare(place, endpoints=None, identity=None, node_keys=None, name=None, node=None, timeout_s=timeout)
        return EmbeddedClient(options, folders)
    except BaseException:
        stop_nodes(folders)
        raise


def start_nodes(directory: Path, nodes: int = 1, database: str = "sqlite") -> list[Path]:
    """Start the nodes of this directory that are down, and return their folders. Create the cluster if there is none.

    The nodes stop when this process ends.
    """
    created = not (directory / CLUSTER_FILE).exists()
    if created:
        make_cluster(directory, nodes, database, None)
    directory = directory.resolve()
    options = ["--parent", str(os.getpid())]
    if len(load_cluster(directory).nodes) == 1:
        options += ["--set", f"journal.election_seconds={LONE_ELECTION_S}"]
    started = bring_up(directory, lambda line: None, START_S, created=created, options=options)
    return [directory / f"node-{number}" for number in started]
