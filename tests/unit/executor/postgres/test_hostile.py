"""Hostile statements for PostgreSQL: refused, or done alike by executors that lived differently; the next one works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaplain.runtime.databases.interface import QueryFailed
from chaplain.runtime.databases.postgres.guard_result import Denied
from chaplain.runtime.databases.postgres.parameters import translated
from chaplain.runtime.databases.postgres.statement_guard import judge
from tests.support.postgres_server import a_server, missing
from tests.unit.executor.postgres.stage import PostgresPair
from tests.unit.executor.postgres.statements import FINE, FINE_FAILS, NO_QUERY, PREPARED, REFUSED, UNORDERED

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresPair]:
    with a_server() as server:
        pair = PostgresPair(server, tmp_path_factory.mktemp("hostile"))
        assert all(outcome.error is None for outcome in pair.run(*PREPARED))
        yield pair
        pair.close()


def test_hostile_list_has_at_least_300_statements() -> None:
    assert len({*REFUSED, *UNORDERED, *FINE, *FINE_FAILS}) >= 300


def test_hostile_statements_are_refused_among_good_ones(pair: PostgresPair) -> None:
    """All of one message, with good ones between: those and only those are done."""
    statements = [*REFUSED, *UNORDERED]
    places = range(0, len(statements), 10)
    requests: list = [[sql] for sql in statements]
    for done, place in enumerate(places):
        requests.insert(place + done, [("insert into p values (?)", (f"healthy {place}",))])
    outcomes = pair.run(*requests)
    done = [request for request, outcome in zip(requests, outcomes, strict=True) if outcome.error is None]
    assert done == [request for request in requests if "healthy" in str(request)]
    assert pair.steady.rows("select count(*) from p where k like 'healthy%'") == [(len(places),)]


def test_allowed_statements_succeed(pair: PostgresPair) -> None:
    outcomes = pair.run(*FINE)
    assert [(sql, one.error) for sql, one in zip(FINE, outcomes, strict=True) if one.error] == []
    outcomes = pair.run(*FINE_FAILS)
    assert [sql for sql, one in zip(FINE_FAILS, outcomes, strict=True) if one.error is None] == []


def test_hostile_queries_change_nothing_and_reveal_nothing(pair: PostgresPair) -> None:
    fingerprint = pair.steady.engine.fingerprint
    changes = [
        "insert into p values ('q')",
        "with x as (select 1) delete from p",
        "drop table t",
        "update t set b = 'q'",
    ]
    for sql in [*NO_QUERY, *changes]:
        with pytest.raises(QueryFailed):
            pair.steady.engine.query(sql, ())
    for sql in UNORDERED:
        pair.steady.engine.query(sql, ())
    assert pair.steady.engine.fingerprint == fingerprint
    assert pair.steady.counted() == pair.restarted.counted()


def test_guard_verdict_depends_only_on_the_text() -> None:
    """Whatever was judged before, and whether or not it was remembered."""

    def verdict(sql: str) -> object:
        try:
            return judge(translated(sql)[0])
        except Denied as denied:
            return str(denied)

    statements = [*REFUSED, *UNORDERED, *FINE, *FINE_FAILS]
    first = [verdict(sql) for sql in statements]
    assert [verdict(sql) for sql in reversed(statements)] == first[::-1]
    assert sum(isinstance(one, str) for one in first) > 250
    assert not any(isinstance(verdict(sql), str) for sql in [*FINE, *FINE_FAILS])
