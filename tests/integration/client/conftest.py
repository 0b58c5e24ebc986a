"""A cluster of three real nodes for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import chaplain


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a running cluster of three nodes."""
    made = tmp_path_factory.mktemp("clusters") / "three"
    chaplain("cluster", "up", "--nodes", "3", "--dir", made)
    yield made
    chaplain("cluster", "down", "--cluster", made)
