"""The same job on `local[2]`, on a standalone master with two workers, and over Connect, all on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark

from chaplain import Client
from chaplain.pipeline.session import find_java
from chaplain.runtime.cluster.create import free_ports
from tests.support.process_cluster import until

DRIVER = Path(__file__).parent / "anywhere_driver.py"
HOME = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
PATIENCE_S = 240


def environment() -> dict[str, str]:
    java = find_java()
    given = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, **given, "SPARK_NO_DAEMONIZE": "1", **({"JAVA_HOME": str(java)} if java else {})}


@contextlib.contextmanager
def process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Ended with everything that it started."""
    with log.open("ab") as out:
        started = subprocess.Popen(command, stdout=out, stderr=out, env=environment(), start_new_session=True)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def free_port() -> int:
    """In this process's own range: none that the kernel might give away meanwhile."""
    (port,) = free_ports(1)
    return port


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[str]:
    port = free_port()
    start = [str(HOME / "bin" / "spark-class")]
    deploy = "org.apache.spark.deploy"
    master = [f"{deploy}.master.Master", "--host", LOOPBACK, "--port", str(port), "--webui-port", str(free_port())]
    worker = [f"{deploy}.worker.Worker", "--host", LOOPBACK, "--webui-port", "0", "-c", "1", "-m", "700M"]
    url = f"spark://{LOOPBACK}:{port}"
    log = folder / "master.log"
    with process([*start, *master], log):
        until(lambda: listens(port), "the master listens", limit_s=PATIENCE_S)
        with contextlib.ExitStack() as stack:
            for number in (1, 2):
                place = ["-d", str(folder / f"work-{number}")]
                stack.enter_context(process([*start, *worker, *place, url], folder / f"worker-{number}.log"))
            until(lambda: log.read_text().count("Registering worker") == 2, "two workers", limit_s=PATIENCE_S)
            yield url


@contextlib.contextmanager
def connect(folder: Path) -> Iterator[str]:
    port = free_port()
    quiet = {"spark.connect.grpc.binding.port": port, "spark.ui.enabled": "false", "spark.driver.host": LOOPBACK}
    settings = [part for key, value in quiet.items() for part in ("--conf", f"{key}={value}")]
    command = [str(HOME / "sbin" / "start-connect-server.sh"), "--master", "local[2]", *settings]
    with process(command, folder / "connect.log"):
        until(lambda: listens(port), "the Connect server listens", limit_s=PATIENCE_S)
        yield f"sc://{LOOPBACK}:{port}"


def run(where: str, cluster: Path, stream: str, folder: Path) -> tuple[int, str, list[tuple[bytes | None, bytes]]]:
    """Rows that the job saw, their digest, and what it wrote."""
    out = folder / f"{stream}.json"
    with process([sys.executable, str(DRIVER), where, str(cluster), stream, str(out)], folder / f"{stream}.log") as job:
        code = job.wait(PATIENCE_S)
    assert code == 0, (folder / f"{stream}.log").read_text()[-3000:]
    with Client.connect(cluster) as client:
        written = [(one.key, one.value) for one in client.journal(stream).read()]
    found = json.loads(out.read_text())
    return found["rows"], found["digest"], written
