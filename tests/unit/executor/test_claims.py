"""What the log keeps for stopped executors: bounded, noted on disk before it goes, and remembered across a restart."""

from __future__ import annotations

import pytest

from chaplain.core import Drained, Persist, Persisted, Replace, Report, Woken
from chaplain.errors import StorageError
from chaplain.executor import claims
from chaplain.executor.core import ExecutorCore
from chaplain.executor.events import DatabaseOpened, OpenDatabase
from chaplain.executor.messages import AskCopy, CopyPiece
from chaplain.mesh.events import Entered
from tests.unit.executor.core_stage import Stage, peer, works
from tests.unit.executor.test_snapshots import tell

BOUND = 1000
DIGEST = b"d" * 32


def stage_with(given_up: bytes | None = None, nodes: int = 2, bound: int = BOUND) -> Stage:
    stage = Stage(nodes, core=ExecutorCore(1, 1, stopped_bytes_max=bound, given_up=given_up))
    stage.step(Entered(peer(2), {}))
    return stage


def stopped(bound: int = BOUND) -> Stage:
    """Messages 1 and 2 are agreed and covered by a checkpoint; the database cannot be opened."""
    stage = stage_with(bound=bound)
    stage.agree()
    stage.agree()
    assert OpenDatabase("main") in stage.step(Drained())
    stage.step(DatabaseOpened("main", failed="File name too long"))
    stage.step(Drained())
    stage.journal.keep_through = 2
    return stage


def wake(stage: Stage) -> list[object]:
    stage.now_ns += claims.LOOK_NS
    return stage.step(Woken())


def notes(effects: list[object]) -> list[Persist]:
    return [effect for effect in effects if isinstance(effect, Persist)]


def test_stopped_executor_retains_the_log_up_to_the_bound() -> None:
    stage = stopped()
    stage.journal.held = BOUND
    assert not notes(wake(stage))
    assert stage.core.first_needed() == 1


def test_claim_beyond_the_bound_ends_once_its_note_is_on_disk() -> None:
    stage = stopped()
    stage.journal.held = BOUND + 1
    [note] = notes(wake(stage))
    assert note.operations == (Replace(claims.FILE, b'{"main":2}\n'),)
    assert stage.core.first_needed() == 1, "the note is not on disk yet"
    [report] = stage.step(Persisted(note.ticket))
    assert isinstance(report, Report)
    assert report.detail == {"stream": "main", "index": 2, "reason": "File name too long"}
    assert stage.core.first_needed() > 2
    assert stage.core.status()["databases"]["main"]["needs_copy"]  # type: ignore[index]
    assert stage.core.gauges() == {"executor_stopped": 1}
    assert stage.core.counts["logs_given_up"] == 1


def test_stopped_executor_claims_later_messages_again() -> None:
    stage = stopped()
    stage.journal.held = BOUND + 1
    [note] = notes(wake(stage))
    stage.step(Persisted(note.ticket))
    stage.agree()
    assert stage.core.first_needed() == 3
    assert not notes(wake(stage)), "no checkpoint covers message 3"
    stage.journal.keep_through = 3
    [note] = notes(wake(stage))
    assert note.operations == (Replace(claims.FILE, b'{"main":3}\n'),)


def test_claim_without_a_bound_never_ends() -> None:
    stage = stopped(bound=0)
    stage.journal.held = 1 << 60
    assert stage.core.deadline() is None
    assert not notes(wake(stage))


def test_working_executor_retains_the_log_without_limit() -> None:
    stage = stage_with()
    stage.agree()
    stage.open(1)
    stage.journal.keep_through, stage.journal.held = 1, 1 << 60
    stage.step(Drained())
    assert not notes(wake(stage))
    assert stage.core.first_needed() == 1


def test_database_before_a_given_up_message_takes_a_newer_copy() -> None:
    """Messages 2 and 3 were dropped. Message 4 is in the log, and must not be applied to a database without them."""
    stage = stage_with(b'{"main":3}\n')
    stage.index, stage.journal.first = 3, 4
    stage.agree()
    effects = stage.open(1)
    assert not works(effects)
    assert stage.said(effects) == [(2, AskCopy("main", 0))]
    too_early = tell(stage, 2, CopyPiece("main", 2, 0, 4, DIGEST), b"four")
    assert stage.said(too_early) == [(2, AskCopy("main", 0))], "the next node is asked instead"
    assert tell(stage, 2, CopyPiece("main", 3, 0, 4, DIGEST), b"four")
    stage.step(DatabaseOpened("main", 3, b"f" * 32))
    assert any(type(effect).__name__ == "ReadBack" for effect in stage.step(Drained())), "it continues with message 4"


def test_database_after_all_given_up_messages_continues_with_the_log() -> None:
    stage = stage_with(b'{"main":2}\n')
    stage.index, stage.journal.first = 2, 3
    stage.agree()
    effects = stage.open(2)
    assert not stage.said(effects)
    assert any(type(effect).__name__ == "ReadBack" for effect in effects)


def test_unreadable_note_is_an_error_with_a_remedy() -> None:
    with pytest.raises(StorageError, match="remove it and the databases"):
        ExecutorCore(1, 1, given_up=b"{")
