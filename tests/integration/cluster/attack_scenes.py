"""Strangers against a whole node, while an honest pair of nodes and their clients go on.

Promised: nothing changes, all of it is counted, strangers cost 32 MiB of memory at the most, and the pair keeps half of
its rate. A node also queues what the honest listener has not received yet; on a busy machine that queue fills up.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator

from chaplain.config import NODE_FILE
from chaplain.link.settings import LinkSettings
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.cluster.probe import get_status
from tests.support.process_cluster import PROGRAM, Cluster, Node, process, promised, until
from tests.support.traffic_capture import Ear, talking

GROWTH_KIB_MAX = 32 * 1024 + (LinkSettings("").identity_queue_bytes_max >> 10)
SHARE = 0.5
ATTEMPTS = 4
TALKERS = 4
ALONE_S, ATTACKED_S = 0.8, 1.2
STRANGERS = ("half_open", "endless_multipart", "flood", "wrong_password")


@contextlib.contextmanager
def stranger(kind: str, cluster: Cluster) -> Iterator[None]:
    with process("tests.unit.link.zmq.hostile_connections", kind, cluster.endpoint(2)):
        yield


@contextlib.contextmanager
def node_with_another_key(kind: str, cluster: Cluster) -> Iterator[None]:
    """A whole node that says the cluster's name, and knows its addresses, but not its key."""
    directory = cluster.directory.parent / f"{kind}-{time.monotonic_ns()}"
    make_cluster(directory, 1, "sqlite", None)
    file = directory / "node-1" / NODE_FILE
    text = re.sub(r"(?m)^cluster = .*$", f'cluster = "{cluster.file.cluster}"', file.read_text())
    file.write_text(re.sub(r"(?m)^neighbours = .*$", f'neighbours = ["{cluster.endpoint(2)}"]', text))
    refused = cluster[2].count("link_tokens_refused")
    command = [*PROGRAM, "node", "run", "--config", str(file)]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: cluster[2].count("link_tokens_refused") > refused, "it knocks")
        yield
    finally:
        started.kill()
        started.wait()


ATTACKS: dict[str, Callable[[str, Cluster], contextlib.AbstractContextManager[None]]] = {
    **dict.fromkeys(STRANGERS, stranger),
    "another_key": node_with_another_key,
}


def strangers_change_nothing(cluster: Cluster, attacks: list[str]) -> dict[str, object]:
    """Each attack in turn against node 2, with windows of peace between."""
    with talking(cluster.directory, speakers=[1] * TALKERS, ears=[2], per_second=1e6) as (mouths, [ear]):
        _rate(ear, ALONE_S)
        until(lambda: all(_standing(node) for node in cluster), "every node says how it is")
        before = [_standing(node) for node in cluster]
        peaks = [node.memory_kib("VmHWM") for node in cluster]
        shares = {}
        for attack in attacks:
            shares[attack] = _attack(cluster, ear, attack)
            until(lambda: [_standing(node) for node in cluster] == before, f"{attack} has changed nothing")
        growth = [node.memory_kib("VmHWM") - peak for node, peak in zip(cluster, peaks, strict=True)]
        assert max(growth) <= GROWTH_KIB_MAX, growth
        assert cluster.ever_left() == []
        for mouth in mouths:
            mouth.stop()
        assert ear.faults([mouth.name for mouth in mouths]) == []
        assert ear.told == 0
    return {"shares": shares, "growth KiB": growth, "counted": _counted(cluster[2])}


def _attack(cluster: Cluster, ear: Ear, attack: str) -> float:
    """The share of its rate that the pair kept: the best of a few, since others use this machine, too."""
    best, noticed = 0.0, _counted(cluster[2])
    for _ in range(ATTEMPTS):
        alone = _rate(ear, ALONE_S)
        with ATTACKS[attack](attack, cluster):
            best = max(best, _rate(ear, ATTACKED_S) / alone)
            counted = _counted(cluster[2])
        if best >= _share():
            break
    assert sum(counted.values()) > sum(noticed.values()), f"{attack} was not counted: {counted}"
    assert best >= _share(), f"{attack}: the pair kept {best:.2f} of its rate"
    return round(best, 2)


def _share() -> float:
    """Beside other tests the pair need not keep its rate; it must go on."""
    return SHARE if promised(0.0) == 0.0 else SHARE / 10


def _rate(ear: Ear, seconds: float) -> float:
    """Broadcasts heard in a second."""
    first, began_s = len(ear.notes), time.monotonic()
    until(lambda: time.monotonic() - began_s >= seconds and len(ear.notes) > first, "the pair goes on")
    return (len(ear.notes) - first) / (time.monotonic() - began_s)


def _standing(node: Node) -> tuple[object, ...]:
    """What strangers might want to change."""
    status = get_status(node.http)
    return () if status is None else (node.members(), status["pools"], status["peers"])


def _counted(node: Node) -> dict[str, int]:
    """Unproven connections, and those turned away: by a shut door, a wrong password or a wrong key."""
    metrics = node.metrics()
    accepted = int(metrics.get("link_accepted", 0) - metrics.get("link_admitted", 0))
    names = ("link_accept_blocked", "link_refused", "link_tokens_refused")
    return {"accepted, not admitted": accepted, **{name: int(metrics.get(name, 0)) for name in names}}
