"""When a master implements a new serializer set."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from chaplain.journal.consensus.reconfiguration import Progress, Reconfiguration
from chaplain.journal.messages.membership import EntryType, SetRefusal, Stage
from chaplain.journal.model.cluster_config import ConfigChange, MemberRoles, initial_config

MASTER, OLD, NEW = 1, 2, 3
NOMINATED = 40
SECOND = 10**9
SETTINGS = SimpleNamespace(node=MASTER, election_ns=SECOND, nomination_ns=10 * SECOND, drain_ns=10 * SECOND)


class MasterOfAChange:
    """A master that watches one nomination: from nodes 1 and 2 to nodes 1 and 3."""

    def __init__(self) -> None:
        change = ConfigChange(
            b"c" * 15, b"a" * 32, EntryType.NEW_SERIALIZER_SET, (MASTER, NEW), Stage.NOMINATE, NOMINATED
        )
        cluster_config = initial_config(MemberRoles(node, b"key %d" % node, "", b"") for node in (MASTER, OLD, NEW))
        cluster_config = replace(cluster_config, serializers=(MASTER, OLD), changes=(change,))
        context = SimpleNamespace(log=SimpleNamespace(cluster_config=cluster_config), settings=SETTINGS)
        self.watch = Progress(0)
        self._stages = Reconfiguration(context, self.watch)  # type: ignore[arg-type]

    def due(self, now_ns: int) -> tuple[Stage, SetRefusal] | None:
        step = self._stages.next_step(now_ns)
        return None if step is None else (step.stage, step.reason)


@pytest.fixture
def master() -> MasterOfAChange:
    return MasterOfAChange()


def test_set_is_implemented_when_its_new_node_has_the_nomination(master: MasterOfAChange) -> None:
    master.watch.record(SECOND, NEW, NOMINATED)
    assert master.due(SECOND) == (Stage.IMPLEMENT, SetRefusal.NONE)


@pytest.mark.parametrize("held", [0, NOMINATED - 1])
def test_set_is_not_implemented_before_its_new_node_has_the_nomination(master: MasterOfAChange, held: int) -> None:
    master.watch.record(SECOND, NEW, held)
    assert master.due(SECOND) is None


def test_set_is_not_implemented_while_its_new_node_was_never_heard(master: MasterOfAChange) -> None:
    master.watch.record(SECOND, OLD, NOMINATED)
    assert master.due(SECOND) is None


def test_set_is_not_implemented_when_its_new_node_was_last_heard_an_election_timeout_ago(
    master: MasterOfAChange,
) -> None:
    master.watch.record(SECOND, NEW, NOMINATED)
    assert master.due(2 * SECOND) is None


def test_set_is_refused_when_its_new_node_makes_no_progress(master: MasterOfAChange) -> None:
    assert master.due(0) is None
    master.watch.record(9 * SECOND, NEW, 0)
    assert master.due(10 * SECOND) == (Stage.REFUSE, SetRefusal.TIMED_OUT)
