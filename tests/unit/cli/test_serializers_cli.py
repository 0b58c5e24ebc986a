"""`chaplain member serializers` says what a smaller set costs, and asks whoever can answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from click.testing import CliRunner, Result

from chaplain.cli.commands import member
from chaplain.cli.support.member_changes import weakened
from chaplain.client.types.journal import AssemblyRecord, ChangeRecord

COST = "4 alone will agree on the order, and no failure of them is survived; of 1, 2, 3, who do now, 1 may."


class Cluster:
    """Three serializers, and whatever new ones are asked for."""

    def __init__(self) -> None:
        self.asked: list[Sequence[int]] = []

    def nodes(self) -> AssemblyRecord:
        done = [ChangeRecord("id", "new_set", tuple(asked), "confirm", False, 7, "") for asked in self.asked]
        return AssemblyRecord((), (1, 2, 3), tuple(done))

    def new_serializers(self, nodes: Sequence[int]) -> str:
        self.asked.append(nodes)
        return "id"


@pytest.fixture
def cluster(monkeypatch) -> Cluster:
    made = Cluster()

    @contextmanager
    def reach(*_: object) -> Iterator[Cluster]:
        yield made

    monkeypatch.setattr(member, "reach", reach)
    return made


def serializers(*words: str, answer: str = "") -> Result:
    return CliRunner().invoke(member.member, ["serializers", *words, "--cluster", "c"], input=answer)


def test_a_smaller_set_is_asked_about(cluster, monkeypatch) -> None:
    monkeypatch.setattr(member, "somebody_answers", lambda: True)
    refused = serializers("4", answer="\n")
    assert refused.exit_code == 1
    assert COST in refused.stderr
    assert "nothing has changed" in refused.stderr
    assert not cluster.asked
    assert serializers("4", answer="y\n").exit_code == 0
    assert cluster.asked == [(4,)]


def test_one_that_is_no_weaker_is_not_asked_about(cluster, monkeypatch) -> None:
    monkeypatch.setattr(member, "somebody_answers", lambda: True)
    for numbers in (("1", "2", "4"), ("1", "2", "3", "4"), ("1", "2", "3", "4", "5")):
        done = serializers(*numbers)
        assert (done.exit_code, done.stderr) == (0, "")
    assert len(cluster.asked) == 3


def test_with_yes_nothing_is_asked(cluster, monkeypatch) -> None:
    monkeypatch.setattr(member, "somebody_answers", lambda: True)
    done = serializers("4", "--yes")
    assert (done.exit_code, done.stderr) == (0, "")
    assert cluster.asked == [(4,)]


def test_a_program_is_told_and_not_held_up(cluster) -> None:
    done = serializers("4", "--output", "json")
    assert done.exit_code == 0
    assert done.stderr == f"{COST}\n"
    assert cluster.asked == [(4,)]


def test_what_a_set_of_fewer_costs() -> None:
    assert "2, 1 alone will agree on the order, and no failure" in weakened((1, 2, 3), (2, 1))
    assert weakened((1, 2, 3, 4, 5), (1, 2, 3)).endswith("1 of them may fail; of 1, 2, 3, 4, 5, who do now, 2 may.")
    assert weakened((1, 2), (1,)) == ""
    assert weakened((1, 2, 3, 4), (1, 2, 3)) == ""
