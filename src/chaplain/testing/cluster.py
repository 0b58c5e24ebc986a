"""`Cluster`: nodes as processes of this machine, and what a test does to them."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from chaplain.client.aio import AsyncClient
from chaplain.client.sync import Client
from chaplain.config import choose_nodes, load_cluster
from chaplain.embedded import start_nodes
from chaplain.errors import Misused
from chaplain.runtime.cluster.local import is_alive, pid_of, stop_nodes

_NAME_LENGTH_MAX = 60
_END_S = 10.0
_POLL_S = 0.01


class Cluster:
    """A cluster of real nodes. Use it in a `with` statement, or call `close`.

    Without a directory, the nodes keep their data in a temporary one, which `close` deletes. The nodes also stop when
    this process ends or is killed.
    """

    def __init__(self, directory: str | Path | None = None, *, nodes: int = 1, database: str = "sqlite") -> None:
        self._temporary = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="chaplain-") if directory is None else directory).resolve()
        """The directory that a client connects to."""
        self._count = nodes
        self._database = database
        self._owner = os.getpid()
        try:
            self.start()
        except BaseException:
            self._delete()
            raise

    def __repr__(self) -> str:
        return f"<Cluster of {self._count} nodes at {self.directory}>"

    @property
    def url(self) -> str:
        """The URL of the cluster, for the setting `CHAPLAIN_URL` of a program under test."""
        cluster = load_cluster(self.directory)
        places = ",".join(node.endpoint.removeprefix("tcp://") for node in cluster.nodes)
        return f"chaplain://{places}?identity={quote(cluster.identity)}"

    def connect(self, **options: Any) -> Client:
        """Connect a `Client`. Takes the options of `Client.connect`."""
        return Client.connect(self.directory, **options)

    def connect_async(self, **options: Any) -> AsyncClient:
        """Connect an `AsyncClient`: use it in an `async with` statement."""
        return AsyncClient.connect(self.directory, **options)

    def unique(self, name: str = "test") -> str:
        """Return a name of a stream that nobody else has. It begins with `name`."""
        return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name).strip('-')[:_NAME_LENGTH_MAX]}-{secrets.token_hex(4)}"

    def start(self) -> None:
        """Resume the nodes that are paused, start those that are down, and wait until all of them serve."""
        for folder in self._folders():
            if (pid := pid_of(folder)) is not None:
                os.kill(pid, signal.SIGCONT)
        start_nodes(self.directory, self._count, self._database)

    def kill(self, node: int = 1) -> None:
        """Kill a node with SIGKILL, and wait until its process has ended. `start` starts it again."""
        pid = self._pid(node)
        os.kill(pid, signal.SIGKILL)
        end_s = time.monotonic() + _END_S
        while is_alive(pid):
            if time.monotonic() > end_s:
                raise TimeoutError(f"process {pid} of node {node} does not end")
            time.sleep(_POLL_S)

    def pause(self, node: int = 1) -> None:
        """Stop a node's process with SIGSTOP: it is silent, and its connections stay open. `resume` continues it."""
        os.kill(self._pid(node), signal.SIGSTOP)

    def resume(self, node: int = 1) -> None:
        """Continue a paused node."""
        os.kill(self._pid(node), signal.SIGCONT)

    @contextmanager
    def paused(self, node: int = 1) -> Iterator[None]:
        """Pause a node for the duration of a block."""
        self.pause(node)
        try:
            yield
        finally:
            self.resume(node)

    def close(self) -> None:
        """Stop all nodes, and delete the directory if it is a temporary one."""
        if os.getpid() != self._owner:
            return  # a fork of the process that started them
        folders = self._folders()
        for folder in folders:
            if (pid := pid_of(folder)) is not None:
                os.kill(pid, signal.SIGCONT)  # a paused process does not react to SIGTERM
        stop_nodes(folders)
        self._delete()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _delete(self) -> None:
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _folders(self) -> list[Path]:
        return sorted(self.directory.glob("node-*"))

    def _pid(self, node: int) -> int:
        choose_nodes(load_cluster(self.directory).nodes, node)
        if (pid := pid_of(self.directory / f"node-{node}")) is None:
            raise Misused(f"node {node} does not run: start() starts it")
        return pid
