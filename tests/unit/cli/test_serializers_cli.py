"""`chaplain member serializers` says what a smaller set costs, and asks whoever can answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from click.testing import CliRunner, Result

from chaplain.cli.commands import member
from chaplain.cli.support.member_changes import lost_fault_tolerance
from chaplain.client.types.journal import ChangeRecord, ClusterConfigRecord

COST = "serializers 4 tolerate no failure; the present serializers 1, 2, 3 tolerate 1."


class Cluster:
    """Three serializers, and whatever new ones are asked for."""

    def __init__(self) -> None:
        self.asked: list[Sequence[int]] = []

    def nodes(self) -> ClusterConfigRecord:
        done = [ChangeRecord("id", "new_set", tuple(asked), "confirm", False, 7, "") for asked in self.asked]
        return ClusterConfigRecord((), (1, 2, 3), tuple(done))

    def new_serializers(self, nodes: Sequence[int]) -> str:
        self.asked.append(nodes)
        return "id"


@pytest.fixture
def cluster(monkeypatch) -> Cluster:
    made = Cluster()

    @contextmanager
    def connected(*_: object) -> Iterator[Cluster]:
        yield made

    monkeypatch.setattr(member, "connected", connected)
    return made


def serializers(*words: str, answer: str = "") -> Result:
    return CliRunner().invoke(member.member, ["serializers", *words, "--cluster", "c"], input=answer)


def test_smaller_serializer_set_asks_for_confirmation(cluster, monkeypatch) -> None:
    monkeypatch.setattr(member, "is_interactive", lambda: True)
    refused = serializers("4", answer="\n")
    assert refused.exit_code == 1
    assert COST in refused.stderr
    assert "nothing has changed" in refused.stderr
    assert not cluster.asked
    assert serializers("4", answer="y\n").exit_code == 0
    assert cluster.asked == [(4,)]


def test_set_with_the_same_fault_tolerance_asks_for_no_confirmation(cluster, monkeypatch) -> None:
    monkeypatch.setattr(member, "is_interactive", lambda: True)
    for numbers in (("1", "2", "4"), ("1", "2", "3", "4"), ("1", "2", "3", "4", "5")):
        done = serializers(*numbers)
        assert (done.exit_code, done.stderr) == (0, "")
    assert len(cluster.asked) == 3


def test_smaller_serializer_set_with_yes_asks_for_no_confirmation(cluster, monkeypatch) -> None:
    monkeypatch.setattr(member, "is_interactive", lambda: True)
    done = serializers("4", "--yes")
    assert (done.exit_code, done.stderr) == (0, "")
    assert cluster.asked == [(4,)]


def test_smaller_serializer_set_in_a_script_needs_yes(cluster) -> None:
    done = serializers("4", "--output", "json")
    assert done.exit_code == 1
    assert done.stderr == f"Error: {COST} Nothing has changed: repeat the command with --yes\n"
    assert not cluster.asked
    assert serializers("4", "--output", "json", "--yes").exit_code == 0
    assert cluster.asked == [(4,)]


def test_warning_about_a_smaller_set_names_the_lost_fault_tolerance() -> None:
    assert lost_fault_tolerance((1, 2, 3), (2, 1)).startswith("serializers 2, 1 tolerate no failure; ")
    five = "serializers 1, 2, 3 tolerate 1 failure; the present serializers 1, 2, 3, 4, 5 tolerate 2."
    assert lost_fault_tolerance((1, 2, 3, 4, 5), (1, 2, 3)) == five
    assert "tolerate 2 failures; " in lost_fault_tolerance((1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5))
    assert lost_fault_tolerance((1, 2), (1,)) == ""
    assert lost_fault_tolerance((1, 2, 3, 4), (1, 2, 3)) == ""
