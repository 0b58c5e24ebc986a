"""A PostgreSQL server for a file of tests, and a stream of its own for each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres_server import TestServer, a_server
from tests.unit.executor.postgres.stage import PostgresPair, PostgresStage

_streams = (f"s{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with a_server() as server:
        yield server


@pytest.fixture
def stream() -> str:
    return next(_streams)


@pytest.fixture
def pair(server: TestServer, tmp_path: Path) -> Iterator[PostgresPair]:
    pair = PostgresPair(server, tmp_path, next(_streams))
    yield pair
    pair.close()


@pytest.fixture
def stage(server: TestServer, tmp_path: Path) -> Iterator[PostgresStage]:
    stage = PostgresStage(server, "one", tmp_path / "one", next(_streams))
    yield stage
    stage.engine.close()
