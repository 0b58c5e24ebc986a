"""The journal step: writes while the master is killed, then reads every node and compares."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

from chaplain.client.sync import Client
from chaplain.demo.findings import WAIT_S, Findings, Progress, wait
from chaplain.runtime.cluster.local import bring_up, pid_of
from chaplain.runtime.cluster.status import describe

MESSAGES = 200_000
STREAM = "demo"
KEYS = 1000
PROBES = 200
"""Single writes before and after the bulk load, enough for a median latency without other load."""
FAILOVER_S = 5.0
"""Promised time from the kill to the next acknowledged write."""


def journal_survives(cluster: Path, findings: Findings, progress: Progress) -> None:
    progress(f"writing {MESSAGES:,} messages to the journal; its master is killed with -9 half-way")
    acknowledged, seconds = _write_through_a_kill(cluster, findings, progress)
    findings.add("journal: written", f"{MESSAGES:,}", f"{acknowledged:,} acknowledged", acknowledged == MESSAGES)
    findings.add("journal: rate with the kill in it", "reported", f"{MESSAGES / seconds:,.0f} a second", True)
    bring_up(cluster, progress)
    for node in (1, 2, 3):
        _compare(cluster, node, findings)
    wait("all nodes to have executed the same", lambda: _executors_agree(cluster))
    findings.add("journal: executors agree", "one fingerprint", "one fingerprint", True)


def _write_through_a_kill(cluster: Path, findings: Findings, progress: Progress) -> tuple[int, float]:
    with Client.connect(str(cluster)) as client, Client.connect(str(cluster)) as other:
        probe = _Probe(other)
        probe.start()
        try:
            probe.wait_for_more()
            began = time.perf_counter()
            with client.journal(STREAM).writer() as writer:
                for number in range(MESSAGES):
                    if number == MESSAGES // 2:
                        writer.flush()
                        probe.killed_s = _kill_master(cluster, progress)
                    elif number % (MESSAGES // 5) == 0:
                        progress(f"{number:,} of {MESSAGES:,} written")
                    writer.write(b"%d" % number, key=b"%d" % (number % KEYS))
                writer.flush()
                acknowledged = writer.count
            seconds = time.perf_counter() - began
            probe.wait_for_more()
        finally:
            probe.end()
    findings.at_most("journal: kill -9 of the master to the next acknowledged write", FAILOVER_S, probe.gap_s)
    times_ms = sorted(after_ms for _, after_ms in probe.latencies)
    findings.add("journal: one write at a time, median", "reported", f"{times_ms[len(times_ms) // 2]:.1f} ms", True)
    findings.latencies = probe.latencies
    return acknowledged, seconds


def _kill_master(cluster: Path, progress: Progress) -> float:
    """Kill the master; return the monotonic time of the kill."""
    master = describe(cluster)["master"]
    pid = pid_of(cluster / f"node-{master}")
    assert pid is not None
    progress(f"kill -9 of node {master}, the master (process {pid})")
    os.kill(pid, signal.SIGKILL)
    return time.perf_counter()


class _Probe(threading.Thread):
    """Writes single messages while the writer runs, and records the latency of each."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._stopped = threading.Event()
        self.killed_s: float | None = None
        self.gap_s = float("inf")
        self.latencies: list[tuple[float, float]] = []

    def run(self) -> None:
        while not self._stopped.is_set() or (self.killed_s is not None and self.gap_s == float("inf")):
            began = time.perf_counter()
            self._client.journal("probe").write(b"%d" % len(self.latencies))
            now = time.perf_counter()
            if self.killed_s is not None and began >= self.killed_s:
                self.gap_s = min(self.gap_s, now - self.killed_s)
            self.latencies.append((time.time(), (now - began) * 1000))

    def wait_for_more(self) -> None:
        """Wait for `PROBES` further writes, so that the latencies include some without other load."""
        goal = len(self.latencies) + PROBES
        wait(f"{PROBES} writes, one at a time", lambda: len(self.latencies) >= goal or not self.is_alive())

    def end(self) -> None:
        self._stopped.set()
        self.join(WAIT_S)


def _compare(cluster: Path, node: int, findings: Findings) -> None:
    with Client.connect(str(cluster), node=node) as client:
        wait(f"node {node} to have caught up", lambda: _head(client) >= MESSAGES)
        values = [int(message.value) for message in client.journal(STREAM).read()]
    lost, doubled = MESSAGES - len(set(values)), len(values) - len(set(values))
    disordered = sum(later < earlier for earlier, later in pairwise(values))
    found = f"lost {lost}, duplicated {doubled}, out of order {disordered}"
    findings.equal(f"journal: as read from node {node}", "lost 0, duplicated 0, out of order 0", found)


def _head(client: Client) -> int:
    streams = client.status().get("streams", {})
    return int(streams.get(STREAM, {}).get("head", 0))


def _executors_agree(cluster: Path) -> bool:
    fingerprints = describe(cluster)["fingerprints"]
    assert isinstance(fingerprints, dict)
    return len(fingerprints) == 3 and len(set(fingerprints.values())) == 1
