"""Measures how fast three nodes number events, compared with PySyncObj in memory; both are called in process.

Prints what is compared, a table, and one line of JSON. Other processes may use the machine, so rounds of all systems
alternate, and only the ratio of their medians counts. See `bench/README.md`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from mesh import free_ports
from support.sequence_programs import (
    PATIENCE_S,
    Result,
    run_node,
    run_pysyncobj_batched,
    run_pysyncobj_quick,
    run_pysyncobj_single,
)

COMPARED = """\
Three processes on loopback. A program in the process of a node makes one call for each event, with a callback that gets
its number once a majority holds it; at most {window} calls are open, or one.
chaplain   whole nodes, every command sealed (AES-256-GCM), events hash-linked and kept for readers
pysyncobj  a replicated method that counts, no journal file, ticked by the program's own loop: batched, as it is by
           default (every 100 ms), quick (every 10 ms), single (appendEntriesUseBatch=False); its best counts
rate       events with a number / seconds from the first call to the last callback, all publishers; median of the rounds
latency    median of one open call at a time, at one publisher; once at each node, best node
"""
NODES = 3
WINDOW = 20_000
PEERS: dict[str, Callable[..., None]] = {
    "batched": run_pysyncobj_batched,
    "quick": run_pysyncobj_quick,
    "single": run_pysyncobj_single,
}


ANSWER_S = 15.0


def _waited(done: Callable[[], bool], seconds: float) -> bool:
    give_up_s = time.monotonic() + seconds
    while not done():
        if time.monotonic() > give_up_s:
            return False
        time.sleep(0.05)
    return True


class Measured(NamedTuple):
    rate: float
    per_cpu_s: float
    latency_ms: float


class Cluster:
    """Three processes that execute the same commands."""

    def __init__(self, run: Callable[..., None], profile: str = "") -> None:
        context = mp.get_context("spawn")
        ports = free_ports(NODES)
        self.unanswered = 0
        """Number of rounds in which some calls got no answer."""
        self._controls: list[Connection] = []
        self._processes = []
        for index in range(NODES):
            ours, theirs = context.Pipe()
            process = context.Process(target=run, args=(index, ports, theirs, profile), daemon=True)
            process.start()
            self._controls.append(ours)
            self._processes.append(process)
        self._until(lambda: all(self._ask(range(NODES), "ready")), "the nodes do not find each other")

    def _ask(self, whom: range | list[int], *order: object) -> list[Any]:
        for index in whom:
            self._controls[index].send(order)
        return [self._controls[index].recv() for index in whom]

    def _until(self, done: Callable[[], bool], complaint: str) -> None:
        if not _waited(done, PATIENCE_S):
            raise SystemExit(complaint)

    def round(self, publishers: list[int], size_bytes: int, seconds: float, window: int) -> Measured:
        everybody = range(NODES)
        self._ask([index for index in everybody if index not in publishers], "begin", 0, 0.0, 1)
        self._ask(publishers, "begin", size_bytes, seconds, window)
        time.sleep(seconds)
        found: list[Result] = []

        def done() -> bool:
            found[:] = self._ask(everybody, "result")
            return all(each.done for each in found)

        if not _waited(done, ANSWER_S):
            self.unanswered += 1
        acked = sum(each.acked for each in found)
        took_s = max(each.seconds for each in found)
        latencies = [each for result in found for each in result.latencies_s]
        latency_ms = statistics.median(latencies) * 1000 if latencies else 0.0
        return Measured(acked / took_s, acked / sum(each.cpu_s for each in found), latency_ms)

    def latency(self, size_bytes: int, seconds: float) -> float:
        return min(self.round([index], size_bytes, seconds, 1).latency_ms for index in range(NODES))

    def stop(self) -> None:
        for control in self._controls:
            with suppress(OSError):  # the process may have died
                control.send(("stop",))
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def measure(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return one figure per round, by measurement and system. In every round all systems run, one after the other."""
    systems = {"chaplain": run_node, **({} if options.alone else PEERS)}
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.rounds):
        for name, run in systems.items():
            cluster = Cluster(run, options.profile if name == "chaplain" else "")
            try:
                for what, figure in one_round(cluster, options):
                    found.setdefault(what, {}).setdefault(name, []).append(figure)
            except (EOFError, OSError):
                print(f"{name}: a process died; what is left of this round does not count")
                cluster.unanswered += 1
            cluster.stop()
            if cluster.unanswered:
                print(f"{name}: some calls were never answered in {cluster.unanswered} rounds")
                if name == "chaplain":
                    raise SystemExit(1)
    return found


def one_round(cluster: Cluster, options: argparse.Namespace) -> Iterator[tuple[str, float]]:
    for publishers in (1, NODES):
        each = cluster.round(list(range(publishers)), options.size, options.seconds, WINDOW)
        yield f"rate, {publishers} publishing", each.rate
        yield f"per CPU s, {publishers} publishing", each.per_cpu_s
    yield "latency ms", cluster.latency(options.size, options.seconds / 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of publishing in each round")
    parser.add_argument("--rounds", type=int, default=3, help="of each system")
    parser.add_argument("--size", type=int, default=100, help="bytes of an event")
    parser.add_argument("--alone", action="store_true", help="without PySyncObj")
    parser.add_argument("--profile", default="", help="write each node's profile to this path, with its number")
    options = parser.parse_args()
    print(COMPARED.format(window=WINDOW))
    load_before = os.getloadavg()
    found = measure(options)
    results: dict[str, Any] = {"load": [round(each, 1) for each in (*load_before, *os.getloadavg())]}
    for what, systems in found.items():
        medians = {name: statistics.median(figures) for name, figures in systems.items()}
        results[what] = {name: round(median, 3) for name, median in medians.items()}
        for name, figures in systems.items():
            print(f"{what:<26} {name:<9} {medians[name]:>12,.2f}   " + " ".join(f"{each:,.2f}" for each in figures))
        ours, theirs = medians.pop("chaplain"), list(medians.values())
        if theirs:
            best = min(theirs) if what.startswith("latency") else max(theirs)
            results[f"{what}, ratio"] = round(ours / best, 2)
            print(f"{what:<26} ratio     {ours / best:>12,.2f}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
