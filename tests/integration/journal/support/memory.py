"""How much memory nodes take while somebody does not keep up, and after millions of messages."""

from __future__ import annotations

import signal

from chaplain import Client
from tests.integration.journal.support.history import STREAM
from tests.integration.journal.support.scenes import find_master, wait_until_same
from tests.support.process_cluster import Cluster, Node, process, throughout

MIB_KIB = 1024
PIECE = bytes(64 * 1024)
SMALL = bytes(100)
STUCK_KIB_MAX = 64 * MIB_KIB
"""What one who is stuck may cost a node."""
CALM_S = 1.0


def pour(cluster: Cluster, mib: int, through: Node) -> None:
    connected = Client.connect(cluster.directory, node=through.number, timeout=120)
    with connected as client, client.journal(STREAM).writer() as writer:
        for _ in range(mib * 16):
            writer.write(PIECE)


def sizes(nodes: list[Node]) -> dict[int, int]:
    """Memory of their own, without pages of files that the system may take back, in KiB."""
    return {node.number: node.memory_kib() - node.memory_kib("RssFile") for node in nodes}


def growth(before: dict[int, int], after: dict[int, int]) -> int:
    return max(after[number] - before[number] for number in before)


def stuck_follower(cluster: Cluster, mib: int) -> int:
    """KiB by which a node grew while another stood still and so much was written."""
    master = find_master(cluster)
    stuck, other = cluster.others(master.number)
    others = [master, other]
    before = sizes(others)
    stuck.signal(signal.SIGSTOP)
    try:
        pour(cluster, mib, other)
        grown = growth(before, sizes(others))
    finally:
        stuck.signal(signal.SIGCONT)
    wait_until_same(cluster)
    return grown


def stuck_reader(cluster: Cluster, mib: int) -> int:
    """KiB by which a node grew while one of its readers took nothing and so much was written."""
    node = find_master(cluster)
    with process("tests.integration.journal.support.gaper", str(cluster.directory), str(node.number), STREAM) as reader:
        reader.send_signal(signal.SIGSTOP)
        before = sizes([node])
        pour(cluster, mib, node)
        throughout(CALM_S, lambda: node.memory_kib() > 0, "the node is gone")  # whatever it still owes the reader
        return growth(before, sizes([node]))


def flat(cluster: Cluster, messages: int, steps: int = 10) -> list[dict[int, int]]:
    """The size of each node after each of so many steps."""
    seen: list[dict[int, int]] = []
    with Client.connect(cluster.directory, timeout=120) as client:
        for _ in range(steps):
            with client.journal(STREAM).writer() as writer:
                for _ in range(messages // steps):
                    writer.write(SMALL)
            wait_until_same(cluster)
            seen.append({node.number: node.memory_kib() for node in cluster})
    return seen
