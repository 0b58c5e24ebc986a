"""Real nodes with PostgreSQL: a server for nodes 1 and 2, with a database each, and one that node 3 has for itself."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

from chaplain.config import NODE_FILE
from tests.integration.journal.support.scenes import find_master
from tests.support.executor_scenes import kill_executors
from tests.support.postgres_server import TestServer, a_server
from tests.support.process_cluster import Cluster, Node, founded, until

TABLES = (
    "create table hits(writer integer, n integer, at double precision, primary key (writer, n))",
    "create table sums(writer integer primary key, total integer)",
)
ALONE = 3
"""The node whose server is killed with it."""


class Postgres:
    """A cluster and the servers of its nodes."""

    def __init__(self, cluster: Cluster, servers: dict[int, TestServer]) -> None:
        self.cluster = cluster
        self.servers = servers
        self.server_kills = 0

    def blow(self, victim: Node) -> None:
        """Kill a node; if it has a server for itself, both at once, as a machine would end."""
        if victim.number == ALONE:
            victim.signal(signal.SIGSTOP)
            self.servers[ALONE].kill()
            self.server_kills += 1
        victim.kill()
        if victim.number == ALONE:
            self.servers[ALONE].start()
        victim.start()


@contextlib.contextmanager
def three_with_postgres(directory: Path) -> Iterator[Postgres]:
    with a_server(fsync=True) as shared, a_server(fsync=True) as alone:
        servers = {1: shared, 2: shared, ALONE: alone}

        def change(directory: Path) -> None:
            for number, server in servers.items():
                place = server.make(f"chaplain_{number}")
                file = directory / f"node-{number}" / NODE_FILE
                words = file.read_text().replace('database = "sqlite"', 'database = "postgres"')
                settings = f'host = "{place.host}"\npassword_file = "{place.password_file}"'
                file.write_text(f"{words}\n[postgres]\n{settings}\n")

        with founded(directory, 3, change=change) as cluster:
            cluster.start()
            cluster.wait_until_whole()
            find_master(cluster)
            yield Postgres(cluster, servers)


def kill_nodes_and_servers(directory: Path, *, kills: int, seed: int) -> dict[str, int]:
    """Every second time it is the node whose server goes with it."""
    with three_with_postgres(directory) as postgres:
        turns = itertools.count()

        def blow(victim: Node) -> None:
            node = victim if next(turns) % 2 else list(postgres.cluster)[ALONE - 1]
            postgres.blow(node)
            until(node.ready, "the killed serves again")

        done = kill_executors(postgres.cluster, kills=kills, seed=seed, writers=2, tables=TABLES, blow=blow)
    return {**done, "servers killed": postgres.server_kills}
