"""Requests that are tried out: when, on what, and that nothing is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaplain.core import Drained, Woken
from chaplain.executor.dry_runs import DRY_RUN_BYTES_MAX, PATIENCE_NS, WAITING_MAX
from chaplain.executor.events import Applied, Apply, DatabaseOpened, OpenDatabase, Tried, TryOut
from chaplain.executor.statement import SQL_TYPE, StatementError
from chaplain.journal.events import DryRun, DryRunDone
from chaplain.runtime.databases.interface import EngineFailed
from chaplain.runtime.databases.sqlite.execute import STEPS_MAX
from chaplain.runtime.databases.workers import Databases
from chaplain.segment.pack import Pack, encode_pack
from tests.unit.executor.core_stage import Stage, read_back
from tests.unit.executor.sqlite_stage import START_NS, Database, Order, statement

NOW = START_NS
INSERT = statement("insert into t values (1)")


def wish(ticket: int = 1, stream: str = "main", *values: bytes, message_type: int = SQL_TYPE) -> DryRun:
    raw = encode_pack(Pack(1, 1, values or (INSERT,), message_type=message_type))
    return DryRun(ticket, stream, raw)


@pytest.fixture
def stage() -> Stage:
    """An executor whose database has done everything."""
    made = Stage()
    made.agree()
    (apply,) = [one for one in read_back(made, made.open()) if isinstance(one, Apply)]
    made.done(apply)
    return made


# When.


def test_idle_database_performs_a_dry_run(stage: Stage) -> None:
    assert stage.step(wish(5)) == [TryOut(5, "main", (INSERT,), stage.now_ns)]
    assert stage.step(Tried(5, "main", done=True)) == [DryRunDone(5)]
    assert stage.core.counts["dry_runs_passed"] == 1


def test_failed_dry_run_returns_the_reason_and_the_node(stage: Stage) -> None:
    stage.step(wish(5))
    (answer,) = stage.step(Tried(5, "main", True, "constraint", "UNIQUE constraint failed: t.a"))
    reason = "UNIQUE constraint failed: t.a (found by node 1; it was not ordered)"
    assert answer == DryRunDone(5, "constraint", reason)
    assert stage.core.counts["dry_runs_refused"] == 1


def test_apply_waits_for_a_dry_run_and_follows_it(stage: Stage) -> None:
    stage.step(wish(5))
    stage.agree()
    assert not [one for one in stage.step(Drained()) if isinstance(one, Apply)], "one thing at a time"
    apply, answer = stage.step(Tried(5, "main", done=True))
    assert answer == DryRunDone(5)
    assert isinstance(apply, Apply)


def test_dry_run_waits_until_the_database_has_caught_up(stage: Stage) -> None:
    stage.agree()
    (apply,) = stage.step(Drained())
    assert stage.step(wish(5)) == []
    stage.agree()
    (later,) = [one for one in stage.done(apply) if isinstance(one, Apply)]
    assert TryOut(5, "main", (INSERT,), stage.now_ns) in stage.done(later)


def test_dry_run_waits_for_a_database_that_reads_the_log() -> None:
    made = Stage(attach=False)
    for _ in range(2):
        made.agree()
    made.attach()
    effects = made.open(index=1)
    assert made.step(wish(5)) == []
    (apply,) = [one for one in read_back(made, effects) if isinstance(one, Apply)]
    assert TryOut(5, "main", (INSERT,), made.now_ns) in made.done(apply)


def test_dry_run_that_waits_too_long_is_skipped(stage: Stage) -> None:
    stage.agree()
    stage.step(Drained())
    stage.step(wish(5))
    due = stage.core.deadline()
    assert due is not None
    assert due <= PATIENCE_NS
    stage.now_ns = PATIENCE_NS
    assert DryRunDone(5) in stage.step(Woken())
    assert stage.core.counts["dry_runs_skipped"] == 1


@pytest.mark.parametrize(
    "event",
    [
        wish(5, "no such stream"),
        wish(5, "main", b"any", message_type=0),
        wish(5, "main", statement("select 1" + " " * (DRY_RUN_BYTES_MAX // 2)), statement("-" * 140_000)),
    ],
    ids=["no database", "data", "large"],
)
def test_requests_without_a_single_transaction_get_no_dry_run(stage: Stage, event: DryRun) -> None:
    assert stage.step(event) == [DryRunDone(5)]


def test_unreadable_statement_is_refused_without_a_database() -> None:
    (answer,) = Stage().step(wish(5, "main", b"\1nonsense"))
    assert isinstance(answer, DryRunDone)
    assert (answer.kind, "statement" in answer.reason) == ("refused", True)


def test_waiting_dry_runs_are_bounded(stage: Stage) -> None:
    stage.step(wish(1))
    for ticket in range(2, WAITING_MAX + 2):
        assert stage.step(wish(ticket)) == []
    assert stage.step(wish(1000)) == [DryRunDone(1000)]


def test_stopped_database_skips_its_dry_runs(stage: Stage) -> None:
    stage.agree()
    (apply,) = stage.step(Drained())
    assert isinstance(apply, Apply)
    stage.step(wish(5))
    stage.step(Applied("main", (), "the disk is full"))
    assert stage.step(wish(6)) == [DryRunDone(6)]
    stage.now_ns = PATIENCE_NS
    assert DryRunDone(5) in stage.step(Woken())


def test_dry_run_without_a_result_lets_the_request_pass(stage: Stage) -> None:
    stage.step(wish(5))
    assert stage.step(Tried(5, "main", done=False)) == [DryRunDone(5)]


def test_dry_run_does_not_wait_for_a_closed_database() -> None:
    stage = Stage()
    stage.agree()
    assert OpenDatabase("main") in stage.step(Drained())
    assert stage.step(wish(5)) == [DryRunDone(5)]
    assert DryRunDone(5) not in stage.step(DatabaseOpened("main", 1, b"f" * 32))


# On SQLite.


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path)
    yield made
    made.engine.close()


def rehearse(database: Database, *sql: str) -> StatementError | None:
    return database.engine.rehearse([statement(one) for one in sql], NOW)


SCHEMA = [
    "create table t(a integer primary key autoincrement, b text unique, at default current_timestamp)",
    "create table u(x integer primary key, t references t(a) deferrable initially deferred)",
    "insert into t(b) values ('one'), ('two')",
]


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        (["insert into t(b) values ('three')"], None),
        (["insert into t(b) values ('one')"], "constraint"),
        (["insert or rollback into t(b) values ('one')"], "constraint"),
        (["insert or fail into t(b) values ('new'), ('one')"], "constraint"),
        (["insert into t(b) values ('x')", "insert into t(b) values ('x')"], "constraint"),
        (["insert into u values (1, 77)"], "constraint"),
        (["insert into u values (1, 77)", "insert into t(a) values (77)"], None),
        (["create table v(a)", "insert into v values (1)"], None),
        (["drop table u", "insert into u values (1, 1)"], "error"),
        (["insert into absent values (1)"], "error"),
        (["pragma user_version = 7"], "refused"),
        (["select load_extension('x')"], "error"),
        (["commit"], "refused"),
        (["with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r"], "limit"),
    ],
)
def test_dry_run_predicts_the_outcome_and_changes_nothing(database: Database, sql: list[str], kind: str | None) -> None:
    order = Order()
    for work in (order.message(*SCHEMA), order.message("delete from t where b = 'two'")):
        database.apply(work)
    before = everything(database)
    files = octets(database)
    found = rehearse(database, *sql)
    assert (None if found is None else found.kind) == kind
    assert everything(database) == before
    assert octets(database) == files, "not an octet of its files"
    database.apply(order.message(list(sql)))
    assert database.outcomes()[-1].error == found, "what execution says"
    assert database.tallies() == database.counted()
    assert database.folded() == database.engine.fingerprint


def everything(database: Database) -> object:
    engine = database.engine
    state = (engine.index, engine.fingerprint, engine._store.state, engine.results(b"A" * 15, 0, 0, 0))
    rows = [database.rows(f"select * from {table}") for table in ("t", "u", "sqlite_sequence")]
    return state, rows, database.tallies(), database.folded()


def octets(database: Database) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in database.folder.glob("**/*") if file.is_file() and file.stem}


def test_statement_with_random_values_is_not_refused(database: Database) -> None:
    order = Order()
    database.apply(order.message("create table t(a check (a > 0))"))
    assert rehearse(database, "insert into t values (random() * 0)") is None
    assert rehearse(database, "insert into t values (0)") is not None


def test_dry_run_has_a_full_step_budget(database: Database) -> None:
    order = Order()
    rows = f"with recursive r(n) as (select 1 union all select n + 1 from r limit {STEPS_MAX // 30})"
    long = f"{rows} select max(n) from r"
    database.apply(order.message(long, long))
    assert rehearse(database, long) is None
    assert rehearse(database, long) is None, "nothing is charged for it"


def test_database_error_during_a_dry_run_refuses_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    databases = Databases("sqlite", tmp_path)
    assert not databases.open(OpenDatabase("main")).failed
    engine = databases._engines["main"]
    tried = TryOut(3, "main", (statement("create table t(a)"),), NOW)

    def fail(*_: object) -> None:
        raise EngineFailed("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "run_carefully", fail)  # type: ignore[attr-defined]
        assert databases.try_out(tried) == Tried(3, "main", done=False)
    assert databases.try_out(tried) == Tried(3, "main", done=True), "it goes on"
    applied = databases.apply(Apply("main", (Order().message("create table t(a)"),)))
    assert not applied.failed
    assert databases.try_out(tried) == Tried(3, "main", True, "error", "table t already exists")
    databases.close()


def test_database_without_dry_runs_reports_it(tmp_path: Path) -> None:
    databases = Databases("sqlite", tmp_path)
    databases._engines["main"] = object()  # type: ignore[assignment]
    assert databases.try_out(TryOut(3, "main", (INSERT,), NOW)) == Tried(3, "main", done=False)


STATEMENTS = st.sampled_from(
    [
        "insert into t(b) values ('x')",
        "insert into t(b) values ('y'), ('z')",
        "insert or replace into t(a, b) values (1, 'x')",
        "insert or rollback into t(a, b) values (2, 'x')",
        "insert or fail into t(b) values ('fresh'), ('x')",
        "insert into u values (1, 1)",
        "insert into u values (2, 99)",
        "update t set b = b || 'x'",
        "update t set a = a + 1",
        "delete from t",
        "delete from u",
        "create table v(k primary key, w) without rowid",
        "insert into v values ('k', 1)",
        "alter table v add column more",
        "drop table v",
        "create index i on t(b)",
        "select * from t",
        "pragma page_count",
        "commit",
        "insert into t(b) values (randomblob(4))",
    ]
)
REQUESTS = st.lists(st.lists(STATEMENTS, min_size=1, max_size=3), min_size=1, max_size=8)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests=REQUESTS)
def test_databases_stay_equal_if_one_dry_runs_every_statement(
    tmp_path_factory: pytest.TempPathFactory, requests: list[list[str]]
) -> None:
    order = Order()
    plain, trying = (Database(tmp_path_factory.mktemp("database")) for _ in range(2))
    for request in [[one] for one in SCHEMA] + requests:
        work = order.message(list(request))
        found = trying.engine.rehearse([statement(one) for one in request], work.timestamp_ns)
        assert trying.apply(work) == plain.apply(work), "executors differ"
        assert trying.outcomes() == plain.outcomes()
        error = plain.outcomes()[-1].error
        assert found == error or (found is None and "randomblob" in " ".join(request))
    assert trying.folded() == plain.folded()
    assert trying.tallies() == trying.counted()
    for one in (plain, trying):
        one.engine.close()
    with apsw.Connection(str(trying.folder / "main.sqlite")) as connection:
        assert list(connection.execute("pragma integrity_check")) == [("ok",)]
