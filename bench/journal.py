"""Measures the journal's write throughput and latency, and compares them with NATS JetStream and etcd.

Prints what is compared, a table, the ratios, and one line of JSON with the machine and the commit. Other processes may
use the machine, so rounds of all systems alternate, and only the ratios of their medians count. See `bench/README.md`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from support.journal_clusters import Absent, ChaplainCluster, Cluster, EtcdCluster, NatsCluster
from support.journal_programs import Round, serve

COMPARED = """\
Three nodes of each system as processes on loopback and on one disk, all up all the time; their clients take turns.
Every acknowledgement follows a sync at a majority: chaplain and etcd always, NATS with three replicas and
`sync_interval: always`. chaplain signs (Ed25519) and seals (AES-256-GCM) everything, executes and chains;
the others do nothing of that.
rate       messages acknowledged / seconds from the first write to the last acknowledgement; median of the rounds
per CPU s  the same messages / processor seconds of all three nodes and the client
p50        one message in flight: median from write to acknowledgement
"""


class Contest(NamedTuple):
    system: str
    way: str
    about: str


CONTESTS = (
    Contest("chaplain", "writer", "writer()"),
    Contest("nats", "writer", "raw socket, 4096 in flight"),
    Contest("chaplain", "many", "write_many(100)"),
    Contest("nats", "many", "raw socket, atomic batches of 100"),
    Contest("chaplain", "single", "AsyncClient.write, 4000 in flight"),
    Contest("nats", "library", "nats-py, 1000 in flight"),
    Contest("etcd", "writer", "puts, 1000 in flight"),
    Contest("etcd", "many", "transactions of 100"),
    Contest("chaplain", "one", "write, one in flight"),
    Contest("nats", "one", "raw socket, one in flight"),
    Contest("etcd", "one", "put, one in flight"),
)


class Ratio(NamedTuple):
    about: str
    ours: str
    theirs: str
    figure: str
    wanted: str


RATIOS = (
    Ratio("writer() / NATS", "chaplain writer", "nats writer", "rate", "at least 3, aim 5"),
    Ratio("write_many(100) / NATS, single messages", "chaplain many", "nats writer", "rate", "at least 5, aim 10"),
    Ratio("write_many(100) / NATS, atomic batches", "chaplain many", "nats many", "rate", ""),
    Ratio("AsyncClient.write / NATS", "chaplain single", "nats writer", "rate", "at least 0.6"),
    Ratio("AsyncClient.write / nats-py", "chaplain single", "nats library", "rate", "at least 10"),
    Ratio("writer() / NATS, per CPU s", "chaplain writer", "nats writer", "per_cpu_s", "at least 2.5, aim 5"),
    Ratio("one in flight, p50 / NATS", "chaplain one", "nats one", "p50_ms", "at most 1.2, aim 0.8"),
    Ratio("writer() / etcd puts", "chaplain writer", "etcd writer", "rate", ""),
    Ratio("write_many(100) / etcd transactions", "chaplain many", "etcd many", "rate", ""),
    Ratio("one in flight, p50 / etcd", "chaplain one", "etcd one", "p50_ms", ""),
)


class Runner:
    """One system, and its client in a separate process."""

    def __init__(self, cluster: Cluster, profile: str) -> None:
        self._cluster = cluster
        try:
            cluster.start()
        except BaseException:
            cluster.stop()
            raise
        context = mp.get_context("spawn")
        self._control, theirs = context.Pipe()
        args = (cluster.name, cluster.address, cluster.pids, theirs, profile)
        self._process = context.Process(target=serve, args=args, daemon=True)
        self._process.start()
        theirs.close()

    def round(self, way: str, size_bytes: int, seconds: float) -> Round:
        self._cluster.check()
        self._control.send(("round", way, size_bytes, seconds))
        try:
            outcome: Round = self._control.recv()
        except EOFError:
            raise SystemExit(f"{self._cluster.name}: its client ended, and said why above") from None
        return outcome

    def stop(self) -> None:
        if self._process.is_alive():
            self._control.send(("stop",))
            self._process.join(15)
        if self._process.is_alive():
            self._process.kill()
        self._cluster.stop()


def figures(rounds: list[Round]) -> dict[str, float]:
    return {
        "rate": round(statistics.median(each.messages / each.seconds for each in rounds)),
        "per_cpu_s": round(statistics.median(each.messages / each.cpu_s for each in rounds)),
        "p50_ms": round(statistics.median(each.p50_ms for each in rounds), 3),
        "messages": sum(each.messages for each in rounds),
    }


def show(size_bytes: int, found: dict[str, dict[str, float]], rounds: dict[str, list[Round]]) -> None:
    print(f"\n{size_bytes} bytes\n{'system':<9} {'way':<34} {'rate':>10} {'per CPU s':>10} {'p50 ms':>7}  each round")
    for contest in CONTESTS:
        name = f"{contest.system} {contest.way}"
        if name in found:
            each = found[name]
            p50 = f"{each['p50_ms']:.3f}" if each["p50_ms"] else ""
            rates = " ".join(f"{one.messages / one.seconds:.0f}" for one in rounds[name])
            about = f"{contest.system:<9} {contest.about:<34}"
            print(f"{about} {each['rate']:>10,.0f} {each['per_cpu_s']:>10,.0f} {p50:>7}  {rates}")


def ratios_of(found: dict[str, dict[str, float]]) -> dict[str, float]:
    ratios: dict[str, float] = {}
    for ratio in RATIOS:
        if ratio.ours in found and found.get(ratio.theirs, {}).get(ratio.figure):
            ratios[ratio.about] = round(found[ratio.ours][ratio.figure] / found[ratio.theirs][ratio.figure], 2)
            print(f"{ratio.about:<42} {ratios[ratio.about]:>7.2f}  {ratio.wanted}")
    return ratios


def machine() -> dict[str, Any]:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(each, 1) for each in os.getloadavg()],
    }


def commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def start(runners: dict[str, Runner], directory: Path, profile: str, wanted: list[str]) -> None:
    clusters: dict[str, Cluster] = {
        "chaplain": ChaplainCluster(directory / "chaplain", profile),
        "nats": NatsCluster(directory / "nats"),
        "etcd": EtcdCluster(directory / "etcd"),
    }
    for name in wanted:
        try:
            runners[name] = Runner(clusters[name], profile if name == "chaplain" else "")
        except Absent as absent:
            print(f"without {name}: {absent}")


def compete(runners: dict[str, Runner], options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    contests = [each for each in CONTESTS if each.system in runners and each.way in (options.ways or [each.way])]
    for size_bytes in options.sizes:
        rounds: dict[str, list[Round]] = {f"{each.system} {each.way}": [] for each in contests}
        for _ in range(options.rounds):
            for each in contests:
                outcome = runners[each.system].round(each.way, size_bytes, options.seconds)
                rounds[f"{each.system} {each.way}"].append(outcome)
        found = {name: figures(each) for name, each in rounds.items()}
        show(size_bytes, found, rounds)
        results[str(size_bytes)] = {"figures": found, "ratios": ratios_of(found)}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of writing in each round")
    parser.add_argument("--rounds", type=int, default=3, help="of each system, way and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024], help="bytes of a message")
    parser.add_argument("--systems", nargs="+", default=["chaplain", "nats", "etcd"], help="which to run")
    parser.add_argument("--ways", nargs="+", default=[], help="only these: writer many single library one")
    parser.add_argument(
        "--profile", default="", help="write the profiles of chaplain's processes to this path and more"
    )
    parser.add_argument("--out", type=Path, help="write the JSON to this file, too")
    options = parser.parse_args()
    print(COMPARED)
    results: dict[str, Any] = {"commit": commit(), "machine": machine()}
    with tempfile.TemporaryDirectory(prefix="chaplain-bench-") as directory:
        runners: dict[str, Runner] = {}
        try:
            start(runners, Path(directory), options.profile, options.systems)
            results["sizes"] = compete(runners, options)
        finally:
            for runner in runners.values():
                runner.stop()
    results["load_after"] = [round(each, 1) for each in os.getloadavg()]
    print(json.dumps(results))
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
