"""Conditional writes on a whole journal: clients that compete for offsets and keys.

The nodes and their faults are those of `requests`. The oracle decides independently which conditions hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from chaplain.journal.model.bootstrap import ALL_STREAMS
from simulator.actors.conditional_client import ConditionalClient
from simulator.actors.journal_clients import SimClient
from simulator.workloads.requests import Requests

STREAMS = ("orders", "orders", "orders", "accounts")


class Conditions(Requests):
    people: ClassVar[Sequence[tuple[str, tuple[str, ...], bool]]] = (
        ("default", ALL_STREAMS, True),
        *((f"writer-{number}", ALL_STREAMS, False) for number in range(4)),
    )

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.thief = False

    def make_client(self, name: str, seed: bytes, acl: bytes) -> SimClient:
        return ConditionalClient(self, name, seed, acl, STREAMS)

    def keys_of(self, stream: str) -> list[bytes | None]:
        """The key of every message of the stream."""
        return self._checker.keys_of(stream)

    def tagged_of(self, stream: str) -> list[tuple[int, str]]:
        """The last offset and the tag of every tagged request of the stream."""
        return self._checker.tagged_of(stream)


WORKLOAD = Conditions
