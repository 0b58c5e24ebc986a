"""How long a journal is without a master, and what a message costs after millions of others."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from chaplain import Client
from tests.integration.journal.support.scenes import Load, find_master, kill_and_restart, pause_master
from tests.support.process_cluster import Cluster

PAUSE_S = 4.0
MILLION = 1_000_000
VALUE = bytes(100)
_TICKS = os.sysconf("SC_CLK_TCK")


def failovers(cluster: Cluster, trials: int, *, killed: bool) -> list[float]:
    """Kill or stop the master under load, again and again: seconds to the next acknowledged write, each time."""
    load = Load(cluster)
    for _ in range(trials):
        if killed:
            kill_and_restart(load, [find_master(cluster)])
        else:
            pause_master(load, PAUSE_S)
        cluster.wait_until_whole()
    _, gaps = load.finish()
    assert len(gaps) == trials, f"{trials} blows, {len(gaps)} of them followed by a write"
    return gaps


def within(gaps: list[float], median_s: float, longest_s: float | None = None) -> None:
    median = statistics.median(gaps)
    assert median <= median_s, f"median {median:.3f} s, at most {median_s} is promised: {gaps}"
    assert longest_s is None or max(gaps) <= longest_s, f"{max(gaps):.3f} s, at most {longest_s} is promised"


class Cost(NamedTuple):
    cpu_us: float
    """Processor time of all nodes, per message."""
    rss_kib: int
    """Of the largest node."""


def costs(cluster: Cluster, messages: int, stream: str = "cost") -> list[Cost]:
    """Write messages of 100 bytes; what each million cost the nodes."""
    found: list[Cost] = []
    with Client.connect(cluster.directory, timeout=60) as client:
        for _ in range(messages // MILLION):
            before = _over(cluster, _cpu_s, sum)
            with client.journal(stream).writer() as writer:
                for _ in range(MILLION):
                    writer.write(VALUE)
            cpu_us = (_over(cluster, _cpu_s, sum) - before) / MILLION * 1e6
            found.append(Cost(cpu_us, int(_over(cluster, _rss_kib, max))))
    return found


def _over(cluster: Cluster, measure: Callable[[int], float], fold: Callable[[list[float]], float]) -> float:
    return fold([measure(node.pid) for node in cluster])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _rss_kib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmRSS")).split()[1])
