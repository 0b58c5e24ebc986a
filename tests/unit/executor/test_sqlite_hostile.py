"""Hostile statements: each is refused, or done alike by executors that lived differently; the next one works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain.runtime.databases.interface import EngineFailed
from chaplain.runtime.databases.sqlite import execute
from tests.unit.executor.hostile_statements import FINE, PREPARED, REFUSED
from tests.unit.executor.sqlite_stage import Database, Order, Pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    assert all(outcome.error is None for outcome in pair.run(*PREPARED))
    yield pair
    pair.close()


def test_hostile_list_has_at_least_200_statements() -> None:
    assert len({*REFUSED, *FINE}) >= 200


@pytest.mark.parametrize("part", range(8))
def test_hostile_statement_is_refused_and_changes_nothing(pair: Pair, part: int) -> None:
    fingerprint = pair.steady.engine.fingerprint
    for sql in REFUSED[part::8]:
        outcome = pair.one(sql)
        assert outcome.error is not None, sql
        assert pair.steady.engine.fingerprint == fingerprint, sql
    assert pair.one("insert into p values ('healthy')").error is None


def test_hostile_statements_are_refused_among_good_ones(pair: Pair) -> None:
    """All of one message, with good ones between: those and only those are done."""
    some = [sql for sql in REFUSED if "recursive" not in sql]
    requests = [request for n, sql in enumerate(some) for request in (sql, ("insert into p values (?)", (n,)))]
    outcomes = pair.run(*requests)
    assert [outcome.error is None for outcome in outcomes] == [False, True] * len(some)
    assert pair.steady.rows("select count(*) from p") == [(2 + len(some),)]


def test_allowed_statements_succeed(pair: Pair) -> None:
    failed = [sql for sql in FINE if pair.one(sql).error is not None]
    assert failed == ["insert into child values (99)", "create table odder(rowid text, _rowid_ text, oid text)"]


def test_allowed_statements_succeed_among_others(pair: Pair) -> None:
    outcomes = pair.run(*FINE)
    assert sum(outcome.error is not None for outcome in outcomes) == 2


def test_hostile_queries_change_nothing_and_reveal_nothing(pair: Pair) -> None:
    from chaplain.runtime.databases.interface import QueryFailed

    fingerprint = pair.steady.engine.fingerprint
    for sql in [*REFUSED, "insert into p values (1)", "with x as (select 1) delete from p", "drop table t"]:
        if "union all select n + 1 from r)" in sql or "t d" in sql or "t b" in sql or "t w" in sql:
            continue  # bounded by time: the test below
        if "printf" in sql or "?" in sql or "group_" in sql:
            continue
        with pytest.raises(QueryFailed):
            pair.steady.engine.query(sql, ())
    assert pair.steady.engine.fingerprint == fingerprint
    assert pair.steady.counted() == pair.restarted.counted()


ROWS = "with recursive r(n) as (select 1 union all select n + 1 from r limit {}) "


def test_query_above_its_memory_bound_is_stopped_and_the_next_one_runs(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What gathers rows as JSON grows without bound: with rows enough, by all the memory there is."""
    from chaplain.runtime.databases.sqlite import queries

    monkeypatch.setattr(queries, "QUERY_MEMORY_MAX", 4 << 20)
    gather = "select json_array_length(json_group_array({})) from r"
    with pytest.raises(queries.QueryFailed, match="memory"):
        pair.steady.engine.query(ROWS.format(500) + gather.format("hex(zeroblob(100000)) || n"), ())
    assert pair.steady.rows(ROWS.format(500) + gather.format("n")) == [(500,)]


@pytest.mark.parametrize("requests", [1, 2])
def test_message_above_the_processor_time_stops_the_executor_without_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    """It is another moment on each executor: whoever is quicker, or is started again, goes on as if it had not been."""
    order, database = Order(), Database(tmp_path)
    database.apply(order.message("create table t(a)"))
    work = order.message(*["insert into t " + ROWS.format(2000) + "select n from r"] * requests)
    with monkeypatch.context() as slow:
        slow.setattr(execute, "MESSAGE_CPU_S_MAX", 0.0)
        with pytest.raises(EngineFailed, match="take more than"):
            database.apply(work)
    database.reopen()
    assert (database.engine.index, database.rows("select count(*) from t")) == (1, [(0,)])
    database.apply(work)
    assert [outcome.error for outcome in database.outcomes()] == [None] * (1 + requests)
    assert database.rows("select count(*) from t") == [(2000 * requests,)]
    database.engine.close()
