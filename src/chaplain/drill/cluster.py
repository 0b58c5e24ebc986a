"""How a drill gets at its cluster: who its clients are, and how its nodes are read in the end.

The clients are of an identity of the drill's own, which has a right to the drill's stream and to nothing else. So
whatever a broken cluster comes to think of them, it is not the admin's identity that it thinks it of.
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

PATIENCE_S = 60.0
READABLE_S = 120.0
AGAIN_S = 0.5
"""Between two tries: a node counts knocks, and turns away who knocks too often."""
T = TypeVar("T")


class Access:
    def __init__(self, directory: Path, stream: str) -> None:
        self.directory = directory
        self.stream = stream
        self.nodes = load_cluster(directory).nodes
        self.identity = Identity.generate(SystemRandom())

    def connect(self, node: int | None = None, timeout_s: float = 10.0) -> Client:
        """As one of the drill's clients."""
        return Client.connect(self.directory, identity=self.identity, node=node, timeout=timeout_s)

    @contextlib.contextmanager
    def granted(self) -> Iterator[None]:
        """While the cluster knows the drill's identity."""
        with Client.connect(self.directory, timeout=PATIENCE_S) as admin:
            admin.add_client(self.stream, self.identity.key, write=[self.stream], read=[self.stream])
        for node in self.nodes:
            self._wait_for(node.id)
        try:
            yield
        finally:
            # One that was forgotten, or ended by the cluster itself, need not be removed.
            with contextlib.suppress(ChaplainError), Client.connect(self.directory, timeout=PATIENCE_S) as admin:
                admin.remove_client(self.stream)

    def _wait_for(self, node: int) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.connect(node, PATIENCE_S).close()
            except Refused:
                if time.monotonic() > end_s:
                    raise
                time.sleep(AGAIN_S)
            else:
                return

    def read(self, of: str, how: Callable[[Client], T]) -> tuple[dict[int, T], list[BrokenPromise]]:
        """What each node has, and which nodes could not be read. As an admin: the drill's own identity may be gone."""
        readings: dict[int, T] = {}
        found: list[BrokenPromise] = []
        for node in self.nodes:
            end_s = time.monotonic() + READABLE_S
            while True:
                try:
                    with Client.connect(self.directory, node=node.id, timeout=PATIENCE_S) as client:
                        readings[node.id] = how(client)
                    break
                except ChaplainError as error:  # it may still be repairing its log
                    if time.monotonic() > end_s:
                        found.append(
                            BrokenPromise("unreadable", None, f"node {node.id}, for {READABLE_S:g} s: {error}", of)
                        )
                        break
                    time.sleep(AGAIN_S)
        return readings, found
