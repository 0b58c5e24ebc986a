"""The SQLite engine: each message once, whatever the process dies of; requests that fail leave nothing."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from chaplain.executor.events import Apply, OpenDatabase, TakeResults
from chaplain.executor.messages import decode_runs
from chaplain.executor.statement import RequestOutcome, decode_run
from chaplain.runtime.databases import change_log
from chaplain.runtime.databases.change_log import CHANGES, LOG, ChangeLog
from chaplain.runtime.databases.interface import EngineFailed, QueryFailed
from chaplain.runtime.databases.sqlite import metadata
from chaplain.runtime.databases.sqlite.metadata import SqliteStore
from chaplain.runtime.databases.workers import Databases
from chaplain.segment.files import list_segments, scan_file
from chaplain.segment.record import Kind
from tests.unit.executor.sqlite_stage import ACL, START_NS, Database, Order, Pair, told

OTHER = b"B" * 15


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


def errors(outcomes: list[RequestOutcome]) -> list[str | None]:
    return [None if outcome.error is None else outcome.error.kind for outcome in outcomes]


# Requests.


def test_request_is_one_transaction(pair: Pair) -> None:
    pair.run("create table t(a integer primary key, b)")
    outcomes = pair.run(
        ["insert into t values (1, 'x')", "insert into t values (2, 'y')"],
        ["insert into t values (3, 'z')", "insert into t values (1, 'again')"],
        ["update t set b = 'w' where a = 2", "select b from t order by a"],
    )
    assert errors(outcomes) == [None, "constraint", None]
    assert outcomes[1].error is not None
    assert outcomes[1].error.statement == 1
    assert outcomes[2].answers[1].rows == (("x",), ("w",))
    assert [outcome.offset for outcome in outcomes] == [1, 3, 5]
    assert pair.steady.rows("select * from t") == [(1, "x"), (2, "w")]


@pytest.mark.parametrize("conflict", ["rollback", "fail", "abort"])
def test_failing_statement_leaves_other_requests_intact(pair: Pair, conflict: str) -> None:
    pair.run("create table t(a integer primary key)")
    requests = []
    for number in range(5):
        requests += [f"insert into t values ({number})", f"insert or {conflict} into t values (50), (0)"]
        requests += [["insert into t values (60)", f"insert or {conflict} into t values (70), (0)"]]
    assert errors(pair.run(*requests)) == [None, "constraint", "constraint"] * 5
    assert pair.steady.rows("select a from t") == [(number,) for number in range(5)]


def test_statement_stopped_half_way_leaves_other_requests_intact(pair: Pair) -> None:
    pair.run("create table t(a integer primary key)")
    numbers = "with recursive n(i) as (select ? union all select i + 1 from n where i < 3000) select i from n"
    giving = f"insert into t {numbers} returning a"
    requests = [("insert into t values (?)", (-1,)), (giving, (1,)), [(giving, (1,)), "select 1"], (numbers, (1,))]
    outcomes = pair.run(*requests, (giving, (2999,)))
    assert errors(outcomes) == [None, "refused", "refused", "refused", None]
    assert outcomes[-1].answers[0].rows == ((2999,), (3000,))
    assert pair.steady.rows("select a from t") == [(-1,), (2999,), (3000,)]


def test_schema_and_rows_change_in_one_request(pair: Pair) -> None:
    pair.run(["create table t(a)", "insert into t values (1), (2)", "alter table t add column b default 5"])
    assert errors(pair.run(["drop table t", "select * from t"])) == ["error"]
    assert pair.steady.rows("select * from t") == [(1, 5), (2, 5)]
    assert errors(pair.run(["drop table t", "create table t(z)", "insert into t values (9)"])) == [None]
    assert pair.steady.rows("select * from t") == [(9,)]


def test_parameters_of_every_type_are_bound(pair: Pair) -> None:
    pair.run("create table t(a, b)")
    outcomes = pair.run(
        ("insert into t values (?, ?)", (1, b"\x00\xff")),
        ("insert into t values (:x, :y)", {"x": None, "y": 1.5}),
        ("insert into t values (?, ?)", (1,)),
        ("insert into t values (:x, :y)", {"x": 1}),
        ("insert into t values (?, 1)", (1 << 63,)),
        ("insert into t values (?, 'text')", ("\N{SNOWMAN}\x00",)),
    )
    assert errors(outcomes) == [None, None, "error", "refused", "refused", None]
    assert pair.steady.rows("select * from t") == [(1, b"\x00\xff"), (None, 1.5), ("\N{SNOWMAN}\x00", "text")]


def test_time_and_random_values_come_from_the_message(pair: Pair) -> None:
    (outcome,) = pair.run("select unixepoch('now'), unixepoch(), strftime('%s', 'now'), current_timestamp")
    seconds = (START_NS + 1_000_000) // 10**9
    assert outcome.answers[0].rows[0][:3] == (seconds, seconds, str(seconds))
    one, two = pair.run("select random(), random()", "select random(), random()")
    assert len({*one.answers[0].rows[0], *two.answers[0].rows[0]}) == 4


def test_steps_of_a_client_are_bounded_per_message(pair: Pair) -> None:
    endless = "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r"
    long = "with recursive r(n) as (select 1 union all select n + 1 from r where n < 200000) select count(*) from r"
    assert errors(pair.run(long, endless, long, "select 1")) == [None, "limit", "limit", None]
    assert errors(pair.run(long)) == [None]


def test_step_budget_of_one_client_does_not_affect_another(tmp_path: Path) -> None:
    order, database = Order(), Database(tmp_path)
    endless = "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r"
    long = "with recursive r(n) as (select 1 union all select n + 1 from r where n < 200000) select count(*) from r"
    greedy, modest = order.message(endless, long, lane=1), order.message(long, lane=2, acl=OTHER)
    both = greedy.__class__(
        1, greedy.timestamp_ns, greedy.hash, greedy.batches + modest.batches, greedy.owners + modest.owners
    )
    database.apply(both)
    assert errors(database.outcomes(ACL)) == ["limit", "limit"]
    assert errors(database.outcomes(OTHER)) == [None]
    database.engine.close()


# Once.


class Died(Exception):
    pass


ENDLESS = "with recursive r(n) as (select 1 union all select n + 1 from r)"
LONG = "with recursive r(n) as (select 1 union all select n + 1 from r where n < 30000)"
MIXED = [
    "insert into t values (1)",
    "insert or rollback into t values (2), (1)",
    "insert into t values (3)",
    "create table more(a)",
    "insert into more select a from t",
    f"{LONG} insert into more select count(*) from r",
    "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r",
    f"{LONG} insert into more select count(*) from r",
    "insert into t values (4)",
    "drop table more",
    "insert into t values (5)",
]


def test_executor_dies_between_commits_and_continues_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").mkdir()
    whole, order = Database(tmp_path / "whole"), Order()
    works = [order.message("create table t(a integer primary key)"), order.message(*MIXED), order.message("select 1")]
    for work in works:
        whole.apply(work)
    outcomes, fingerprint = whole.outcomes(), whole.engine.fingerprint
    whole.engine.close()
    real, deaths = SqliteStore.committed, 0
    for dying in range(1, 40):
        folder = tmp_path / f"dies-{dying}"
        folder.mkdir()
        commits = 0

        def committed(self: SqliteStore, dying: int = dying) -> None:
            nonlocal commits
            commits += 1
            real(self)
            if commits == dying:
                raise Died

        database = Database(folder)
        monkeypatch.setattr(SqliteStore, "committed", committed)
        try:
            for work in works:
                database.apply(work)
        except Died:
            deaths += 1
        monkeypatch.undo()
        if deaths < dying:
            database.engine.close()
            break
        database.reopen()
        for work in works:
            database.apply(work)
        assert (database.outcomes(), database.engine.fingerprint) == (outcomes, fingerprint), f"died after {dying}"
        assert database.folded() == fingerprint, f"died after {dying}"
        database.engine.close()
    assert 10 < deaths < 39


def test_executor_dies_before_a_commit_and_writes_no_change_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, database = Order(), Database(tmp_path)
    works = [order.message("create table t(a integer primary key)"), order.message(*MIXED)]
    for dying in range(2, 12):

        def write(self: ChangeLog, *arguments: object, real=ChangeLog.write) -> None:
            nonlocal left
            real(self, *arguments)
            left -= 1
            if not left:
                raise Died

        left = dying
        monkeypatch.setattr(ChangeLog, "write", write)
        with contextlib.suppress(Died):
            for work in works:
                database.apply(work)
        monkeypatch.undo()
        database.reopen()
    for work in works:
        database.apply(work)
    assert database.folded() == database.engine.fingerprint
    database.engine.close()


def test_row_changes_are_split_into_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "RECORD_BYTES_MAX", 100)
    monkeypatch.setattr(change_log, "RECORD_ROWS_MAX", 4)
    log = ChangeLog(tmp_path / CHANGES / "main", "main")
    sizes = [10, 82, 200, 83, 1, 1, 1, 1, 1]
    pairs = [(b"%d" % number, b"x" * (size - 1)) for number, size in enumerate(sizes)]
    log.write(0, pairs, START_NS)
    log.close()
    (segment,) = list_segments(tmp_path / CHANGES / "main", LOG)
    records = [record for _, record in scan_file(segment.path).records if record.kind == Kind.BATCH]
    assert [record.count for record in records] == [1, 1, 1, 2, 4]
    assert told(tmp_path) == pairs


def test_row_change_log_with_a_bound_retains_the_last_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens the log again goes on behind them, also with a database that begins from nothing."""
    monkeypatch.setattr(change_log, "SEGMENT_BYTES", 16 * 1024)
    monkeypatch.setattr(change_log, "RECORD_BYTES_MAX", 4096)
    folder = tmp_path / CHANGES / "main"
    pairs = [(b"%05d" % number, bytes(100)) for number in range(1200)]
    for first in range(0, 1000, 50):
        log = ChangeLog(folder, "main", keep_bytes=3 * 16 * 1024)
        assert not log.is_behind(first)
        assert log.is_behind(first + 1)
        log.write(first, pairs[first : first + 50], START_NS)
        log.close()
        assert len(list_segments(folder, LOG)) <= 3
    log = ChangeLog(folder, "main", keep_bytes=3 * 16 * 1024)
    log.write(0, pairs, START_NS)
    log.close()
    first = next(head.record for segment in list_segments(folder, LOG) for head, _ in scan_file(segment.path).records)
    assert 700 < first.first_offset < 1200
    assert told(tmp_path, first=first.first_offset) == pairs[first.first_offset :]


def test_database_ahead_of_its_row_changes_is_rebuilt(tmp_path: Path) -> None:
    order, database = Order(), Database(tmp_path)
    works = [order.message("create table t(a)"), *(order.message(f"insert into t values ({n})") for n in range(5))]
    for work in works:
        database.apply(work)
    fingerprint = database.engine.fingerprint
    database.engine.close()
    shutil.rmtree(tmp_path / CHANGES)  # as if the machine had failed
    database = Database(tmp_path)
    assert database.engine.index == 0
    for work in works:
        database.apply(work)
    assert database.engine.fingerprint == database.folded() == fingerprint
    database.engine.close()


def test_message_is_applied_once(tmp_path: Path) -> None:
    order, database = Order(), Database(tmp_path)
    works = [order.message("create table t(a)"), order.message("insert into t values (1)")]
    for work in [*works, *works, works[1]]:
        database.apply(work)
    assert database.rows("select count(*) from t") == [(1,)]
    assert database.engine.index == 2
    database.engine.close()


# Results.


def test_results_are_stored_until_read(tmp_path: Path) -> None:
    order, database = Order(), Database(tmp_path)
    database.apply(order.message("select 1", "select 2", lane=1))
    database.apply(order.message("select 3", lane=2))
    database.apply(order.message("select 4", lane=3, acl=OTHER))
    assert [outcome.answers[0].rows for outcome in database.outcomes()] == [((1,),), ((2,),), ((3,),)]
    (run,) = (decode_run(raw) for raw in database.engine.results(ACL, 1, 2, 2))
    assert (run.client_id, run.first_id, run.last_id, run.index) == (1, 1, 2, 1)
    assert not database.engine.results(OTHER, 1, 1, 2)
    database.engine.clear(ACL, [(1, 1), (3, 9)])
    assert len(database.outcomes()) == 3  # a run is kept until all of it is read; nobody clears another's
    assert len(database.outcomes(OTHER)) == 1
    database.engine.clear(ACL, [(1, 2)])
    database.engine.clear(ACL, [(1, 2)])
    database.reopen()
    assert [outcome.answers[0].rows for outcome in database.outcomes()] == [((3,),)]
    database.engine.close()


def test_read_marks_are_remembered_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "READ_MAX", 3)
    order, database = Order(), Database(tmp_path)
    step = database.apply(order.message("create table t(a)"))
    database.engine.clear(ACL, [(1, 3), (2, 7)])
    database.engine.clear(OTHER, [(1, 9)])
    database.engine.clear(ACL, [(1, 4), (2, 6)])
    database.reopen()
    assert sorted(database.engine.read) == [(ACL, 1, 4), (ACL, 2, 7), (OTHER, 1, 9)]
    database.engine.clear(ACL, [(8, 1)])
    database.reopen()
    assert database.engine.read == ((OTHER, 1, 9), (ACL, 1, 4), (ACL, 8, 1))  # the oldest word is forgotten first
    assert database.engine.fingerprint == step.fingerprint
    database.engine.close()


def test_results_read_elsewhere_are_not_stored_later(tmp_path: Path) -> None:
    order, databases = Order(), Databases("sqlite", tmp_path)
    databases.open(OpenDatabase("main"))
    databases.apply(Apply("main", (order.message("select 1"), order.message("select 2", lane=2))))
    (raw,) = decode_runs(databases.results(TakeResults(1, "main", ACL, 0, 0, 0, ((1, 1), (7, 7)))).payload)
    assert decode_run(raw).client_id == 2
    databases.close()


def test_results_are_bounded_per_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "RESULT_BYTES_MAX", 10_000)
    order, database = Order(), Database(tmp_path)
    database.apply(order.message("select 'other'", lane=9, acl=OTHER))
    for number in range(200):
        database.apply(order.message(("select ?, hex(zeroblob(32))", (number,))))
    kept = [outcome.answers[0].rows[0][0] for outcome in database.outcomes()]
    assert kept == list(range(kept[0], 200))
    assert 30 < len(kept) < 150
    assert len(database.outcomes(OTHER)) == 1
    database.engine.close()


def test_results_of_a_large_message_are_returned_in_pieces(tmp_path: Path) -> None:
    order, database = Order(), Database(tmp_path)
    database.apply(order.message("create table t(a)"))
    database.apply(order.message(*[("insert into t values (?)", (n,)) for n in range(20_000)]))
    wide = "select hex(zeroblob(20000))"
    database.apply(order.message(*[wide] * 40, lane=2))
    database.reopen()
    asked = [(1, first, 500) for first in range(1, 20_002, 500)] + [(2, first, 10) for first in range(1, 41, 10)]
    raws = [raw for lane, first, many in asked for raw in database.engine.results(ACL, lane, first, first + many - 1)]
    assert max(map(len, raws)) < 256 * 1024
    runs = {(run.client_id, run.first_id): run for run in map(decode_run, raws)}
    assert sum(len(run.outcomes) for run in runs.values()) == 20_041
    assert errors([outcome for run in runs.values() for outcome in run.outcomes]) == [None] * 20_041
    database.engine.close()


def test_executors_own_values_may_exceed_the_clients_bound(pair: Pair) -> None:
    names = [f"{number}{'t' * 9000}" for number in range(40)]
    pair.run(*[f'create table "{name}"(a)' for name in names])
    assert errors(pair.run(*[f'insert into "{name}" values (1)' for name in names])) == [None] * 40
    assert errors(pair.run("select hex(zeroblob(200000))")) == ["limit"]


# Queries, and the world.


def test_queries_are_bounded_in_time_rows_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chaplain.runtime.databases.sqlite import queries

    order, database = Order(), Database(tmp_path)
    database.apply(order.message("create table t(a)"))
    monkeypatch.setattr(queries, "QUERY_SECONDS_MAX", 0.05)
    with pytest.raises(QueryFailed, match=r"more than 0\.05 s"):
        database.rows("with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r")
    monkeypatch.setattr(queries, "QUERY_SECONDS_MAX", 60)
    calls = iter([False, False, True])
    with pytest.raises(QueryFailed, match="given up"):
        database.engine.query(f"{ENDLESS} select count(*) from r", (), lambda: next(calls))
    monkeypatch.setattr(queries, "QUERY_ROWS_MAX", 10)
    with pytest.raises(QueryFailed, match="LIMIT"):
        database.rows("with recursive r(n) as (select 1 union all select n + 1 from r where n < 20) select n from r")
    with pytest.raises(QueryFailed, match="not allowed in a query"):
        database.rows("delete from t")
    assert database.rows("select 1 where 0") == []
    database.engine.close()


def test_fault_outside_the_statement_stops_the_executor(tmp_path: Path) -> None:
    order, database = Order(), Database(tmp_path)
    database.apply(order.message("create table t(a)"))
    intruder = apsw.Connection(str(tmp_path / "main.sqlite"))
    intruder.execute("begin immediate")
    with pytest.raises(EngineFailed, match="Busy"):
        database.apply(order.message("insert into t values (1)"))
    intruder.close()
    database.engine.close()
    (tmp_path / "main.sqlite").rename(tmp_path / "other.sqlite")
    with pytest.raises(EngineFailed, match="of stream 'main'"):
        Database(tmp_path, "other")


def test_defect_in_the_executor_stops_the_executor_and_not_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, databases = Order(), Databases("sqlite", tmp_path)
    assert databases.open(OpenDatabase("main")).failed == ""
    works = (order.message("create table t(a)"), order.message("insert into t values (1)"))
    monkeypatch.setattr(SqliteStore, "put_results", lambda self, runs: 1 // (order.index - order.index))
    applied = databases.apply(Apply("main", works))
    assert applied.steps == ()
    assert applied.failed.startswith("a fault of the executor in test_sqlite_engine.py")
    databases.close()


def test_database_file_of_another_stream_is_refused(tmp_path: Path) -> None:
    Database(tmp_path, "one").engine.close()
    (tmp_path / "one.sqlite").rename(tmp_path / "two.sqlite")
    with pytest.raises(EngineFailed, match="one"):
        Database(tmp_path, "two")
