"""PostgreSQL executors on real nodes: from the client's call to every node's own database, and through kills."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaplain import Client
from chaplain.errors import Refused, StatementFailed
from tests.integration.journal.support.scenes import status
from tests.support.executor_scenes import fingerprints, kill_executors
from tests.support.postgres_scenes import TABLES, Postgres, three_with_postgres
from tests.support.postgres_server import missing
from tests.support.process_cluster import until

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with three_with_postgres(tmp_path_factory.mktemp("postgres") / "three") as postgres:
        yield postgres


def test_statements_results_and_queries_work_on_postgresql(postgres: Postgres) -> None:
    with Client.connect(postgres.cluster.directory, timeout=60) as client:
        sql = client.sql("accounts")
        sql.execute("create table t(a integer primary key, b text)")
        made = sql.execute("insert into t values (?, ?), (?, ?) returning a", [1, "x", 2, "y"])
        assert (made.changes, [row["a"] for row in made.rows]) == (2, [1, 2])
        with pytest.raises(StatementFailed, match="UNIQUE") as failed:
            sql.execute("insert into t(a) values (1)")
        assert failed.value.kind == "constraint"
        moved = sql.transaction([("update t set b = :b where a = 1", {"b": "z"}), "delete from t where a = 2"])
        assert moved.changes == 2
        assert [dict(row) for row in sql.query("select a, b from t")] == [{"a": 1, "b": "z"}]
        assert [result.ok for result in sql.results()] == [True, True, False, True]
        with pytest.raises(Refused, match="pg_sleep is not allowed"):
            sql.query("select pg_sleep(100)")
    until(lambda: len(found := fingerprints(postgres.cluster)) == 3 and len({*found}) == 1, "fingerprints are equal")


def test_killed_nodes_and_a_killed_server_apply_every_statement_once(postgres: Postgres) -> None:
    victims: list[int] = []

    def blow(victim: object) -> None:
        node = list(postgres.cluster)[(0, 2)[len(victims)]]
        victims.append(node.number)
        postgres.blow(node)
        until(node.ready, "the killed serves again")

    counts = kill_executors(postgres.cluster, kills=2, seed=1, writers=2, tables=TABLES, blow=blow)
    assert victims == [1, 3]
    assert postgres.server_kills == 1
    assert counts["statements acknowledged"] >= 10
    assert all(status(node)["databases"]["main"]["state"] != "stopped" for node in postgres.cluster)
