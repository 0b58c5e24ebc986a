"""What is done to nodes of a cluster on this machine: killed, paused, cut off.

Every blow is undone, however its block is left. A node is signalled only after its process was seen to be that node's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from chaplain.errors import ChaplainError
from chaplain.link.endpoint import split_endpoint
from chaplain.runtime.cluster.local import bring_up, is_alive, pid_of

START_S = 300.0
"""A node that has much to read again on a busy machine is slow, and not broken."""
CUT_RULES = """
table inet {table} {{
    chain incoming {{
        type filter hook input priority 0; policy accept;
        iif lo tcp dport {port} drop
    }}
}}
"""
"""Some versions of nft want each brace on a line of its own."""
CUT_MISSING = "cutting connections needs root and the program nft; left out"


def kill(directory: Path, nodes: Sequence[int]) -> None:
    """With -9, all in one moment; returns when they are gone."""
    pids = [pid for node in nodes if (pid := pid_of(directory / f"node-{node}")) is not None]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        while is_alive(pid):  # a killed process ends as soon as the kernel gets to it
            os.sched_yield()


def restart(directory: Path) -> None:
    """Start whatever is down, and wait until it serves."""
    bring_up(directory, lambda _: None, START_S)


@contextlib.contextmanager
def paused(directory: Path, node: int) -> Iterator[None]:
    pid = pid_of(directory / f"node-{node}")
    if pid is None:
        raise ChaplainError(f"node {node} is down; nobody but the drill may stop nodes meanwhile")
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
    """Nothing reaches this node's port: others cannot talk to it, though it can talk to them."""
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
    assert program is not None, "asked for before"
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, check=False, timeout=10)  # noqa: S603
    if done.returncode:
        raise ChaplainError(f"nft refused to cut a connection: {done.stderr.strip()[:200]}")
