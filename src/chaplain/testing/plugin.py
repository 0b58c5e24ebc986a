"""The pytest plugin: fixtures, and nothing else. It imports chaplain when a fixture is used for the first time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from chaplain.client.sync import Client
    from chaplain.testing.cluster import Cluster


@pytest.fixture(scope="session")
def chaplain_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one node, for the whole test run; with xdist, each worker has one."""
    from chaplain.testing.cluster import Cluster  # noqa: PLC0415  every project that has chaplain installed pays

    with Cluster(tmp_path_factory.mktemp("chaplain")) as cluster:
        yield cluster


@pytest.fixture
def chaplain_client(chaplain_cluster: Cluster) -> Iterator[Client]:
    """A client of `chaplain_cluster`. A node that another test killed or paused serves again."""
    chaplain_cluster.start()
    with chaplain_cluster.connect() as client:
        yield client


@pytest.fixture
def chaplain_stream(chaplain_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A name of a stream that no other test uses."""
    return chaplain_cluster.unique(request.node.name)
