"""Blows that real clusters are dealt under load, for short tests and long campaigns alike."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path

from chaplain.runtime.cluster.probe import get_status
from tests.integration.journal.support.history import Attempt, Writer, gaps, judge, judge_chain, read_all, read_chain
from tests.support.process_cluster import Cluster, Node, founded, until

WRITERS = 4
ACKED_AFTER = 30
"""Acknowledgements of new writes that must come after a blow before the next one."""


def status(node: Node) -> dict:
    return dict(get_status(node.http) or {}) if node.process is not None else {}


def master_of(cluster: Cluster) -> Node | None:
    return next((node for node in cluster if status(node).get("master")), None)


def find_master(cluster: Cluster) -> Node:
    until(lambda: master_of(cluster) is not None, "there is a master")
    found = master_of(cluster)
    return found if found is not None else find_master(cluster)


def wait_until_same(cluster: Cluster) -> None:
    """One prefix, one chain, one state on every node, and all of them sound."""

    def same() -> bool:
        seen = [status(node) for node in cluster]
        facts = {(one.get("agreed"), one.get("chain"), one.get("fingerprint")) for one in seen}
        return len(facts) == 1 and all(one.get("standing") == "sound" for one in seen) and None not in facts.pop()

    until(same, "every node has the same chain and state")


@contextlib.contextmanager
def three(directory: Path, settings: str = "", change: Callable[[Path], None] | None = None) -> Iterator[Cluster]:
    with founded(directory, 3, settings=settings, change=change) as cluster:
        cluster.start()
        cluster.wait_until_whole()
        find_master(cluster)
        yield cluster


class Load:
    """Writers at work; ended and judged by `finish`."""

    def __init__(self, cluster: Cluster, writers: int = WRITERS, timeout_s: float = 10.0) -> None:
        self.cluster = cluster
        self.kills_s: list[float] = []
        self.writers = [Writer(cluster.directory, number, timeout_s) for number in range(writers)]
        for writer in self.writers:
            writer.start()
        self.await_progress()

    def histories(self) -> list[list[Attempt]]:
        return [list(writer.attempts) for writer in self.writers]

    def acked_since(self, since_s: float) -> int:
        recent = [takewhile(lambda one: one.invoked_s >= since_s, reversed(h)) for h in self.histories()]
        return sum(one.offset is not None for one in chain.from_iterable(recent))

    def await_progress(self, count: int = ACKED_AFTER) -> None:
        since_s = time.monotonic()
        until(lambda: self.acked_since(since_s) >= count, f"{count} new writes are acknowledged")

    def blow(self) -> None:
        self.kills_s.append(time.monotonic())

    def finish(self) -> tuple[dict[str, int], list[float]]:
        histories = [writer.end() for writer in self.writers]
        wait_until_same(self.cluster)
        readings = {node.number: read_all(self.cluster.directory, node.number) for node in self.cluster}
        counts = judge(histories, readings)
        chains = {node.number: read_chain(node.folder / "segments") for node in self.cluster}
        return {**counts, "hashes": judge_chain(histories, chains)}, gaps(histories, self.kills_s)


def kill_and_restart(load: Load, victims: Sequence[Node]) -> None:
    load.blow()
    for node in victims:
        node.signal(signal.SIGKILL)
    for node in victims:
        node.kill()
    if len(victims) == 1:
        load.await_progress()  # two of three go on alone
    for node in victims:
        node.start()
    until(lambda: all(node.ready() for node in victims), "the killed serve again")
    load.await_progress()
    wait_until_sound(load.cluster)


def wait_until_sound(cluster: Cluster) -> None:
    until(lambda: all(status(node).get("standing") == "sound" for node in cluster), "every node is sound")


def pause_master(load: Load, seconds: float) -> None:
    master = find_master(load.cluster)
    load.blow()
    master.signal(signal.SIGSTOP)
    try:
        end_s = time.monotonic() + seconds
        load.await_progress()
        until(lambda: time.monotonic() >= end_s, "the pause is over", limit_s=seconds + 60)
    finally:
        master.signal(signal.SIGCONT)
    load.await_progress()


def batter(cluster: Cluster, *, masters: int, anyone: int, everybody: int, pauses: int, seed: int) -> tuple[dict, list]:
    """Kill and pause under load; what clients saw must hold, and all nodes end the same."""
    chance = random.Random(seed)
    load = Load(cluster)
    blows: list[Callable[[], None]] = [
        *[lambda: kill_and_restart(load, [find_master(cluster)])] * masters,
        *[lambda: kill_and_restart(load, [chance.choice(list(cluster))])] * anyone,
        *[lambda: kill_and_restart(load, list(cluster))] * everybody,
        *[lambda: pause_master(load, 5.0)] * pauses,
    ]
    chance.shuffle(blows)
    for deal in blows:
        deal()
    return load.finish()
