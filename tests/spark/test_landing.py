"""A table that is filled while the stream is written: continuously, and exactly, whoever is killed.

Kills of a Spark driver that lands are in test_pipeline_sink.py: one driver does both there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.journal.support.scenes import three
from tests.spark.support.landing import check_table, land_through_kills, measure_lag, rows_of

pytestmark = pytest.mark.timeout(900)


def test_rows_land_while_they_are_written(tmp_path: Path) -> None:
    with three(tmp_path / "three") as cluster:
        found = measure_lag(None, cluster, tmp_path / "tables", rows=20)
        check_table(cluster.directory, tmp_path / "tables", len(rows_of(tmp_path / "tables")))
    assert len(found) >= 20
    assert min(found) >= 0


def test_land_survives_kills_of_the_driver_and_of_a_node(tmp_path: Path) -> None:
    with three(tmp_path / "three") as cluster:
        land_through_kills(cluster, tmp_path / "tables", 5, seed=1, spark=False)
