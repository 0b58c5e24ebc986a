"""Row changes folded by Spark have the executors' own fingerprint."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaplain.errors import Missing
from chaplain.pipeline import fold
from chaplain.pipeline.landing.row_changes import fingerprint, tallies
from tests.spark.support.row_change_scenes import TABLES, requests
from tests.unit.executor.sqlite_stage import Database, Order

pytestmark = pytest.mark.timeout(400)

STATEMENTS = 2_000
A_MESSAGE = 500


def test_fold_of_row_changes_has_the_executors_fingerprint(spark, tmp_path: Path) -> None:
    order, database, chance = Order(), Database(tmp_path), random.Random(1)
    database.apply(
        order.message(
            *TABLES,
            "create table gone(a)",
            "insert into gone values (1), (2)",
            "insert into orders(id) values (1)",
        )
    )
    for _ in range(STATEMENTS // A_MESSAGE):
        database.apply(order.message(*requests(chance, A_MESSAGE)))
    database.apply(order.message("drop table gone", "alter table stock rename to store", "create view v as select 1"))
    reader = spark.read.format("chaplain").option("path", str(tmp_path / "rows" / "main")).option("kind", "rows")
    folded = fold(reader.option("subscribe", "main").load()).cache()
    assert tallies(folded) == database.tallies() == database.counted()
    assert fingerprint(folded) == database.engine.fingerprint
    with pytest.raises(Missing, match="schema"):
        fingerprint(folded.where("length(key) > 100"))
    database.engine.close()
