"""A cluster of one node, as a newcomer may have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain.runtime.cluster.local import bring_down
from tests.integration.product.product_shell import Shell


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, CHAPLAIN_CLUSTER=str(tmp_path / "c"))
    shell.worked("chaplain cluster up --nodes 1 --dir c")
    yield shell
    bring_down(tmp_path / "c")
