"""Row changes folded by Spark have the executors' own fingerprint."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.executor.executor_stage import Database, Order, Request

from chaplain.errors import Missing
from chaplain.pipeline import fold
from chaplain.pipeline.row_changes import fingerprint, tallies

pytestmark = pytest.mark.timeout(400)

STATEMENTS = 100_000
A_MESSAGE = 2_000
LONG = "t" * 40


def requests(chance: random.Random, count: int) -> list[Request]:
    """Inserts, updates and deletes, with a failure now and then."""
    kinds: list[tuple[str, int]] = [
        ("insert into orders(who, what) values (?, ?)", 6),
        ("insert or replace into stock(what, count) values (?, abs(random()) % 100)", 2),
        ("update orders set what = ? where id = ?", 2),
        ("delete from orders where id = ?", 1),
        (f"insert into {LONG} values (?)", 1),
        ("insert into orders(id) values (1)", 1),
    ]
    made: list[Request] = []
    for sql in chance.choices([sql for sql, _ in kinds], [weight for _, weight in kinds], k=count):
        values = tuple(chance.randrange(30_000) for _ in range(sql.count("?")))
        made.append((sql, values))
    return made


def test_a_fold_of_row_changes_has_the_executors_fingerprint(spark, tmp_path: Path) -> None:
    order, database, chance = Order(), Database(tmp_path), random.Random(1)
    database.apply(
        order.message(
            "create table orders(id integer primary key, who, what)",
            "create table stock(what primary key, count) without rowid",
            f"create table {LONG}(a)",
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
