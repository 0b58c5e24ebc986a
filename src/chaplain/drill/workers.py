"""The writers of graphs and sequences: one at each node, and the record of what each of them saw."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaplain.client.sync import Client
from chaplain.drill.cluster import DrillCluster
from chaplain.drill.load import Worker
from chaplain.errors import Busy, Refused


@dataclass(slots=True)
class WriteAttempt:
    """One append or publish, as its client saw it. It is never retried."""

    value: bytes
    invoked_s: float
    acked_s: float = 0.0
    id: str = ""
    """Graph: the event id in the acknowledgement."""
    number: int = 0
    """Sequence: the number in the acknowledgement."""
    refused: str = ""
    """Why it certainly did not happen; "" if it was acknowledged or its outcome is unknown."""


class EntryWriter(Worker):
    """Writes one unique value after the other at one node."""

    def __init__(
        self, cluster: DrillCluster, node: int, name: str, write: Callable[[Client, WriteAttempt], None]
    ) -> None:
        super().__init__(cluster, node, name)
        self.attempts: list[WriteAttempt] = []
        self._write = write

    def run_once(self, client: Client) -> None:
        attempt = WriteAttempt(b"%d:%d" % (self.node, len(self.attempts)), time.monotonic())
        self.attempts.append(attempt)
        try:
            self._write(client, attempt)
        except (Refused, Busy) as error:
            attempt.refused = str(error) or "refused"
            raise
        attempt.acked_s = time.monotonic()


class EntryWriters:
    """One writer at each node."""

    def __init__(self, cluster: DrillCluster, stream_kind: str, write: Callable[[Client, WriteAttempt], None]) -> None:
        self._writers = [
            EntryWriter(cluster, node.id, f"{stream_kind} at node {node.id}", write) for node in cluster.nodes
        ]

    def start(self) -> None:
        for writer in self._writers:
            writer.start()

    def end(self) -> None:
        for writer in self._writers:
            writer.stopped.set()
        for writer in self._writers:
            writer.end()

    @property
    def attempts(self) -> list[WriteAttempt]:
        return [attempt for writer in self._writers for attempt in writer.attempts.copy()]

    def acked(self, since_s: float) -> list[float]:
        """Return the acknowledgement times of all attempts that began after this time."""
        return [attempt.acked_s for attempt in self.attempts if attempt.acked_s and attempt.invoked_s >= since_s]


def counted(attempts: Sequence[WriteAttempt]) -> tuple[int, int, int]:
    """Return how many attempts were acknowledged, have an unknown outcome, and were refused."""
    acknowledged = sum(bool(attempt.acked_s) for attempt in attempts)
    refused = sum(bool(attempt.refused) for attempt in attempts)
    return acknowledged, len(attempts) - acknowledged - refused, refused
