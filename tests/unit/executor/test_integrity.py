"""Databases that may be damaged, step by step: when they are read again, made anew, and where they go on."""

from __future__ import annotations

from chaplain.core import Drained, Report
from chaplain.executor.events import (
    Applied,
    Apply,
    BackRead,
    CheckDatabase,
    DatabaseChecked,
    DatabaseKept,
    DatabaseOpened,
    Looked,
    MessageApplied,
    OpenDatabase,
    ReadBack,
    RemakeDatabase,
    RunQuery,
)
from chaplain.executor.integrity import ROWS_MAX
from chaplain.executor.messages import AskCopy, Print, Query
from chaplain.executor.statement import Statement, encode_statement
from chaplain.journal.model.records import LogPosition
from chaplain.journal.snapshots.checkpoint import CheckpointBase
from chaplain.mesh.events import Entered
from tests.unit.executor.core_stage import Stage, peer, works

CHECK, REMAKE = CheckDatabase("main"), RemakeDatabase("main")
ROTTEN = DatabaseChecked("main", "t: 3 rows, and not all as they were written")


def reports(effects: list[object]) -> list[str]:
    return [effect.event for effect in effects if isinstance(effect, Report)]


def told(stage: Stage) -> dict[str, object]:
    return stage.core.status()["databases"]["main"]  # type: ignore[index,no-any-return]


def select(stage: Stage) -> list[RunQuery]:
    asked = stage.ask(Query("main", 0, fresh=False), payload=encode_statement(Statement("select 1")))
    return [effect for effect in asked if isinstance(effect, RunQuery)]


def opened(messages: int = 3, at: int = 3, **more: object) -> tuple[Stage, list[object]]:
    """So many messages are agreed, and the database is opened."""
    stage = Stage(3)
    for _ in range(messages):
        stage.agree()
    assert OpenDatabase("main") in stage.step(Drained())
    event = DatabaseOpened("main", at, b"f" * 32, **more)  # type: ignore[arg-type]
    return stage, [*stage.step(event), *stage.step(Drained())]


def answered(stage: Stage, effects: list[object]) -> list[object]:
    """The log gives what is read from it; of those messages that have something for the database, or have not."""
    found = list(effects)
    for effect in effects:
        if isinstance(effect, ReadBack):
            records = tuple(record for index in sorted(stage.records) for record in stage.records[index]
                            if 10 * index >= effect.start)  # fmt: skip
            found += [*stage.step(BackRead(effect.token, records)), *stage.step(Drained())]
    return found


# When it is read again.


def test_closed_database_is_not_checked_at_start() -> None:
    assert CHECK not in opened()[1]


def test_unclosed_database_is_checked_in_the_background() -> None:
    stage, effects = opened(messages=4, doubtful_rows=10)
    assert CHECK in effects
    assert any(isinstance(effect, ReadBack) for effect in effects), "and it goes on meanwhile"
    stage.step(DatabaseChecked("main"))
    assert told(stage)["state"] == "idle"


def test_large_unclosed_database_is_reported_and_not_checked() -> None:
    _, effects = opened(doubtful_rows=ROWS_MAX + 1)
    assert CHECK not in effects
    assert reports(effects) == ["database too large to be checked at a start"]


def test_damaged_copy_causes_a_check_of_the_database() -> None:
    stage, _ = opened()
    effects = stage.step(DatabaseKept("main", damage="rows"))
    assert reports(effects) == ["copy not kept"]
    assert CHECK in effects
    assert stage.core.first_needed() == 1, "the log stays"


def test_stopping_executor_checks_its_database() -> None:
    stage, _ = opened()
    for node in (2, 3):
        effects = stage.hears(node, Print("main", 3, b"o" * 32))
    assert "executor stopped" in reports(effects)
    assert CHECK in effects
    stage.step(DatabaseChecked("main"))
    assert told(stage)["state"] == "stopped", "it differs, and not by rot"


def test_read_error_causes_one_check() -> None:
    stage, _ = opened()
    (query,) = select(stage)
    assert CHECK in stage.step(Looked(query.token, kind="stopped", reason="malformed"))
    (query,) = select(stage)
    assert CHECK not in stage.step(Looked(query.token, kind="stopped", reason="malformed")), "it is being read"


# What follows.


def test_damaged_database_is_reported_and_rebuilt() -> None:
    stage, _ = opened()
    assert reports(stage.step(ROTTEN)) == ["database damaged"]
    assert stage.core.counts["damaged"] == 1
    assert stage.step(Drained()) == [REMAKE]
    said = told(stage)
    assert (said["position"], said["damage"]) == (0, ROTTEN.damage)
    effects = [*stage.step(DatabaseOpened("main", 0, b"f" * 32)), *stage.step(Drained())]
    assert works(answered(stage, effects)) == [1, 2, 3]


def test_database_under_rebuild_answers_no_query() -> None:
    stage, _ = opened()
    stage.step(ROTTEN)
    assert not select(stage)


def test_apply_in_progress_ends_before_the_rebuild_and_is_discarded() -> None:
    stage, effects = opened(messages=4)
    (apply,) = [effect for effect in answered(stage, effects) if isinstance(effect, Apply)]
    assert REMAKE not in [*stage.step(ROTTEN), *stage.step(Drained())]
    steps = (MessageApplied(4, b"4" * 32),)
    assert apply.works[0].index == 4
    assert REMAKE in [*stage.step(Applied("main", steps)), *stage.step(Drained())]
    assert told(stage)["position"] == 0


def test_executor_stopped_by_damage_continues_after_the_rebuild() -> None:
    stage, _ = opened()
    for node in (2, 3):
        stage.hears(node, Print("main", 3, b"o" * 32))
    assert REMAKE in [*stage.step(ROTTEN), *stage.step(Drained())]
    stage.step(DatabaseOpened("main", 2, b"f" * 32, kept=2))
    effects = answered(stage, stage.step(Drained()))
    assert works(effects) == [3]
    (apply,) = [effect for effect in effects if isinstance(effect, Apply)]
    stage.step(Applied("main", (MessageApplied(3, b"o" * 32),)))
    assert apply.works
    said = told(stage)
    assert (said["state"], said["position"]) == ("idle", 3)


def test_second_damage_stops_the_executor() -> None:
    stage, _ = opened()
    stage.step(ROTTEN)
    stage.step(Drained())
    stage.step(DatabaseOpened("main", 3, b"f" * 32))
    effects = [*stage.step(ROTTEN), *stage.step(Drained())]
    assert reports(effects) == ["database damaged"]
    assert REMAKE not in effects
    said = told(stage)
    assert (said["state"], "damaged again" in str(said["trouble"])) == ("stopped", True)


def test_damage_found_while_opening_is_reported() -> None:
    stage, effects = opened(at=0, damage="no database")
    assert reports(effects) == ["database damaged"]
    assert told(stage)["damage"] == "no database"


# A node that began with a checkpoint, and its database from nothing.


def from_checkpoint(*, offset: int) -> Stage:
    """Messages up to 8 are in a checkpoint, and in the log from 3 on, which has the stream from some offset on."""
    stage = Stage(3, attach=False)
    stage.index = 2
    for _ in range(6):
        stage.agree()
    stage.journal.base = CheckpointBase(LogPosition(8, 1, 0, b""), {"main": 8}, {})
    stage.journal.first, stage.journal.offset = 3, offset
    stage.attach()
    stage.step(Entered(peer(2), {}))
    stage.step(Drained())
    return stage


def test_new_database_is_built_from_a_complete_log() -> None:
    stage = from_checkpoint(offset=0)
    effects = [*stage.step(DatabaseOpened("main", 0, b"f" * 32)), *stage.step(Drained())]
    assert works(answered(stage, effects)) == [3, 4, 5, 6, 7, 8]


def test_new_database_takes_a_copy_if_the_log_lacks_its_start() -> None:
    stage = from_checkpoint(offset=2)
    effects = [*stage.step(DatabaseOpened("main", 0, b"f" * 32)), *stage.step(Drained())]
    assert stage.said(effects) == [(2, AskCopy("main", 0))]
    assert stage.core.first_needed() == 1, "and nothing more goes meanwhile"


def test_database_that_has_the_dropped_messages_continues_with_the_log() -> None:
    stage = from_checkpoint(offset=2)
    effects = [*stage.step(DatabaseOpened("main", 2, b"f" * 32, kept=2)), *stage.step(Drained())]
    assert works(answered(stage, effects)) == [3, 4, 5, 6, 7, 8]
