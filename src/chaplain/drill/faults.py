"""The faults that the drill injects into nodes on this machine: kill, pause, network cut.

Pauses and cuts end when their block is left, for whatever reason. A signal is sent only to a process that was verified
to run the node.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from chaplain.core import Frozen
from chaplain.errors import ChaplainError
from chaplain.link.endpoint import split_endpoint
from chaplain.runtime.cluster.local import bring_up, is_alive, pid_of

START_S = 300.0
"""Bound for the start of a node, generous because recovery of a long log on a busy machine is slow."""
CUT_RULES = """
table inet {table} {{
    chain incoming {{
        type filter hook input priority 0; policy accept;
        iif lo tcp dport {port} drop
    }}
}}
"""
"""Each brace is on a line of its own, because some versions of nft require that."""
CUT_MISSING = "cutting connections needs root and the program nft; left out"


class Fault(Frozen, frozen=True):
    """A fault that the drill injected."""

    from_s: float
    over_s: float
    """When the fault was undone: all nodes were up again."""
    to_s: float
    """When the cluster had recovered: all nodes were connected to each other again."""
    memory_lost: bool
    """A majority was killed at once, so state that was only in memory is lost."""


def kill(directory: Path, nodes: Sequence[int]) -> None:
    """Kill the nodes with SIGKILL at the same time; return when their processes are gone."""
    pids = [pid for node in nodes if (pid := pid_of(directory / f"node-{node}")) is not None]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        while is_alive(pid):  # a killed process ends as soon as the kernel gets to it
            os.sched_yield()


def restart(directory: Path) -> None:
    """Start all nodes that are down, and wait until they serve."""
    bring_up(directory, lambda _: None, START_S)


@contextlib.contextmanager
def paused(directory: Path, node: int) -> Iterator[None]:
    """Stop the node's process with SIGSTOP for the duration of the block."""
    pid = pid_of(directory / f"node-{node}")
    if pid is None:
        raise ChaplainError(f"node {node} is down; only the drill may stop nodes while it runs")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def can_cut() -> bool:
    return os.geteuid() == 0 and shutil.which("nft") is not None


@contextlib.contextmanager
def cut(endpoint: str) -> Iterator[None]:
    """Drop all packets to the node's port. The other nodes cannot connect to it, but it can connect to them."""
    _, port = split_endpoint(endpoint)
    table = f"chaplain_drill_{os.getpid()}"
    rules = CUT_RULES.format(table=table, port=port)
    _nft("-f", "-", text=rules)
    try:
        yield
    finally:
        _nft("delete", "table", "inet", table)


def _nft(*arguments: str, text: str = "") -> None:
    program = shutil.which("nft")
    assert program is not None, "`can_cut` was checked before"
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, check=False, timeout=10)  # noqa: S603
    if done.returncode:
        raise ChaplainError(f"nft refused to cut a connection: {done.stderr.strip()[:200]}")
