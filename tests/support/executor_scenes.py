"""Executors on real nodes, killed while statements are on their way, for a short test and a long campaign alike."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from chaplain import Client
from chaplain.errors import ChaplainError, Unknown
from chaplain.runtime.cluster.status import describe
from tests.support.process_cluster import MOMENT_S, Cluster, Node, until

STATEMENTS_BETWEEN = 5
TABLES = ("create table hits(writer, n, at)", "create table sums(writer integer primary key, total)")


def fingerprints(cluster: Cluster) -> list[object]:
    told = describe(cluster.directory)["fingerprints"]
    assert isinstance(told, dict)
    return list(told.values())


class Load(threading.Thread):
    """Executes one statement after the other, each exactly once, whatever happens to the nodes."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._number = number
        self._ending = threading.Event()
        self.done = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Client.connect(self._cluster.directory, timeout=60) as client:
                while not self._ending.is_set():
                    self._one(client)
                    self.done += 1
        except BaseException as error:
            self.error = error

    def _one(self, client: Client) -> None:
        words = ("insert into hits(writer, n, at) values (?, ?, random())", [self._number, self.done])
        request = None
        while True:
            try:
                if self.done % 3:
                    client.sql("main").execute(*words, id=request)
                else:
                    items = [words, ("update sums set total = total + 1 where writer = ?", [self._number])]
                    client.sql("main").transaction(items, id=request)
                return
            except Unknown as unknown:
                request = unknown.id or request
            except ChaplainError:
                if request is None:
                    raise
                return  # it is written; its result cannot be had here

    def end(self) -> int:
        self._ending.set()
        self.join(120)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.done


def kill_executors(
    cluster: Cluster,
    *,
    kills: int,
    seed: int,
    writers: int = 3,
    tables: Sequence[str] = TABLES,
    blow: Callable[[Node], None] | None = None,
) -> dict[str, int]:
    """Kill one node after the other at random moments; every statement is applied once, on every node alike.

    `blow` ends and starts a node, and perhaps more than that.
    """
    chance = random.Random(seed)
    with Client.connect(cluster.directory, timeout=60) as client:
        for table in tables:
            client.sql("main").execute(table)
        for number in range(writers):
            client.sql("main").execute("insert into sums values (?, 0)", [number])
    loads = [Load(cluster, number) for number in range(writers)]
    for load in loads:
        load.start()
    for _ in range(kills):
        _kill_one(cluster, loads, chance, blow or _blow)
    done = [load.end() for load in loads]
    _judge(cluster, done)
    return {"kills": kills, "statements acknowledged": sum(done)}


def _blow(victim: Node) -> None:
    victim.kill()
    victim.start()


def _kill_one(cluster: Cluster, loads: list[Load], chance: random.Random, blow: Callable[[Node], None]) -> None:
    before = sum(load.done for load in loads)
    until(lambda: _moved(loads, before), "statements are executed", limit_s=120)
    end_s = time.monotonic() + chance.random() * 0.05
    until(lambda: time.monotonic() >= end_s, "the moment has come", poll_s=MOMENT_S)
    victim = chance.choice(list(cluster))
    blow(victim)
    until(victim.ready, "the killed serves again")


def _moved(loads: list[Load], before: int) -> bool:
    for load in loads:
        if load.error is not None:
            raise load.error
    return sum(load.done for load in loads) >= before + STATEMENTS_BETWEEN


def _judge(cluster: Cluster, done: list[int]) -> None:
    until(lambda: len(fingerprints(cluster)) == 3 and len({*fingerprints(cluster)}) == 1, "all executors are equal")
    expected = [(writer, n) for writer, count in enumerate(done) for n in range(count)]
    for node in cluster:
        with Client.connect(cluster.directory, node=node.number, timeout=60) as client:
            rows = client.sql("main").query("select writer, n from hits order by writer, n")
            assert [(row["writer"], row["n"]) for row in rows] == expected, f"node {node.number}: not each once"
            sums = client.sql("main").query("select total from sums order by writer")
            assert [row["total"] for row in sums] == [len(range(0, count, 3)) for count in done]
