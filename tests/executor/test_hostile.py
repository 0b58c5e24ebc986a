"""Hostile statements: each is refused, or done alike by executors that lived differently; the next one works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.executor.executor_stage import Pair
from tests.executor.hostile_statements import FINE, PREPARED, REFUSED


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    assert all(outcome.error is None for outcome in pair.run(*PREPARED))
    yield pair
    pair.close()


def test_there_are_enough() -> None:
    assert len({*REFUSED, *FINE}) >= 200


@pytest.mark.parametrize("part", range(8))
def test_refused(pair: Pair, part: int) -> None:
    fingerprint = pair.steady.engine.fingerprint
    for sql in REFUSED[part::8]:
        outcome = pair.one(sql)
        assert outcome.error is not None, sql
        assert pair.steady.engine.fingerprint == fingerprint, sql
    assert pair.one("insert into p values ('healthy')").error is None


def test_refused_among_others(pair: Pair) -> None:
    """All of one message, with good ones between: those and only those are done."""
    some = [sql for sql in REFUSED if "recursive" not in sql]
    requests = [request for n, sql in enumerate(some) for request in (sql, ("insert into p values (?)", (n,)))]
    outcomes = pair.run(*requests)
    assert [outcome.error is None for outcome in outcomes] == [False, True] * len(some)
    assert pair.steady.rows("select count(*) from p") == [(2 + len(some),)]


def test_fine(pair: Pair) -> None:
    failed = [sql for sql in FINE if pair.one(sql).error is not None]
    assert failed == ["insert into child values (99)", "create table odder(rowid text, _rowid_ text, oid text)"]


def test_fine_among_others(pair: Pair) -> None:
    outcomes = pair.run(*FINE)
    assert sum(outcome.error is not None for outcome in outcomes) == 2


def test_queries_change_nothing_and_tell_nothing(pair: Pair) -> None:
    from chaplain.runtime.databases.engine import QueryFailed

    fingerprint = pair.steady.engine.fingerprint
    for sql in [*REFUSED, "insert into p values (1)", "with x as (select 1) delete from p", "drop table t"]:
        if "union all select n + 1 from r)" in sql or "t d" in sql or "t b" in sql or "t w" in sql:
            continue  # bounded by time: the test below
        if "printf" in sql or "?" in sql or "group_concat" in sql:
            continue
        with pytest.raises(QueryFailed):
            pair.steady.engine.query(sql, ())
    assert pair.steady.engine.fingerprint == fingerprint
    assert pair.steady.counted() == pair.restarted.counted()
