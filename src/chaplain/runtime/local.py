"""Clusters on one machine: started in the background, looked at and stopped.

A process is signalled only after its command line was seen to be that node's: process numbers are used again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path

import msgspec

from chaplain.config import (
    NODE_FILE,
    PID_FILE,
    ClusterFile,
    ClusterNode,
    load_cluster,
    load_node,
    variable_of,
)
from chaplain.errors import ChaplainError, Refused, Unreachable
from chaplain.journal.milestones import common
from chaplain.runtime.inquire import get_status, is_ready

START_S = 60.0
MEET_S = 30.0
STOP_S = 10.0
COMPARE_S = 1.0
"""How long nodes are asked again until their fingerprints can be compared."""
REMOTE_S = 3.0
PROGRAM = (sys.executable, "-m", "chaplain.cli.main")
POLL_S = 0.02
LOG_FILE = "log"
LOG_LINES_SHOWN = 8
_OWN = ("id", "bind", "advertise", "data", "identity", "keyring", "http", "log", "neighbours")

Tell = Callable[[str], None]


class ClusterFailed(ChaplainError):
    """A local cluster could not be brought up or down."""


def bring_up(directory: Path, tell: Tell, start_s: float = START_S) -> list[int]:
    """Start the nodes that are down and wait until all serve; which were started. Undoes its starts if it fails.

    Nodes that joined on other machines are left to those.
    """
    whole = load_cluster(directory)
    here = tuple(node for node in whole.nodes if node.http)
    if not here:
        raise ClusterFailed(f"{directory} is of a cluster on several machines: run each node on its own")
    cluster = msgspec.structs.replace(whole, nodes=here)
    started: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for node in cluster.nodes:
            folder = directory / f"node-{node.id}"
            if pid_of(folder) is None:
                started[node.id] = start_node(folder)
                tell(f"node {node.id} starts")
        _wait_until_ready(directory, cluster, started, tell, start_s)
        _wait_until_met(cluster, tell)
    except BaseException:
        stop_nodes([directory / f"node-{node_id}" for node_id in started], {p.pid for p in started.values()})
        raise
    for process in started.values():
        process.returncode = 0  # it lives on without us: keep Python from warning about it
    return list(started)


def start_node(folder: Path) -> subprocess.Popen[bytes]:
    config = (folder / NODE_FILE).resolve()
    load_node(config)  # a mistake in it is told here, not in a log
    # What makes a node itself is in its file; one variable for all of them would make them the same.
    environment = {k: v for k, v in os.environ.items() if k not in map(variable_of, _OWN)}
    log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(  # noqa: S603  our own interpreter and module
            [*PROGRAM, "node", "run", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    finally:
        os.close(log)


def _wait_until_ready(
    directory: Path,
    cluster: ClusterFile,
    started: dict[int, subprocess.Popen[bytes]],
    tell: Tell,
    start_s: float = START_S,
) -> None:
    waiting = {node.id: node for node in cluster.nodes}
    for _ in _moments(start_s):
        for node in list(waiting.values()):
            process = started.get(node.id)
            if process is not None and process.poll() is not None:
                raise ClusterFailed(_why_ended(directory, node, process.returncode))
            if is_ready(node.http):
                del waiting[node.id]
                tell(f"node {node.id} serves at {node.endpoint}")
        if not waiting:
            return
    names = ", ".join(str(node_id) for node_id in waiting)
    raise ClusterFailed(f"node {names} did not serve within {start_s:.0f} s; its log is {directory}/node-*/{LOG_FILE}")


def _wait_until_met(cluster: ClusterFile, tell: Tell) -> None:
    """Nodes that serve but cannot find each other are said, not hidden; they go on trying."""
    for _ in _moments(MEET_S):
        if all(_has_met(get_status(node.http), len(cluster.nodes)) for node in cluster.nodes):
            return
    tell(f"the nodes serve, but have not all met within {MEET_S:.0f} s; see `chaplain cluster status`")


def _has_met(status: Mapping[str, object] | None, count: int) -> bool:
    """Whether a node knows all others, and, if it has a journal, who its master is."""
    members = None if status is None else status.get("members")
    return isinstance(members, int) and members >= count and (status or {}).get("master_id", 0) is not None


def _why_ended(directory: Path, node: ClusterNode, code: int) -> str:
    log = directory / f"node-{node.id}" / LOG_FILE
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        return f"node {node.id} ended with code {code}; the end of {log}:\n" + "\n".join(f"  {line}" for line in lines)
    return f"node {node.id} ended with code {code}, and {log} cannot be read"


def bring_up_one(directory: Path, node: ClusterNode, tell: Tell) -> None:
    """Start one node and wait until it serves."""
    process = start_node(directory / f"node-{node.id}")
    tell(f"node {node.id} starts")
    try:
        alone = msgspec.structs.replace(load_cluster(directory), nodes=(node,))
        _wait_until_ready(directory, alone, {node.id: process}, tell)
    except BaseException:
        stop_nodes([directory / f"node-{node.id}"], {process.pid})
        raise
    process.returncode = 0  # it lives on without us: keep Python from warning about it


def bring_down(directory: Path) -> list[int]:
    """Stop the nodes that run; which they were."""
    folders = {node.id: directory / f"node-{node.id}" for node in load_cluster(directory).nodes}
    running = {node_id: folder for node_id, folder in folders.items() if pid_of(folder) is not None}
    stop_nodes(list(running.values()))
    return list(running)


def stop_nodes(folders: list[Path], also: Set[int] = frozenset()) -> None:
    """Ask, wait, and end by force what does not end."""
    pids = {pid for folder in folders if (pid := pid_of(folder)) is not None} | {*also}
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        for _ in _moments(STOP_S):
            pids = {pid for pid in pids if is_alive(pid)}
            if not pids:
                return
    raise ClusterFailed(f"process {', '.join(map(str, pids))} does not end")


def pid_of(folder: Path) -> int | None:
    """The process that runs this node, if it really does."""
    try:
        pid = int((folder / PID_FILE).read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    config = os.fsencode((folder / NODE_FILE).resolve())
    ours = any(os.path.abspath(word) == config for word in words if word.endswith(NODE_FILE.encode()))
    return pid if ours and is_alive(pid) else None


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and waits to be collected does not."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def _moments(seconds: float) -> Iterator[None]:
    """Now and again until the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(POLL_S)


def _status(directory: Path, node: ClusterNode, pid: int | None) -> Mapping[str, object] | None:
    """Of a node on this machine over HTTP, as monitoring sees it; of one elsewhere as a client sees it."""
    if node.http:
        return None if pid is None else get_status(node.http)
    from chaplain.client.sync import Client  # noqa: PLC0415  a cluster on this machine does without it

    try:
        with Client.connect(directory, node=node.id, timeout=REMOTE_S) as client:
            return client.status()
    except (Unreachable, Refused):
        return None


def describe(directory: Path) -> dict[str, object]:
    """The cluster as `chaplain cluster status` shows it. A node that gives no answer is `down`."""
    nodes: list[dict[str, object]] = []
    regimes: list[int] = []
    streams: dict[str, object] = {}
    statuses, position, fingerprints = _compared(directory)
    for node in load_cluster(directory).nodes:
        status = statuses.get(node.id, {"state": "down"})
        pid = pid_of(directory / f"node-{node.id}")
        shown = ("state", "roles", "master", "members", "standing", "disk_full", "reserved")
        nodes.append({"id": node.id, "endpoint": node.endpoint, "pid": pid} | {k: status.get(k) for k in shown})
        if "sequence" in status:
            nodes[-1]["sequence"] = status["sequence"]
        if isinstance(regime := status.get("regime"), int):
            regimes.append(regime)
        if isinstance(heads := status.get("streams"), dict):
            streams.update(heads)
    masters = [node["id"] for node in nodes if node["master"]]
    furthest = max(statuses.values(), key=_agreed, default={})
    return {
        "nodes": nodes,
        "regime": max(regimes, default=None),
        "master": masters[0] if masters else None,
        "streams": streams,
        "fingerprints": {str(node_id): found for node_id, found in fingerprints.items()},
        "position": position,
        "serializers": furthest.get("serializers", []),
        "changes": furthest.get("changes", []),
    }


def _agreed(status: Mapping[str, object]) -> int:
    agreed = status.get("agreed")
    return agreed if isinstance(agreed, int) else -1


def _compared(directory: Path) -> tuple[dict[int, Mapping[str, object]], int, dict[int, str]]:
    """The status of each node that answers, and their fingerprints at one position.

    Nodes are asked one after the other and go on meanwhile: so each gives a few positions, and if they have none in
    common they are asked again for a while. Who is too far behind by then is left out.
    """
    moments = _moments(COMPARE_S)
    while True:
        statuses: dict[int, Mapping[str, object]] = {}
        for node in load_cluster(directory).nodes:
            found = _status(directory, node, pid_of(directory / f"node-{node.id}"))
            if found is not None:
                statuses[node.id] = found
        held = {node_id: _fingerprints(status) for node_id, status in statuses.items() if "fingerprints" in status}
        position, fingerprints = common(held)
        if len(fingerprints) == len(held) or next(moments, True):
            return statuses, position, fingerprints


def _fingerprints(status: Mapping[str, object]) -> dict[int, str]:
    found = status["fingerprints"]
    return {int(position): str(value) for position, value in found.items()} if isinstance(found, dict) else {}
