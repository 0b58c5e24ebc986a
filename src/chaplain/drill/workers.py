"""Clients that append to a graph or publish on a sequence, each thing once, and what they saw of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaplain.client.sync import Client
from chaplain.drill.cluster import Access
from chaplain.drill.load import Worker
from chaplain.errors import Busy, Refused


@dataclass(slots=True)
class WriteAttempt:
    """One append or publish, as its client saw it."""

    value: bytes
    invoked_s: float
    acked_s: float = 0.0
    id: str = ""
    """Of a graph: what the receipt says."""
    number: int = 0
    """Of a sequence, likewise."""
    refused: str = ""
    """Why it surely did not happen."""


class Clerk(Worker):
    def __init__(self, access: Access, node: int, name: str, enter: Callable[[Client, WriteAttempt], None]) -> None:
        super().__init__(access, node, name)
        self.entries: list[WriteAttempt] = []
        self._enter = enter

    def turn(self, client: Client) -> None:
        entry = WriteAttempt(b"%d:%d" % (self.node, len(self.entries)), time.monotonic())
        self.entries.append(entry)
        try:
            self._enter(client, entry)
        except (Refused, Busy) as error:
            entry.refused = str(error) or "refused"
            raise
        entry.acked_s = time.monotonic()


class Clerks:
    """One at each node."""

    def __init__(self, access: Access, of: str, enter: Callable[[Client, WriteAttempt], None]) -> None:
        self._clerks = [Clerk(access, node.id, f"{of} at node {node.id}", enter) for node in access.nodes]

    def start(self) -> None:
        for clerk in self._clerks:
            clerk.start()

    def end(self) -> None:
        for clerk in self._clerks:
            clerk.stopped.set()
        for clerk in self._clerks:
            clerk.end()

    @property
    def entries(self) -> list[WriteAttempt]:
        return [entry for clerk in self._clerks for entry in clerk.entries.copy()]

    def acked(self, since_s: float) -> list[float]:
        return [entry.acked_s for entry in self.entries if entry.acked_s and entry.invoked_s >= since_s]


def counted(entries: Sequence[WriteAttempt]) -> tuple[int, int, int]:
    """How many are acknowledged, of unknown fate, and refused."""
    acknowledged = sum(bool(entry.acked_s) for entry in entries)
    refused = sum(bool(entry.refused) for entry in entries)
    return acknowledged, len(entries) - acknowledged - refused, refused
