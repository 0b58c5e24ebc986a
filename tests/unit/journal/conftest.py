"""A cluster of three journals in memory, and a client at its first node."""

from __future__ import annotations

import pytest

from tests.support.journal_cluster import Client, Cluster


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.elect()
    return made


@pytest.fixture
def client(cluster) -> Client:
    return Client(cluster).connect(1)
