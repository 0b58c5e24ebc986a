"""Clusters on one machine: started in the background, and stopped.

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
    CLUSTER_FILE,
    NODE_FILE,
    PID_FILE,
    ClusterFile,
    ClusterNode,
    choose_nodes,
    load_cluster,
    load_node,
    variable_of,
)
from chaplain.errors import ChaplainError, ConfigError
from chaplain.runtime.cluster.probe import get_status, is_ready
from chaplain.runtime.exit_codes import REMOVED

START_S = 60.0
MEET_S = 30.0
WORK_S = 20.0
"""Longer than those that are here wait for the rest before they number events (`sequence.patience_seconds`)."""
STOP_S = 10.0
PROGRAM = (sys.executable, "-m", "chaplain.cli.main")
POLL_S = 0.02
LOG_FILE = "log"
LOG_LINES_SHOWN = 8
SAID = "chaplain: "
"""So begins what a command says when it fails, and nothing else in a log."""
_OWN = ("id", "bind", "advertise", "data", "identity", "keyring", "http", "log", "neighbours")

Tell = Callable[[str], None]


class ClusterFailed(ChaplainError):
    """A local cluster could not be brought up or down."""


def bring_up(
    directory: Path, tell: Tell, start_s: float = START_S, only: int | None = None, *, founding: bool = False
) -> list[int]:
    """Start the nodes that are down and wait until all serve; which were started.

    They are given a while to meet, and to work in the sequence, unless there is `only` one to start. Nodes that joined
    on other machines are left to those; one that finds itself removed from the cluster is taken off the list.

    Raises if a node does not come up. The others stay: they may be the majority that somebody waits for (decision
    0190). Only what was just founded, or is interrupted, is stopped again.
    """
    whole = load_cluster(directory)
    here = tuple(node for node in choose_nodes(whole.nodes, only) if node.http)
    if not here:
        raise ClusterFailed(f"{directory} is of a cluster on several machines: run each node on its own")
    cluster = msgspec.structs.replace(whole, nodes=here)
    started: dict[int, subprocess.Popen[bytes]] = {}
    try:
        failed = _start_nodes(directory, cluster, started, tell)
        failed |= _wait_until_ready(directory, _without(cluster, failed), started, tell, start_s)
        serving = _without(cluster, failed)
        if failed and (founding or not serving.nodes):
            raise ClusterFailed(_told(failed))
        if only is None and not failed:
            _wait_until_met(cluster, started, tell)
        _let_go(directory, started, tell)
        if only is None and not failed:
            _wait_until_working([node for node in cluster.nodes if node.id in started], tell)
    except BaseException:
        stop_nodes([directory / f"node-{node_id}" for node_id in started], {p.pid for p in started.values()})
        raise
    for process in started.values():
        process.returncode = 0  # it lives on without us: keep Python from warning about it
    if failed:
        others = ", ".join(str(node.id) for node in serving.nodes)
        raise ClusterFailed(f"{_told(failed)}\nThe rest of the cluster is up: node {others}.")
    return list(started)


def _start_nodes(
    directory: Path, cluster: ClusterFile, started: dict[int, subprocess.Popen[bytes]], tell: Tell
) -> dict[int, str]:
    """Start those that are down; of whom cannot be started, why."""
    failed: dict[int, str] = {}
    for node in cluster.nodes:
        folder = directory / f"node-{node.id}"
        if pid_of(folder) is not None:
            continue
        try:
            _check_same(folder / NODE_FILE, node)
            started[node.id] = start_node(folder)
        except ConfigError as mistake:
            failed[node.id] = f"node {node.id}: {mistake}"
        else:
            tell(f"node {node.id} starts")
    return failed


def _check_same(file: Path, node: ClusterNode) -> None:
    """Nobody would find a node that serves elsewhere than the cluster's file says."""
    settings = load_node(file, {})
    for name, listed in (("id", str(node.id)), ("http", node.http)):
        if (found := str(settings.values[name])) != listed:
            raise ConfigError(f"{file}: {name} is {found!r}, and {listed!r} in {CLUSTER_FILE}: make them the same")


def _without(cluster: ClusterFile, failed: Mapping[int, str]) -> ClusterFile:
    return msgspec.structs.replace(cluster, nodes=tuple(node for node in cluster.nodes if node.id not in failed))


def _told(failed: Mapping[int, str]) -> str:
    return "\n".join(why for _, why in sorted(failed.items()))


def base_port_of(directory: Path) -> int:
    """The first port of the node that was founded first."""
    return int(load_cluster(directory).nodes[0].endpoint.rpartition(":")[2])


def database_of(directory: Path) -> str | None:
    """What executes journals in this cluster, if a node's folder that says so is here."""
    for node in load_cluster(directory).nodes:
        file = directory / f"node-{node.id}" / NODE_FILE
        if not node.index_only and file.is_file():
            return load_node(file, {}).text("database")
    return None


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
) -> dict[int, str]:
    """Wait until all serve, or have ended; of whom do not serve by then, why."""
    waiting = {node.id: node for node in cluster.nodes}
    failed: dict[int, str] = {}
    for _ in _moments(start_s):
        for node in list(waiting.values()):
            process = started.get(node.id)
            if _is_removed(process):
                del waiting[node.id]
                continue
            if process is not None and process.poll() is not None:
                failed[node.id] = _why_ended(directory, node, process.returncode)
                del waiting[node.id], started[node.id]
            elif is_ready(node.http):
                del waiting[node.id]
                tell(f"node {node.id} serves at {node.endpoint}")
        if not waiting:
            break
    for number in waiting:
        log = directory / f"node-{number}" / LOG_FILE
        failed[number] = f"node {number} does not serve after {start_s:.0f} s, and goes on trying; its log is {log}"
    return failed


def _let_go(directory: Path, started: dict[int, subprocess.Popen[bytes]], tell: Tell) -> None:
    """Take those off the list that ended because they were removed, wherever that was asked for."""
    from chaplain.runtime.cluster.join import unlist_node  # noqa: PLC0415  it loads much, and is seldom needed

    for node_id in [node_id for node_id, process in started.items() if _is_removed(process)]:
        del started[node_id]
        unlist_node(directory, node_id)
        tell(f"node {node_id} was removed from the cluster: it is taken off the list, and not started again")


def _is_removed(process: subprocess.Popen[bytes] | None) -> bool:
    return process is not None and process.poll() == REMOVED


def _wait_until_met(cluster: ClusterFile, started: Mapping[int, subprocess.Popen[bytes]], tell: Tell) -> None:
    """Nodes that serve but cannot find each other are said, not hidden; they go on trying."""
    for _ in _moments(MEET_S):
        nodes = [node for node in cluster.nodes if not _is_removed(started.get(node.id))]
        statuses = [get_status(node.http) or {} for node in nodes]
        if all(_has_met(status, len(nodes)) for status in statuses):
            return
    tell(f"the nodes serve, but have not all met within {MEET_S:.0f} s; see `chaplain cluster status`")


def _wait_until_working(nodes: list[ClusterNode], tell: Tell) -> None:
    """A node that serves refuses to publish events until it has joined the others' sequence."""
    waiting = {node.id: node for node in nodes}
    for _ in _moments(WORK_S):
        waiting = {node_id: node for node_id, node in waiting.items() if not _works(node)}
        if not waiting:
            return
    names = ", ".join(map(str, waiting))
    tell(f"node {names} does not work in the sequence after {WORK_S:.0f} s; see `chaplain cluster status`")


def _works(node: ClusterNode) -> bool:
    return (get_status(node.http) or {}).get("state") == "WRK"


def _has_met(status: Mapping[str, object], count: int) -> bool:
    """Whether a node knows all others, and, if it has a journal, who its master is; without room there is none."""
    members = status.get("members")
    has_master = status.get("master_id", 0) is not None or status.get("disk_full") is True
    return isinstance(members, int) and members >= count and has_master


def _why_ended(directory: Path, node: ClusterNode, code: int) -> str:
    log = directory / f"node-{node.id}" / LOG_FILE
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        if lines and lines[-1].startswith(SAID):  # one sentence, and it says what to do
            return f"node {node.id} ended with code {code}: {lines[-1].removeprefix(SAID)}"
        return f"node {node.id} ended with code {code}; the end of {log}:\n" + "\n".join(f"  {line}" for line in lines)
    return f"node {node.id} ended with code {code}, and {log} cannot be read"


def bring_up_one(directory: Path, node: ClusterNode, tell: Tell) -> None:
    """Start one node and wait until it serves."""
    process = start_node(directory / f"node-{node.id}")
    tell(f"node {node.id} starts")
    try:
        alone = msgspec.structs.replace(load_cluster(directory), nodes=(node,))
        if failed := _wait_until_ready(directory, alone, {node.id: process}, tell):
            raise ClusterFailed(_told(failed))
    except BaseException:
        stop_nodes([directory / f"node-{node.id}"], {process.pid})
        raise
    process.returncode = 0  # it lives on without us: keep Python from warning about it


def bring_down(directory: Path, only: int | None = None) -> list[int]:
    """Stop the nodes that run, or one; which they were."""
    folders = {node.id: directory / f"node-{node.id}" for node in choose_nodes(load_cluster(directory).nodes, only)}
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
    ours = any(_meant(pid, word) == config for word in words if word.endswith(NODE_FILE.encode()))
    return pid if ours and is_alive(pid) else None


def _meant(pid: int, word: bytes) -> bytes:
    """The file that a process was given: as seen from where it runs, whichever way leads there."""
    try:
        there = os.readlink(b"/proc/%d/cwd" % pid)
    except OSError:  # another user's, or it has ended
        there = b"/"
    return os.path.realpath(os.path.join(there, word))


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
