"""The PostgreSQL engine and what is around it: roles, queries, other executors, and what is set up wrongly."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from chaplain.executor.statement import StatementError
from chaplain.runtime.databases.interface import EngineFailed, QueryFailed
from chaplain.runtime.databases.postgres import connection, metadata, queries
from chaplain.runtime.databases.postgres.database import PostgresDatabase
from chaplain.runtime.databases.postgres.schema import Layout
from tests.support.postgres_server import USER, TestServer, missing
from tests.unit.executor.postgres.stage import PostgresPair, PostgresStage
from tests.unit.executor.sqlite_stage import ACL, START_NS, Order, statement

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(300)]
OTHER = b"B" * 15


def test_client_roles_may_only_change_rows_of_their_streams(server: TestServer, stage: PostgresStage) -> None:
    order = Order()
    stage.apply(order.message("create table t(k integer primary key)"))
    other = PostgresDatabase(stage.folder, "other", stage.place)
    other.apply(Order().message("create table t(k integer primary key)", acl=OTHER))
    other.close()
    layout = stage.engine._layout
    role = layout.client(ACL)[1:-1]

    def may(what: str) -> object:
        return stage.ask(f"select has_table_privilege('{role}', {what})")[0][0]

    assert [may(f"'{stage.schema}.t', '{right}'") for right in ("select", "insert", "update", "delete")] == [True] * 4
    assert [may(f"'{stage.schema}.t', '{right}'") for right in ("truncate", "trigger", "references")] == [False] * 3
    assert not any(may(f"'{table}', 'select'") for table in ("chaplain.state", "chaplain.results", "stream_other.t"))
    flags = "rolsuper, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication"
    assert stage.ask(f"select {flags} from pg_roles where rolname = '{role}'") == [(False,) * 5]
    assert stage.ask(f"select pg_has_role('{role}', '{USER}', 'member')") == [(False,)]
    reader = layout.role("reader")[1:-1]
    assert stage.ask(f"select has_table_privilege('{reader}', '{stage.schema}.t', 'update')") == [(False,)]


def test_dry_run_leaves_no_change(pair: PostgresPair) -> None:
    pair.run("create table t(k integer primary key)", "insert into t values (1)")
    engine, fingerprint = pair.steady.engine, pair.steady.engine.fingerprint

    def rehearse(*sql: str) -> StatementError | None:
        return engine.rehearse([statement(one) for one in sql], START_NS)

    assert rehearse("insert into t values (2)", "create table u(k integer primary key)") is None
    failed = rehearse("insert into t values (3)", "insert into t values (1)")
    assert failed is not None
    assert (failed.kind, failed.statement) == ("constraint", 1)
    assert rehearse("drop table t") is None
    assert rehearse("select pg_sleep(1)").kind == "refused"  # type: ignore[union-attr]
    assert rehearse("insert into t values (random() * 0 + 1)") is None, "that is left to chance"
    assert (engine.fingerprint, engine.index) == (fingerprint, 1)
    assert pair.steady.rows("select k from t") == [(1,)]
    assert pair.one("insert into t values (2)").error is None


def test_streams_of_any_name_have_separate_schemas(server: TestServer, tmp_path: Path) -> None:
    """Each has a schema, roles and connections that are no other's."""
    names = ["a" * 60, "a" * 59 + "b", "o'dd \"name; drop", "Größe", "x.y"]
    layouts = [Layout("one", name) for name in names]
    assert len({one.schema for one in layouts}) == len({one.label for one in layouts}) == len(names)
    assert all(len(one.label) <= 63 and len(one.client(ACL)) <= 65 for one in layouts)
    for name in names[1:3]:
        database = PostgresDatabase(tmp_path, name, server.make("one"))
        step = database.apply(Order().message("create table t(k integer primary key)", "insert into t values (1)"))
        assert step.failures == 0
        assert database.query("select k from t", ()).rows == ((1,),)
        database.close()


def test_second_executor_on_one_database_is_refused(
    stage: PostgresStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "PATIENCE_S", 0.2)
    with pytest.raises(EngineFailed, match="each node needs one of its own"):
        PostgresDatabase(tmp_path / "two", stage.stream, stage.place)


def test_query_returns_rows_and_cannot_change_them(stage: PostgresStage, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order()
    stage.apply(
        order.message("create table t(k integer primary key, v text)", "insert into t values (1, 'a'), (2, 'b')")
    )
    found = stage.engine.query("select k, v from t where k > :k order by k desc limit 5", {"k": 0})
    assert (found.index, found.columns, found.rows) == (1, ("k", "v"), ((2, "b"), (1, "a")))
    assert stage.engine.query("select k from t where k = ?", (9,)).rows == ()
    assert stage.rows("select row_number() over (order by k), k from t order by k") == [(1, 1), (2, 2)]
    assert stage.rows("select string_agg(v, ',' order by v desc) from t") == [("b,a",)]
    assert stage.rows(
        "with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select sum(n) from r"
    ) == [(15,)]
    refused = [
        "delete from t",
        "select * from chaplain.state",
        "select * from pg_class",
        "select pg_sleep(1)",
        "drop table t",
    ]
    refused += [
        "select absent from t",
        "select 1; select 2",
        "select k from t for update",
        "select t from t",
        "explain select 1",
    ]
    for sql in refused:
        with pytest.raises(QueryFailed):
            stage.engine.query(sql, ())
    assert len(stage.engine._readers._idle) == 1, "one connection was enough for all of them"
    endless = "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r"
    given_up = threading.Event()
    threading.Timer(0.3, given_up.set).start()
    with pytest.raises(QueryFailed, match="given up"):
        stage.engine.query(endless, (), given_up.is_set)
    monkeypatch.setattr(queries, "QUERY_ROWS_MAX", 1)
    with pytest.raises(QueryFailed, match="more than 1 rows"):
        stage.engine.query("select k from t", ())
    assert stage.rows("select count(*) from t") == [(2,)]


WRONG = [
    ({"host": "/nowhere"}, "start it, or correct postgres.host"),
    ({"user": "admin"}, "superuser"),
    ({"user": "nobody"}, "does not let nobody in"),
    ({"user": "weak"}, "alter role weak createrole"),
    ({"database": "absent"}, "create database absent owner chaplain"),
    ({"database": "postgres"}, "must be of UTF8 and collation C"),
    ({"password_file": "/nowhere"}, "cannot read postgres.password_file"),
]


def test_wrong_setup_is_reported_in_one_sentence(
    server: TestServer, stage: PostgresStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.1)
    server.ask("create role weak login password 'let me in'")
    for change, advice in WRONG:
        place = msgspec.structs.replace(stage.place, **change)
        with pytest.raises(EngineFailed, match=advice) as failed:
            PostgresDatabase(tmp_path / "wrong", "main", place)
        assert "let me in" not in str(failed.value)
        assert "\n" not in str(failed.value)


def test_password_file_readable_by_others_is_refused(stage: PostgresStage, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("let me in")
    file.chmod(0o644)
    with pytest.raises(EngineFailed, match="chmod 600"):
        PostgresDatabase(tmp_path / "wrong", "main", msgspec.structs.replace(stage.place, password_file=str(file)))
    file.write_text("guess")
    file.chmod(0o600)
    with pytest.raises(EngineFailed, match="does not let chaplain in"):
        PostgresDatabase(tmp_path / "wrong", "main", msgspec.structs.replace(stage.place, password_file=str(file)))
