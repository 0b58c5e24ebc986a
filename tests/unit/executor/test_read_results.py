"""What an executor remembers of results that were read: from its database, and from the other executors."""

from __future__ import annotations

from chaplain.core import Drained
from chaplain.executor.events import ClearResults, DatabaseOpened, TakeResults
from chaplain.executor.messages import AskResults, ReadThrough, WereRead
from chaplain.mesh.events import Entered
from tests.unit.executor.core_stage import ACL, Stage, peer, ready


def test_read_marks_survive_a_restart_and_are_sent_to_others() -> None:
    stage = Stage(3)
    for node in (2, 3):
        stage.step(Entered(peer(node), {}))
    stage.agree()
    stage.step(Drained())
    opened = stage.step(DatabaseOpened("main", 1, b"f" * 32, read=((ACL, 1, 5), (ACL, 4, 9))))
    were = WereRead("main", ACL, ((1, 5), (4, 9)))
    assert stage.said(opened) == [(2, were), (3, were)]
    assert (3, were) in stage.said(stage.step(Entered(peer(3), {})))
    (look,) = stage.ask(AskResults("main", 0, 0, 0, 1))
    assert look == TakeResults(1, "main", ACL, 0, 0, 0, ((1, 5), (4, 9)))


def test_read_marks_received_before_the_database_opens_are_stored_in_it() -> None:
    stage = Stage(3)
    stage.agree()
    stage.step(Drained())
    assert not stage.hears(2, WereRead("main", ACL, ((1, 5), (4, 2))))
    opened = stage.step(DatabaseOpened("main", 1, b"f" * 32, read=((ACL, 1, 3), (ACL, 4, 9))))
    assert ClearResults("main", ACL, ((1, 5), (4, 2))) in opened
    (look,) = stage.ask(AskResults("main", 0, 0, 0, 1))
    assert look == TakeResults(1, "main", ACL, 0, 0, 0, ((1, 5), (4, 9)))


def test_known_read_marks_are_not_stored_again() -> None:
    """Whoever comes tells everything that it remembers."""
    stage = ready(3)
    stage.ask(ReadThrough("main", ((1, 5),)))
    assert stage.hears(2, WereRead("main", ACL, ((1, 5), (4, 9)))) == [ClearResults("main", ACL, ((4, 9),))]
    assert not stage.hears(3, WereRead("main", ACL, ((1, 4), (4, 9))))
