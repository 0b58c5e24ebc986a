from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random

import pytest

from chaplain.link.auth.identity import Identity
from tests.support import client_threads
from tests.support.tiny_node import TinyNode


@pytest.fixture(autouse=True)
def _threads_before() -> None:
    client_threads.before = set(threading.enumerate())


class TinyCluster:
    """Three tiny nodes that know one client, and what a client needs to connect."""

    def __init__(self) -> None:
        self.identity = Identity.generate(Random(1))
        self.nodes = [TinyNode(seed, {self.identity.key: "alice"}) for seed in (10, 11, 12)]

    @property
    def how(self) -> dict[str, object]:
        return {
            "endpoints": [node.endpoint for node in self.nodes],
            "identity": self.identity,
            "node_keys": [node.identity.key for node in self.nodes],
        }

    def serving(self) -> TinyNode:
        """The node that has seen a request last, when only one has."""
        [node] = [node for node in self.nodes if node.requests]
        return node


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    made = TinyCluster()
    yield made
    for node in made.nodes:
        node.kill()
