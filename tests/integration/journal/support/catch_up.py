"""A node that lost its disk comes back while others write: by the whole log, or by a checkpoint and the rest of it."""

from __future__ import annotations

import shutil
import time
from typing import NamedTuple

from chaplain import Client
from tests.integration.journal.support.config_scenes import stall_s
from tests.integration.journal.support.memory import pour
from tests.integration.journal.support.scenes import Load, find_master, status, wait_until_same
from tests.support.process_cluster import Cluster, Node, until

RETURN_S = 600.0
"""Patience with the machine."""


class Return(NamedTuple):
    back_s: float
    """From its start until it had a vote again."""
    stall_s: float
    """The longest time in which no writer got an answer, from then on."""
    log_mib: int
    """What the others had of the log."""


def log_of(node: Node) -> dict:
    return dict(status(node).get("log", {}))


def wipe(node: Node) -> None:
    for name in ("segments", "databases"):
        shutil.rmtree(node.folder / name, ignore_errors=True)


def drop_all(cluster: Cluster) -> None:
    """Have everything that is written covered and dropped."""
    with Client.connect(cluster.directory, timeout=60) as client:
        client.snapshot(int(client.status()["agreed"]))
    until(lambda: all(log_of(node).get("pending") == 0 for node in cluster), "every node dropped what it can", RETURN_S)


def come_back(cluster: Cluster, mib: int, *, by_checkpoint: bool) -> Return:
    pour(cluster, mib, find_master(cluster))
    wait_until_same(cluster)
    if by_checkpoint:
        drop_all(cluster)
    victim = next(node for node in cluster if node is not find_master(cluster))
    left = max(log_of(node)["bytes"] for node in cluster) >> 20
    victim.kill()
    wipe(victim)
    load = Load(cluster, writers=2)
    began_s = time.monotonic()
    victim.start()
    until(lambda: status(victim).get("standing") == "sound", "it has a vote again", RETURN_S)
    back_s = time.monotonic() - began_s
    load.await_progress()
    histories = [writer.end() for writer in load.writers]
    wait_until_same(cluster)
    return Return(back_s, stall_s(histories), left)
