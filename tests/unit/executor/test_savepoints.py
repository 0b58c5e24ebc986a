"""Savepoints inside one request: which texts are commands, and what each does to the rows of SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain.runtime.databases.savepoints import DEPTH_MAX, SAVEPOINTS_MAX, Command, SavepointError, command_of
from tests.unit.executor.sqlite_stage import Pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


@pytest.mark.parametrize(
    ("sql", "command"),
    [
        ("savepoint a", Command("begin", "a")),
        ("  SavePoint\n A_1 ; ", Command("begin", "a_1")),
        ("release a", Command("release", "a")),
        ("RELEASE SAVEPOINT a", Command("release", "a")),
        ("rollback to a", Command("undo", "a")),
        ("rollback transaction to savepoint a", Command("undo", "a")),
        ("ROLLBACK WORK TO A", Command("undo", "a")),
        ("select 'savepoint a'", None),
        ("insert into savepoint values (1)", None),
        ("", None),
    ],
)
def test_command_is_recognized_by_its_text(sql: str, command: Command | None) -> None:
    assert command_of(sql) == command


@pytest.mark.parametrize(
    "sql",
    [
        "rollback",
        "rollback transaction",
        "savepoint",
        'savepoint "a"',
        "savepoint a b",
        "savepoint a; commit",
        "savepoint " + "x" * 64,
        "release" + " " * 2000 + "a",
        "rollback to main.a",
        "savepoint ä",
    ],
)
def test_other_forms_of_transaction_commands_are_refused(sql: str) -> None:
    with pytest.raises(SavepointError) as caught:
        command_of(sql)
    assert caught.value.kind == "refused"


def test_rollback_to_a_savepoint_undoes_only_what_followed_it(pair: Pair) -> None:
    pair.run("create table t(a integer primary key, b)")
    (outcome,) = pair.run(
        [
            "insert into t values (1, 'kept')",
            "savepoint one",
            "insert into t values (2, 'undone')",
            "update t set b = 'undone' where a = 1",
            "rollback to one",
            "insert into t values (3, 'kept')",
            "release one",
            "select a, b from t order by a",
        ]
    )
    assert outcome.error is None
    assert outcome.answers[-1].rows == ((1, "kept"), (3, "kept"))
    assert pair.steady.rows("select * from t order by a") == [(1, "kept"), (3, "kept")]


def test_nested_savepoints_and_a_name_that_is_open_twice(pair: Pair) -> None:
    pair.run("create table t(a integer primary key)")
    (outcome,) = pair.run(
        [
            "savepoint x",
            "insert into t values (1)",
            "savepoint x",
            "insert into t values (2)",
            "savepoint y",
            "insert into t values (3)",
            "rollback to x",
            "insert into t values (4)",
            "release x",
            "rollback to x",
            "insert into t values (5)",
        ]
    )
    assert outcome.error is None
    assert pair.steady.rows("select a from t") == [(5,)]


def test_rollback_to_a_savepoint_undoes_changes_of_the_schema(pair: Pair) -> None:
    pair.run("create table t(a integer primary key)", "insert into t values (1)")
    (outcome,) = pair.run(
        [
            "savepoint x",
            "create table u(b integer primary key)",
            "insert into u values (7)",
            "alter table t add column c",
            "drop table t",
            "rollback to x",
            "insert into t values (2)",
        ]
    )
    assert outcome.error is None
    assert pair.steady.rows("select * from t") == [(1,), (2,)]
    (gone,) = pair.run("insert into u values (8)")
    assert gone.error is not None


@pytest.mark.parametrize(
    ("statements", "kind", "number"),
    [
        (["release x"], "error", 0),
        (["savepoint x", "release x", "rollback to x"], "error", 2),
        (["savepoint x", "savepoint y", "rollback to x", "release y"], "error", 3),
        ([f"savepoint s{number}" for number in range(DEPTH_MAX + 1)], "limit", DEPTH_MAX),
        (["savepoint x", "release x"] * SAVEPOINTS_MAX + ["savepoint x"], "limit", 2 * SAVEPOINTS_MAX),
        (["rollback"], "refused", 0),
    ],
)
def test_request_with_a_wrong_savepoint_command_changes_nothing(
    pair: Pair, statements: list[str], kind: str, number: int
) -> None:
    pair.run("create table t(a integer primary key)")
    (outcome,) = pair.run(["insert into t values (1)", *statements])
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.statement) == (kind, number + 1)
    assert pair.steady.rows("select * from t") == []


def test_savepoint_does_not_reach_outside_its_request(pair: Pair) -> None:
    pair.run("create table t(a integer primary key)")
    outcomes = pair.run(
        ["savepoint x", "insert into t values (1)"],
        ["insert into t values (2)", "rollback to x"],
        ["insert into t values (3)", "rollback to chaplain_0"],
        ["insert into t values (4)", "release request"],
        ["savepoint request", "insert into t values (5)", "rollback to request", "release request"],
        ["insert into t values (6)"],
    )
    assert [None if one.error is None else one.error.kind for one in outcomes] == [
        None,
        "error",
        "error",
        "error",
        None,
        None,
    ]
    assert pair.steady.rows("select a from t order by a") == [(1,), (6,)]


def test_violated_deferred_key_may_be_rolled_back(pair: Pair) -> None:
    pair.run(
        "create table p(a integer primary key)",
        "create table c(a integer primary key, p references p deferrable initially deferred)",
    )
    violating = ["savepoint x", "insert into c values (1, 7)"]
    outcomes = pair.run(violating, [*violating, "rollback to x"])
    assert [None if one.error is None else one.error.kind for one in outcomes] == ["constraint", None]
    assert pair.steady.rows("select * from c") == []
