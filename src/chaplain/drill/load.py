"""The interface of the drill's loads, and the thread that most of their clients are."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from chaplain.client.sync import Client
from chaplain.drill.cluster import RETRY_S, TIMEOUT_S, DrillCluster
from chaplain.drill.faults import Fault
from chaplain.drill.violations import KindVerdict
from chaplain.errors import ChaplainError

PACE_S = 0.02
"""Pause of a worker between two operations."""


class Load(Protocol):
    """Clients that use one kind of stream during the drill. Times are `time.monotonic()`."""

    stream_kind: str

    def start(self) -> None: ...

    def acked_since(self, since_s: float) -> int:
        """Return how many operations that began after this time are acknowledged."""
        ...

    def first_acked(self, since_s: float) -> float | None:
        """Return when the first of them was acknowledged."""
        ...

    def missing(self, since_s: float, statuses: Sequence[Mapping[str, object]]) -> str:
        """Describe what has not recovered from a fault yet; "" if everything has."""
        ...

    def end(self) -> None:
        """Stop the clients, and wait for them."""
        ...

    def judge(self, faults: Sequence[Fault]) -> KindVerdict:
        """Read every node, and compare with what the clients saw."""
        ...


class Worker(threading.Thread):
    """Repeats an operation at one node. When the connection fails, it connects again until it is stopped."""

    def __init__(self, cluster: DrillCluster, node: int, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self.node = node
        self.failure: BaseException | None = None
        self.cluster = cluster
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self._run_connected()
                self.stopped.wait(RETRY_S)
        except BaseException as error:  # `end` raises it in the main thread
            self.failure = error

    def _run_connected(self) -> None:
        try:
            with self.cluster.connect(self.node) as client:
                self.on_connected(client)
                while not self.stopped.is_set():
                    self.run_once(client)
                    self.stopped.wait(PACE_S)
        except ChaplainError:
            pass  # the operation has recorded its outcome; the node is down or has not recovered

    def on_connected(self, client: Client) -> None:
        """Called after each connect and reconnect."""

    def run_once(self, client: Client) -> None:
        """Perform the operation once. A `ChaplainError` that it raises ends the connection."""
        raise NotImplementedError

    def end(self) -> None:
        self.stopped.set()
        self.join(TIMEOUT_S)
        if self.is_alive() or self.failure is not None:
            raise ChaplainError(f"{self.name} did not end well: {self.failure or 'it hangs'}")
