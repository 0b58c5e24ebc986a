"""Starts and stops the nodes of a cluster on this machine, as background processes.

Before it signals a process, this module checks that its command line belongs to the node, because the operating system
reuses process ids.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
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
from chaplain.runtime.supported_platform import check_platform

START_S = 60.0
MEET_S = 30.0
WORK_S = 20.0
"""How long `bring_up` waits until started nodes take part in the sequence. It is longer than
`sequence.patience_seconds`, the time that nodes wait for missing ones before they begin without them."""
STOP_S = 10.0
PROGRAM = (sys.executable, "-m", "chaplain.cli.main")
POLL_S = 0.02
LOG_FILE = "log"
LOG_LINES_SHOWN = 8
ERROR_PREFIX = "chaplain: "
"""A failed command prints one line with this prefix. No other line of a log begins with it."""
_PER_NODE_SETTINGS = ("id", "bind", "advertise", "data", "identity", "keyring", "http", "log", "neighbours")

Progress = Callable[[str], None]


class ClusterFailed(ChaplainError):
    """A local cluster could not be brought up or down."""


def bring_up(
    directory: Path,
    progress: Progress,
    start_s: float = START_S,
    only: int | None = None,
    *,
    created: bool = False,
    options: Sequence[str] = (),
) -> list[int]:
    """Start the nodes that are down, wait until all of them serve, and return the ids of the started ones.

    Unless `only` names a single node, also wait for a limited time until the nodes have found each other and take part
    in the sequence. Nodes on other machines are not started. A node that finds itself removed from the cluster is
    removed from `cluster.toml`. `options` are added to the command line of each started node.

    Raises `ClusterFailed` if a node does not come up. The other nodes keep running, because they may be a majority that
    serves clients (docs/decisions/command-line.md). They are stopped again only if the call is interrupted, or if the
    cluster was just `created`.
    """
    whole = load_cluster(directory)
    here = tuple(node for node in choose_nodes(whole.nodes, only) if node.http)
    if not here:
        raise ClusterFailed(f"{directory} is of a cluster on several machines: run each node on its own")
    cluster = msgspec.structs.replace(whole, nodes=here)
    started: dict[int, subprocess.Popen[bytes]] = {}
    try:
        failed = _start_nodes(directory, cluster, started, progress, options)
        failed |= _wait_until_ready(directory, _without(cluster, failed), started, progress, start_s)
        serving = _without(cluster, failed)
        if failed and (created or not serving.nodes):
            raise ClusterFailed(_joined(failed))
        if only is None and not failed:
            _wait_until_met(cluster, started, progress)
        _unlist_removed(directory, started, progress)
        if only is None and not failed:
            _wait_until_working([node for node in cluster.nodes if node.id in started], progress)
    except BaseException:
        stop_nodes([directory / f"node-{node_id}" for node_id in started], {p.pid for p in started.values()})
        raise
    for process in started.values():
        process.returncode = 0  # it lives on without us: keep Python from warning about it
    if failed:
        others = ", ".join(str(node.id) for node in serving.nodes)
        raise ClusterFailed(f"{_joined(failed)}\nThe rest of the cluster is up: node {others}.")
    return list(started)


def _start_nodes(
    directory: Path,
    cluster: ClusterFile,
    started: dict[int, subprocess.Popen[bytes]],
    progress: Progress,
    options: Sequence[str],
) -> dict[int, str]:
    """Start the nodes that are down. Return the reasons of those that cannot be started."""
    failed: dict[int, str] = {}
    for node in cluster.nodes:
        folder = directory / f"node-{node.id}"
        if pid_of(folder) is not None:
            continue
        try:
            _check_same(folder / NODE_FILE, node)
            started[node.id] = start_node(folder, options)
        except ConfigError as error:
            failed[node.id] = f"node {node.id}: {error}"
        else:
            progress(f"node {node.id} starts")
    return failed


def _check_same(file: Path, node: ClusterNode) -> None:
    """Refuse a node whose own file and the cluster's file disagree: clients and monitoring would not find it."""
    settings = load_node(file, {})
    for name, listed in (("id", str(node.id)), ("http", node.http)):
        if (found := str(settings.values[name])) != listed:
            raise ConfigError(f"{file}: {name} is {found!r}, and {listed!r} in {CLUSTER_FILE}: make them the same")


def _without(cluster: ClusterFile, failed: Mapping[int, str]) -> ClusterFile:
    return msgspec.structs.replace(cluster, nodes=tuple(node for node in cluster.nodes if node.id not in failed))


def _joined(failed: Mapping[int, str]) -> str:
    return "\n".join(why for _, why in sorted(failed.items()))


def base_port_of(directory: Path) -> int:
    """Return the port of the cluster's first node."""
    return int(load_cluster(directory).nodes[0].endpoint.rpartition(":")[2])


def database_of(directory: Path) -> str | None:
    """Return the kind of database that executes journals, or None if no folder here contains the setting."""
    for node in load_cluster(directory).nodes:
        file = directory / f"node-{node.id}" / NODE_FILE
        if not node.index_only and file.is_file():
            return load_node(file, {}).text("database")
    return None


def start_node(folder: Path, options: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    check_platform()
    config = (folder / NODE_FILE).resolve()
    load_node(config)  # a mistake in the file is reported here, not in the node's log
    # Settings that distinguish nodes come from their files: an environment variable would apply to all of them alike.
    environment = {k: v for k, v in os.environ.items() if k not in map(variable_of, _PER_NODE_SETTINGS)}
    log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(  # noqa: S603  our own interpreter and module
            [*PROGRAM, "node", "run", "--config", str(config), *options],
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
    progress: Progress,
    start_s: float = START_S,
) -> dict[int, str]:
    """Wait until each node serves or has ended. Return the reasons of those that do not serve after `start_s`."""
    waiting = {node.id: node for node in cluster.nodes}
    failed: dict[int, str] = {}
    for _ in _poll(start_s):
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
                progress(f"node {node.id} serves at {node.endpoint}")
        if not waiting:
            break
    for number in waiting:
        log = directory / f"node-{number}" / LOG_FILE
        failed[number] = f"node {number} does not serve after {start_s:.0f} s, and goes on trying; its log is {log}"
    return failed


def _unlist_removed(directory: Path, started: dict[int, subprocess.Popen[bytes]], progress: Progress) -> None:
    """Remove nodes from the clients' file that ended because the cluster had removed them."""
    from chaplain.runtime.cluster.join import unlist_node  # noqa: PLC0415  a slow import that is rarely needed

    for node_id in [node_id for node_id, process in started.items() if _is_removed(process)]:
        del started[node_id]
        unlist_node(directory, node_id)
        progress(f"node {node_id} was removed from the cluster: {CLUSTER_FILE} no longer lists it, and it stays down")


def _is_removed(process: subprocess.Popen[bytes] | None) -> bool:
    return process is not None and process.poll() == REMOVED


def _wait_until_met(cluster: ClusterFile, started: Mapping[int, subprocess.Popen[bytes]], progress: Progress) -> None:
    """Wait until the nodes have found each other. Report, without failing, if that takes longer than `MEET_S`."""
    for _ in _poll(MEET_S):
        nodes = [node for node in cluster.nodes if not _is_removed(started.get(node.id))]
        statuses = [get_status(node.http) or {} for node in nodes]
        if all(_has_met(status, len(nodes)) for status in statuses):
            return
    progress(f"the nodes serve, but have not all met within {MEET_S:.0f} s; see `chaplain cluster status`")


def _wait_until_working(nodes: list[ClusterNode], progress: Progress) -> None:
    """Wait until the nodes take part in the sequence: a node refuses to publish events before that."""
    waiting = {node.id: node for node in nodes}
    for _ in _poll(WORK_S):
        waiting = {node_id: node for node_id, node in waiting.items() if not _is_working(node)}
        if not waiting:
            return
    names = ", ".join(map(str, waiting))
    progress(f"node {names} does not work in the sequence after {WORK_S:.0f} s; see `chaplain cluster status`")


def _is_working(node: ClusterNode) -> bool:
    return (get_status(node.http) or {}).get("state") == "WRK"


def _has_met(status: Mapping[str, object], count: int) -> bool:
    """Whether a node knows all others and, if it has a journal, the master. With a full disk there is no master."""
    members = status.get("members")
    has_master = status.get("master_id", 0) is not None or status.get("disk_full") is True
    return isinstance(members, int) and members >= count and has_master


def _why_ended(directory: Path, node: ClusterNode, code: int) -> str:
    log = directory / f"node-{node.id}" / LOG_FILE
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        if lines and lines[-1].startswith(ERROR_PREFIX):  # a single sentence that says what to do
            return f"node {node.id} ended with code {code}: {lines[-1].removeprefix(ERROR_PREFIX)}"
        return f"node {node.id} ended with code {code}; the end of {log}:\n" + "\n".join(f"  {line}" for line in lines)
    return f"node {node.id} ended with code {code}, and {log} cannot be read"


def bring_up_one(directory: Path, node: ClusterNode, progress: Progress) -> None:
    """Start one node and wait until it serves."""
    process = start_node(directory / f"node-{node.id}")
    progress(f"node {node.id} starts")
    try:
        alone = msgspec.structs.replace(load_cluster(directory), nodes=(node,))
        if failed := _wait_until_ready(directory, alone, {node.id: process}, progress):
            raise ClusterFailed(_joined(failed))
    except BaseException:
        stop_nodes([directory / f"node-{node.id}"], {process.pid})
        raise
    process.returncode = 0  # it lives on without us: keep Python from warning about it


def bring_down(directory: Path, only: int | None = None) -> list[int]:
    """Stop the running nodes, or `only` one of them. Return the ids of those that ran."""
    folders = {node.id: directory / f"node-{node.id}" for node in choose_nodes(load_cluster(directory).nodes, only)}
    running = {node_id: folder for node_id, folder in folders.items() if pid_of(folder) is not None}
    stop_nodes(list(running.values()))
    return list(running)


def stop_nodes(folders: list[Path], also: Set[int] = frozenset()) -> None:
    """Send SIGTERM, wait for `STOP_S`, and send SIGKILL to processes that still run."""
    pids = {pid for folder in folders if (pid := pid_of(folder)) is not None} | {*also}
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal_number)
        for _ in _poll(STOP_S):
            pids = {pid for pid in pids if is_alive(pid)}
            if not pids:
                return
    raise ClusterFailed(f"process {', '.join(map(str, pids))} does not end")


def pid_of(folder: Path) -> int | None:
    """Return the process id of the node in this folder, or None if the node does not run."""
    try:
        pid = int((folder / PID_FILE).read_text())
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    config = os.fsencode((folder / NODE_FILE).resolve())
    ours = any(_resolved(pid, argument) == config for argument in arguments if argument.endswith(NODE_FILE.encode()))
    return pid if ours and is_alive(pid) else None


def _resolved(pid: int, argument: bytes) -> bytes:
    """Resolve a path on a process's command line relative to the process's working directory, through symbolic
    links.
    """
    try:
        cwd = os.readlink(b"/proc/%d/cwd" % pid)
    except OSError:  # the process belongs to another user, or has ended
        cwd = b"/"
    return os.path.realpath(os.path.join(cwd, argument))


def is_alive(pid: int) -> bool:
    """Whether the process runs. A zombie does not count as running."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def _poll(seconds: float) -> Iterator[None]:
    """Yield every `POLL_S` until the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(POLL_S)
