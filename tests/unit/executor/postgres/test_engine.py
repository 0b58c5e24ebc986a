"""The PostgreSQL engine: each request once, whatever dies; alike on servers that lived differently, and as SQLite."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chaplain.executor.fingerprint import SCHEMA_KEY
from chaplain.executor.statement import decode_run
from chaplain.runtime.databases.change_log import CHANGES, ChangeLog
from chaplain.runtime.databases.interface import EngineFailed
from chaplain.runtime.databases.postgres import execute, metadata, row_tracker
from chaplain.runtime.databases.postgres.database import PostgresDatabase
from chaplain.runtime.databases.postgres.metadata import PostgresStore
from tests.support.postgres_server import TestServer, a_server, missing
from tests.unit.executor.postgres.stage import PostgresPair, PostgresStage
from tests.unit.executor.sqlite_stage import ACL, START_NS, Database, Order, told

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(300)]
OTHER = b"B" * 15
SAME = [
    ["create table t(a integer primary key, b text, c double precision, d bytea, e boolean)"],
    [
        ("insert into t values (?, ?, ?, ?, true)", (1, "x", 1.5, b"\x00\xff")),
        ("insert into t values (:a, :b, :c, :d, false)", {"a": 2, "b": "ÿ€\U0001f600", "c": -2.25, "d": None}),
        "insert into t(a, c) values (3, 7), (4, 1e300), (5, -0.1)",
    ],
    [
        "update t set b = b || '?', c = c * 2 where a < 3",
        "insert into t(a) values (1)",
        "update t set a = 70 where a = 2",
    ],
    ["create index i on t(b)", "create unique index if not exists j on t(a, b)"],
    ["select a, b, e from t where a = 1", "delete from t where a = 70 returning a, b"],
    [["insert into t(a) values (10)", "insert into t(a) values (10)"], ["insert into t(a) values (11)"]],
    ["create table if not exists u(k integer primary key, at text default current_timestamp)"],
    ["insert into u(k) values (1)", "insert into u select a + 100, b from t where b is not null"],
    ["insert into u(k, at) values (1, 'later') on conflict (k) do update set at = excluded.at"],
    [
        "drop index i",
        "drop table u",
        "create table u(k integer primary key, n bigint)",
        "insert into u values (1, 4294967296)",
    ],
    ["select count(*), sum(a), min(b), max(c) from t", "insert into absent values (1)", "select absent from t"],
    [
        [
            "insert into t(a) values (500)",
            "savepoint one",
            "insert into t(a) values (501)",
            "update t set b = 'undone' where a = 500",
            "create table v(k integer primary key)",
            "insert into v values (1)",
            "drop table u",
            "savepoint one",
            "delete from t",
            "rollback to one",
            "release one",
            "rollback to savepoint one",
            "insert into t(a) values (502)",
            "release savepoint one",
        ],
        ["insert into t(a) values (503)", "savepoint one"],
        ["insert into t(a) values (504)", "rollback to one"],
        ["insert into t(a) values (505)", "rollback to chaplain_0"],
        ["savepoint a", *["insert into t(a) values (506)", "rollback to a"] * 20, "insert into t(a) values (507)"],
        [f"savepoint s{number}" for number in range(17)],
        "insert into v values (2)",
        "insert into u values (3, 3)",
        "select a from t where a >= 500",
    ],
    ["update t set e = true", "update t set a = 1000 where a = 1", "delete from t"],
]


def test_statements_give_equal_results_on_two_servers_and_sqlite(pair: PostgresPair, tmp_path: Path) -> None:
    lite = Database(tmp_path)
    order = Order()
    for message in SAME:
        outcomes = pair.run(*message)  # type: ignore[arg-type]
        step = lite.apply(order.message(*message))  # type: ignore[arg-type]
        assert step.fingerprint == pair.steady.engine.fingerprint, message
        for ours, theirs in zip(outcomes, lite.outcomes()[-len(outcomes) :], strict=True):
            assert (ours.error is None) == (theirs.error is None), (message, ours, theirs)
            assert [(a.changes, a.rows) for a in ours.answers] == [(a.changes, a.rows) for a in theirs.answers]
    assert pair.steady.tallies() == lite.tallies()
    lite.engine.close()
    ours, theirs = told(pair.steady.folder, pair.steady.stream), told(tmp_path)
    assert [change for change in ours if change[0] != SCHEMA_KEY] == [one for one in theirs if one[0] != SCHEMA_KEY]


def test_failures_have_chaplains_own_messages(pair: PostgresPair) -> None:
    pair.run(
        "create table p(k integer primary key check (k > 0), v varchar(3) not null)",
        "create table c(k integer primary key references p(k))",
        "insert into p values (1, 'a')",
    )
    said = {
        "insert into p values (1, 'b')": ("constraint", "UNIQUE constraint failed: p_pkey"),
        "insert into p values (0, 'b')": ("constraint", "CHECK constraint failed: p_k_check"),
        "insert into p values (2, null)": ("constraint", "NOT NULL constraint failed: v"),
        "insert into c values (9)": ("constraint", "FOREIGN KEY constraint failed: c_k_fkey"),
        "insert into p values (2, 'long')": ("error", "text too long for its column (SQLSTATE 22001)"),
        "update p set v = k / 0": ("error", "division by zero (SQLSTATE 22012)"),
        "insert into p values (3000000000, 'b')": ("error", "number out of range (SQLSTATE 22003)"),
        "insert into p values ('x', 'b')": ("error", "text that is no value of the type (SQLSTATE 22P02)"),
        "select absent from p": ("error", "no such column (SQLSTATE 42703)"),
        "select k from absent": ("error", "no such table: absent"),
        "create table p(k integer primary key)": ("error", "there is already a table or an index named p"),
        "drop table p": ("error", "something else depends on it (SQLSTATE 2BP01)"),
        "create table q(k integer)": ("limit", "q needs a primary key: rows are known by it"),
    }
    outcomes = pair.run(*said)
    assert [(one.error.kind, one.error.message) for one in outcomes if one.error] == list(said.values())
    assert pair.steady.rows("select k from p") == [(1,)]


def test_schema_changes_and_rows_share_a_request(pair: PostgresPair) -> None:
    pair.run("create table t(a integer, b text, primary key (b, a))", "insert into t values (1, 'x'), (2, 'y')")
    pair.run("create index i on t(a)", "alter table t add column c integer default 7")
    pair.run("alter table t rename column c to d", "alter table t rename to z", "update z set d = 8 where a = 1")
    pair.run(
        "alter table z drop column d", ["alter table z alter column a set default 5", "insert into z(b) values ('w')"]
    )
    pair.run(["create table t(k uuid primary key)", "insert into t values ('0a0a0a0a-0a0a-4a0a-8a0a-0a0a0a0a0a0a')"])
    pair.run(["drop table t", "nonsense"], ["drop table z", "create table z(a integer primary key)"])
    pair.run("drop table t", "drop table if exists t", "drop table z")
    assert [one.error for one in pair.steady.outcomes() if one.error and one.error.kind != "refused"] == []
    assert pair.steady.tallies() == {}


def test_time_and_random_values_come_from_the_message(pair: PostgresPair) -> None:
    pair.run("create table t(k integer primary key, at text default now(), n double precision, u uuid)")
    pair.run("insert into t(k, n, u) values (1, random(), gen_random_uuid()), (2, random(), gen_random_uuid())")
    pair.run(
        "insert into t(k, n, u) values (3, random(), gen_random_uuid())", "insert into t(k, n) values (4, random())"
    )
    rows = pair.steady.rows("select at, n, u from t order by k")
    assert rows == pair.restarted.rows("select at, n, u from t order by k")
    assert rows[0][0] == "2023-11-14 22:13:20"
    assert len({row[1] for row in rows}) == 4
    assert len({row[2] for row in rows[:3]}) == 3
    assert all(0 <= row[1] < 1 for row in rows)  # type: ignore[operator]
    (outcome,) = pair.run("select unixepoch() from t where k = 1")
    assert outcome.answers[0].rows == ((START_NS // 10**9,),)


def test_float_sums_are_independent_of_row_order(pair: PostgresPair) -> None:
    pair.run("create table t(k integer primary key, n double precision)")
    values = [1e17, 0.1, -1e17, 0.3, 1e-5, 7.0]
    pair.run(*[("insert into t values (?, ?)", (k, n)) for k, n in enumerate(values)])
    first = pair.steady.rows("select sum(n), avg(n) from t")
    pair.run("delete from t")
    pair.run(*[("insert into t values (?, ?)", (k, n)) for k, n in enumerate(reversed(values))])
    assert pair.steady.rows("select sum(n), avg(n) from t") == first


def test_results_are_independent_of_row_placement(pair: PostgresPair) -> None:
    pair.run("create table t(k integer primary key, g integer, v text)", "create index backwards on t(v)")
    pair.run(*[("insert into t values (?, ?, ?)", (k, k % 7, f"{97 * k % 101:03}")) for k in range(40)])
    one = pair.restarted
    one.ask(f"cluster {one.schema}.t using backwards")
    one.ask(f"analyze {one.schema}.t")
    outcomes = pair.run(
        "select k, v from t where g > 2",
        "select g, count(*), sum(k), min(v) from t group by g",
        "update t set v = v || '!' where g = 3 returning k",
        "delete from t where g = 5 returning *",
        "insert into t select k + 1000, g, v from t where g < 3 returning k",
        "select distinct g from t",
        "select a.k, b.k from t a join t b on a.g = b.g and a.k < b.k where a.g = 1",
    )
    assert [one.error for one in outcomes] == [None] * len(outcomes)
    assert len(outcomes[0].answers[0].rows) > 10


def test_key_updates_that_depend_on_row_order_are_refused(pair: PostgresPair) -> None:
    """A server looks for a key that is taken row by row: what counts up from below meets the next, from above not."""
    pair.run(
        "create table t(k integer primary key, n integer unique, g integer, h integer, v text)",
        "create table c(k integer primary key references t(n), v text)",
        "create table tree(k integer primary key, up integer references tree(k) on delete restrict, v text)",
        "create unique index two on t(g, h)",
        *[f"create index back_{table} on {table}(v)" for table in ("t", "c", "tree")],
    )
    pair.run(*[("insert into t values (?, ?, 1, ?, ?)", (k, k, k, f"{200 - k}")) for k in range(20)])
    pair.run(*[("insert into tree values (?, ?, ?)", (k, k - 1 if k else None, f"{200 - k}")) for k in range(20)])
    pair.run(*[("insert into c values (?, ?)", (k, f"{200 - k}")) for k in range(5)])
    assert not any(outcome.error for outcome in pair.steady.outcomes())
    one = pair.restarted
    for table in ("t", "c", "tree"):
        one.ask(f"cluster {one.schema}.{table} using back_{table}")
    computed = [
        "update t set k = k + 1",
        "update t set n = n + 1 where n > 4 returning n",
        "update t set v = '', h = h + 1",
        "update t set g = (select max(x.k) from t x where x.k < t.k)",
        ("update t as x set k = x.k + ?", (1,)),
        "update tree set k = k + 1",
    ]
    for outcome in pair.run(*computed):
        assert outcome.error is not None
        assert outcome.error.kind == "refused"
        assert "set it to a value, or delete and insert" in outcome.error.message
    outcomes = pair.run(
        ("update t set g = ?, v = v || '!'", (7,)),  # no two have the same h
        "update t set g = cast('8' as integer) where k > 10",
        "update t set h = 7 where k > 10 and k < 13",  # two of 8, 7
        ("update t set n = 7 where k = ?", (9,)),  # taken
        "update t set n = 3 where k = 3",  # as it was
        "update t set n = 4 + k where k = 4",
        "update t set n = 103 where k = 3",  # referred to
        "update t set n = default where k > 10",  # null is no key
        "update c set k = 0",
        "delete from tree where k > 9",  # each is referred to by the next, which goes as well
        "delete from tree where k < 5",
        "insert into t(k, n) values (5, 5) on conflict (k) do update set k = t.k + 100, n = t.n + 100",
    )
    kinds = ["" if one.error is None else one.error.kind for one in outcomes]
    refers = ["constraint", "", "constraint", "", "constraint", ""]
    assert kinds == ["", "", "constraint", "constraint", "", "refused", *refers]
    pair.run("drop index two")
    assert pair.one("update t set h = h + 1").error is None
    assert pair.one(["create unique index two on t(g, h)", "update t set h = h + 1"]).error is not None


def test_engine_killed_at_any_commit_completes_the_message_once(
    server: TestServer, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a message is left, the rest of it and nothing else is done when the database is opened again."""
    steady = PostgresStage(server, "one", tmp_path / "steady", stream)
    dying = PostgresStage(server, "two", tmp_path / "dying", stream)
    order = Order()
    works = [
        order.message("create table t(k integer primary key, n integer)", "insert into t values (1, 0)"),
        order.message("update t set n = n + 1", "bad", "insert into t values (2, 10)", "update t set n = n + 1"),
    ]
    for stage in (steady, dying):
        stage.apply(works[0])
    commit = PostgresStore.commit
    for survives in range(4):
        left = [1]

        def fail(store: PostgresStore, *arguments: object, left: list[int] = left) -> None:
            if not left:
                raise EngineFailed("dies")
            left.pop()
            commit(store, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(PostgresStore, "commit", fail)
        if survives < 3:
            with pytest.raises(EngineFailed, match="dies"):
                dying.apply(works[1])
        else:
            dying.apply(works[1])
        assert dying.engine.index == (2 if survives == 3 else 1)
        monkeypatch.undo()
        dying.reopen()
    assert dying.engine.apply(works[1]).fingerprint == steady.apply(works[1]).fingerprint
    assert dying.rows("select n from t order by k") == [(2,), (11,)]
    assert dying.folded() == steady.folded() == steady.engine.fingerprint
    assert dying.outcomes() == steady.outcomes()
    for stage in (steady, dying):
        stage.engine.close()


def test_transaction_with_an_unexpected_position_fails(stage: PostgresStage) -> None:
    order = Order()
    stage.apply(order.message("create table t(k integer primary key)"))
    stage.ask(f"update chaplain.state set requests = requests + 1 where stream = '{stage.stream}'")
    with pytest.raises(EngineFailed, match="position"):
        stage.apply(order.message("insert into t values (1)"))
    assert stage.ask(f"select * from {stage.schema}.t") == []
    with pytest.raises(EngineFailed, match="before"):
        stage.apply(order.message("insert into t values (2)"))


def test_database_is_rebuilt_if_row_changes_are_missing(stage: PostgresStage) -> None:
    order = Order()
    works = [order.message("create table t(k integer primary key)", "insert into t values (1), (2)")]
    stage.apply(works[0])
    fingerprint = stage.engine.fingerprint
    stage.engine.close()
    shutil.rmtree(stage.folder / CHANGES)
    stage.engine = PostgresDatabase(stage.folder, stage.stream, stage.place)
    assert stage.engine.index == 0
    assert stage.apply(works[0]).fingerprint == fingerprint == stage.folded()


def test_read_marks_are_remembered_up_to_a_bound(stage: PostgresStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "READ_MAX", 3)
    stage.apply(Order().message("create table t(k integer primary key)"))
    stage.engine.clear(ACL, [(1, 3), (2, 7)])
    stage.engine.clear(OTHER, [(1, 9)])
    stage.engine.clear(ACL, [(1, 4), (2, 6)])
    stage.reopen()
    assert sorted(stage.engine.read) == [(ACL, 1, 4), (ACL, 2, 7), (OTHER, 1, 9)]
    stage.engine.clear(ACL, [(8, 1)])
    stage.reopen()
    assert stage.engine.read == ((OTHER, 1, 9), (ACL, 1, 4), (ACL, 8, 1))


def test_results_are_stored_until_read_and_bounded_per_client(
    stage: PostgresStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = Order()
    stage.apply(order.message("create table t(k integer primary key)", "insert into t values (1)"))
    stage.apply(order.message("insert into t values (2)", lane=2, acl=OTHER))
    assert len(stage.outcomes()) == 2
    assert [run.first_id for run in map(decode_run, stage.engine.results(ACL, 1, 2, 9))] == [2]
    stage.engine.clear(OTHER, [(1, 9)])
    assert (len(stage.outcomes()), len(stage.outcomes(OTHER))) == (2, 1)
    stage.engine.clear(ACL, [(1, 1)])
    assert (len(stage.outcomes()), len(stage.outcomes(OTHER))) == (1, 1)
    monkeypatch.setattr(metadata, "RESULT_BYTES_MAX", 200)
    stage.apply(order.message(*["select k from t"] * 30))
    assert 1 < len(stage.outcomes()) < 20
    assert len(stage.outcomes(OTHER)) == 1


def test_bounds_fail_equally_on_both_databases(pair: PostgresPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_tracker, "ROWS_MAX", 20)
    monkeypatch.setattr(execute, "WORK_MAX", 1000)
    monkeypatch.setattr(execute, "ANSWER_ROWS_MAX", 50)
    pair.run("create table t(k integer primary key, v text)", "create table u(k integer primary key)")
    pair.run(*[("insert into t values (?, ?)", (k, "x" * 10)) for k in range(12)])
    outcomes = pair.run(
        "update t set v = 'y'",
        ["update t set v = 'z'", "update t set v = 'w'"],
        "select a.k from t a, t b",
        "select count(*) from t a, t b, t c",
        "select count(*) from t a where k in (select b.k from t b where exists (select 1 from t c where c.k = b.k))",
        "with x as (select a.k from t a, t b) select count(*) from x, t",
        "insert into u select a.k * 12 + b.k from t a, t b",
        ("insert into t values (100, ?)", ("x" * 300_000,)),
        ("insert into t values (101, ?)", ("x" * 200_000,)),
        "select v from t, u",
    )
    kinds = ["" if one.error is None else one.error.kind for one in outcomes]
    assert kinds == ["", "limit", "limit", "limit", "limit", "limit", "limit", "refused", "", ""]
    assert pair.one("update t set v = v || v || v where k = 101").error.kind == "limit"  # type: ignore[union-attr]
    assert pair.one("insert into t values (200, 'healthy')").error is None


def test_numbers_with_two_representations_are_refused(pair: PostgresPair) -> None:
    pair.run("create table t(k integer primary key, n double precision)")
    outcomes = pair.run(
        "insert into t values (1, '-0')", "insert into t values (2, 'nan')", ("insert into t values (?, ?)", (3, -0.0))
    )
    assert [one.error.kind for one in outcomes if one.error] == ["limit"] * 3
    assert pair.one("insert into t values (4, 'infinity'), (5, 0)").error is None


def test_killed_server_stops_the_engine_and_loses_no_statement(tmp_path: Path) -> None:
    """What was not synced is done again from the journal; what was, is not."""
    with a_server(fsync=True) as server:
        stage = PostgresStage(server, "killed", tmp_path / "one")
        lite = Database(tmp_path)
        order = Order()
        works = [order.message("create table t(k integer primary key, n integer)", "insert into t values (0, 0)")]
        works += [
            order.message(("insert into t values (?, ?)", (n, n)), "update t set n = n + 1 where k = 0")
            for n in range(1, 40)
        ]
        for work in works[:20]:
            stage.apply(work)
        server.kill()
        with pytest.raises(EngineFailed, match="start the node again"):
            stage.apply(works[20])
        server.start()
        stage.reopen()
        assert 0 <= stage.engine.index <= 20
        for work in works:
            stage.apply(work)
            lite.apply(work)
        assert stage.engine.fingerprint == lite.engine.fingerprint == stage.folded()
        assert stage.tallies() == stage.counted()
        stage.engine.close()
        lite.engine.close()


def test_row_change_log_is_written_before_the_commit(stage: PostgresStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is in the log before it is in the database, never after."""
    order = Order()
    stage.apply(order.message("create table t(k integer primary key)"))

    def fail(*_: object) -> None:
        raise EngineFailed("no room")

    monkeypatch.setattr(ChangeLog, "write", fail)
    with pytest.raises(EngineFailed, match="no room"):
        stage.apply(order.message("insert into t values (1)"))
    assert stage.ask(f"select * from {stage.schema}.t") == []
