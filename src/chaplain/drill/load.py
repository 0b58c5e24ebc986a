"""Clients at work during a drill: what every kind of load is, and the thread that most of them are made of."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from chaplain.client.sync import Client
from chaplain.core import Frozen
from chaplain.drill.cluster import AGAIN_S, PATIENCE_S, Access
from chaplain.drill.violations import Judged
from chaplain.errors import ChaplainError

PACE_S = 0.02


class Blow(Frozen, frozen=True):
    """Something was done to nodes."""

    from_s: float
    over_s: float
    """When it was undone: all were up again."""
    to_s: float
    """When everybody had found everybody."""
    forgets: bool
    """So many died at once that no majority remembers what was in memory alone."""


class Load(Protocol):
    of: str

    def start(self) -> None: ...

    def acked_since(self, since_s: float) -> int:
        """How many things that were begun after this moment are acknowledged."""
        ...

    def first_acked(self, since_s: float) -> float | None:
        """When the first of them was."""
        ...

    def missing(self, since_s: float, statuses: Sequence[Mapping[str, object]]) -> str:
        """What is not yet as it was before a blow; empty if nothing."""
        ...

    def end(self) -> None:
        """Stop the clients, and wait for them."""
        ...

    def judge(self, blows: Sequence[Blow]) -> Judged:
        """Read every node, and compare."""
        ...


class Worker(threading.Thread):
    """Does the same at one node again and again, and comes back when its node does."""

    def __init__(self, access: Access, node: int, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self.node = node
        self.failure: BaseException | None = None
        self.access = access
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self._visit()
                self.stopped.wait(AGAIN_S)
        except BaseException as error:  # told by whoever ends the thread
            self.failure = error

    def _visit(self) -> None:
        try:
            with self.access.connect(self.node) as client:
                self.begin(client)
                while not self.stopped.is_set():
                    self.turn(client)
                    self.stopped.wait(PACE_S)
        except ChaplainError:
            pass  # whatever it was about has been noted; the node is down, or not whole again

    def begin(self, client: Client) -> None:
        """It has come to its node, or come back to it."""

    def turn(self, client: Client) -> None:
        """Do it once. What it raises ends the visit."""
        raise NotImplementedError

    def end(self) -> None:
        self.stopped.set()
        self.join(PATIENCE_S)
        if self.is_alive() or self.failure is not None:
            raise ChaplainError(f"{self.name} did not end well: {self.failure or 'it hangs'}")
