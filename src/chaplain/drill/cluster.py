"""The drill's access to the cluster: the identity of its clients, and the final reading of every node.

The drill's clients use an identity that the drill creates. It has a right to the drill's stream and to nothing else. If
a faulty cluster marks this identity as compromised, the admin's identity is unaffected.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import SystemRandom
from typing import TypeVar

from chaplain.client.sync import Client
from chaplain.config import load_cluster
from chaplain.drill.violations import BrokenPromise
from chaplain.errors import ChaplainError, Refused
from chaplain.link.auth.identity import Identity

TIMEOUT_S = 60.0
"""Bound for every single wait of the drill's clients: to connect, to catch up, to end."""
READABLE_S = 120.0
"""If a node cannot be read for this long after the last fault, the drill reports the break `unreadable`."""
RETRY_S = 0.5
"""Pause between two connection attempts. Nodes limit the rate of attempts, and refuse clients that exceed it."""
T = TypeVar("T")


class DrillCluster:
    """The cluster under test, the drill's stream in it and the identity of the drill's clients."""

    def __init__(self, directory: Path, stream: str) -> None:
        self.directory = directory
        self.stream = stream
        self.nodes = load_cluster(directory).nodes
        self.identity = Identity.generate(SystemRandom())

    def connect(self, node: int | None = None, timeout_s: float = 10.0) -> Client:
        """Connect with the drill's identity."""
        return Client.connect(self.directory, identity=self.identity, node=node, timeout=timeout_s)

    @contextlib.contextmanager
    def registered_client(self) -> Iterator[None]:
        """Register the drill's identity as a client for the duration of the block."""
        with Client.connect(self.directory, timeout=TIMEOUT_S) as admin:
            admin.add_client(self.stream, self.identity.key, write=[self.stream], read=[self.stream])
        for node in self.nodes:
            self._wait_until_accepted(node.id)
        try:
            yield
        finally:
            # The removal may fail: a faulty cluster may have lost the client, or removed it itself.
            with contextlib.suppress(ChaplainError), Client.connect(self.directory, timeout=TIMEOUT_S) as admin:
                admin.remove_client(self.stream)

    def _wait_until_accepted(self, node: int) -> None:
        end_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self.connect(node, TIMEOUT_S).close()
            except Refused:
                if time.monotonic() > end_s:
                    raise
                time.sleep(RETRY_S)
            else:
                return

    def read(self, stream_kind: str, how: Callable[[Client], T]) -> tuple[dict[int, T], list[BrokenPromise]]:
        """Read every node with `how`; return the readings, and a break for each node that could not be read.

        Reads with the admin's identity, because a faulty cluster may have removed the drill's own.
        """
        readings: dict[int, T] = {}
        found: list[BrokenPromise] = []
        for node in self.nodes:
            end_s = time.monotonic() + READABLE_S
            while True:
                try:
                    with Client.connect(self.directory, node=node.id, timeout=TIMEOUT_S) as client:
                        readings[node.id] = how(client)
                    break
                except ChaplainError as error:  # the node may still be repairing its log
                    if time.monotonic() > end_s:
                        detail = f"node {node.id}, for {READABLE_S:g} s: {error}"
                        found.append(BrokenPromise("unreadable", None, detail, stream_kind))
                        break
                    time.sleep(RETRY_S)
        return readings, found
