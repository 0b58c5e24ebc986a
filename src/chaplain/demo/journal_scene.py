"""The journal in the demo: written to while its master is killed, then read back from every node and compared."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

from chaplain.client.sync import Client
from chaplain.demo.findings import Findings
from chaplain.demo.scenes import PATIENCE_S, Tell, wait
from chaplain.runtime.local import bring_up, describe, pid_of

MESSAGES = 50_000
STREAM = "demo"
FAILOVER_S = 5.0


def journal_survives(cluster: Path, findings: Findings, tell: Tell) -> None:
    tell(f"writing {MESSAGES:,} messages to the journal; its master is killed with -9 half-way")
    acknowledged, seconds = _write_through_a_kill(cluster, findings, tell)
    findings.add("journal: written", f"{MESSAGES:,}", f"{acknowledged:,} acknowledged", acknowledged == MESSAGES)
    findings.add("journal: rate with the kill in it", "reported", f"{MESSAGES / seconds:,.0f} a second", True)
    bring_up(cluster, tell)
    for node in (1, 2, 3):
        _compare(cluster, node, findings)
    wait("all nodes to have executed the same", lambda: _same_everywhere(cluster))
    findings.add("journal: executors agree", "one fingerprint", "one fingerprint", True)


def _write_through_a_kill(cluster: Path, findings: Findings, tell: Tell) -> tuple[int, float]:
    gap = _Gap(cluster)
    with Client.connect(str(cluster)) as client, Client.connect(str(cluster)) as prober:
        began = time.perf_counter()
        with client.journal(STREAM).writer() as writer:
            for number in range(MESSAGES):
                if number == MESSAGES // 2:
                    writer.flush()
                    gap.kill_master(prober, tell)
                writer.write(b"%d" % number, key=b"%d" % (number % 1000))
            writer.flush()
            acknowledged = writer.count
        seconds = time.perf_counter() - began
        findings.at_most("journal: kill -9 of the master to the next acknowledged write", FAILOVER_S, gap.wait())
    return acknowledged, seconds


class _Gap:
    """Measures, beside the writer, how long nobody got an answer after the master died."""

    def __init__(self, cluster: Path) -> None:
        self._cluster = cluster
        self._seconds = float("inf")
        self._thread: threading.Thread | None = None

    def kill_master(self, prober: Client, tell: Tell) -> None:
        prober.journal("probe").write(b"before")
        master = describe(self._cluster)["master"]
        pid = pid_of(self._cluster / f"node-{master}")
        assert pid is not None
        tell(f"kill -9 of node {master}, the master (process {pid})")
        killed = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        self._thread = threading.Thread(target=self._probe, args=(prober, killed))
        self._thread.start()

    def _probe(self, prober: Client, killed: float) -> None:
        prober.journal("probe").write(b"after")
        self._seconds = time.perf_counter() - killed

    def wait(self) -> float:
        assert self._thread is not None
        self._thread.join(PATIENCE_S)
        return self._seconds


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


def _same_everywhere(cluster: Path) -> bool:
    fingerprints = describe(cluster)["fingerprints"]
    assert isinstance(fingerprints, dict)
    return len(fingerprints) == 3 and len(set(fingerprints.values())) == 1
