"""Statements of all kinds, and what executors say they came to: for a short test and a long campaign alike."""

from __future__ import annotations

import random
from collections.abc import Iterator

from chaplain import Client
from tests.integration.journal.support.scenes import status
from tests.support.process_cluster import Cluster, until

LONG = "t" * 40
TABLES = (
    "create table orders(id integer primary key, who, what)",
    "create table stock(what primary key, count) without rowid",
    f"create table {LONG}(a)",
)
_KINDS = {
    "insert into orders(who, what) values (?, ?)": 6,
    "insert or replace into stock(what, count) values (?, abs(random()) % 100)": 2,
    "update orders set what = ? where id = ?": 2,
    "delete from orders where id = ?": 1,
    f"insert into {LONG} values (?)": 1,
    "insert into orders(id) values (1)": 1,
}


def requests(chance: random.Random, count: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Inserts, updates and deletes, with a failure now and then."""
    for sql in chance.choices([*_KINDS], [*_KINDS.values()], k=count):
        yield sql, tuple(chance.randrange(30_000) for _ in range(sql.count("?")))


def execute(cluster: Cluster, statements: int, seed: int) -> None:
    with Client.connect(cluster.directory, timeout=120) as client:
        for table in TABLES:
            client.sql("main").execute(table)
        with client.sql("main").writer() as writer:
            for sql, values in requests(random.Random(seed), statements):
                writer.execute(sql, values)


def one_fingerprint(cluster: Cluster, database: str = "main") -> str:
    """The one that all executors have, when they have nothing left to do."""

    def told() -> set[str]:
        found = [status(node).get("databases", {}).get(database, {}) for node in cluster]
        return {one.get("fingerprint", "") if one.get("state") == "idle" else "" for one in found}

    until(lambda: len(told()) == 1 and told() != {""}, "all databases are the same", limit_s=120)
    return told().pop()
