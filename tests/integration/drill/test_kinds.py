"""The checkers of graphs, sequences and pools: each guarantee has a history that breaks it; correct ones break none."""

from __future__ import annotations

import pytest

from chaplain.client.api.graph_calls import GraphEvent
from chaplain.client.api.sequence_calls import SequenceEvent
from chaplain.drill.graph_history import judge_graph
from chaplain.drill.journal_history import Attempt, judge
from chaplain.drill.pool_history import Losses, PoolHeard, judge_pool
from chaplain.drill.sequence_history import judge_sequence
from chaplain.drill.violations import BrokenPromise
from chaplain.drill.workers import WriteAttempt, counted


def kinds(found: list[BrokenPromise]) -> list[str]:
    return [one.kind for one in found]


# Graph.


def appended(value: bytes, event_id: str = "", refused: str = "") -> WriteAttempt:
    return WriteAttempt(value, 1.0, 2.0 if event_id else 0.0, event_id, refused=refused)


def model(*events: tuple[str, bytes]) -> list[GraphEvent]:
    return [GraphEvent(event_id, (), 1, 0, value, True, 2) for event_id, value in events]


A, B = ("aa", b"a"), ("bb", b"b")
BOTH = model(A, B)


def test_graph_without_breaks_is_clean() -> None:
    entries = [appended(b"a", "aa"), appended(b"b"), appended(b"c", refused="full"), appended(b"d")]
    assert judge_graph(entries, {1: BOTH, 2: BOTH, 3: BOTH}) == []
    assert counted(entries) == (1, 2, 1)


@pytest.mark.parametrize(
    ("entries", "readings", "found"),
    [
        ([appended(b"a", "aa"), appended(b"b", "bb")], [model(A), model(A)], ["lost"]),
        ([appended(b"a", "aa"), appended(b"b", "bb")], [BOTH, model(A)], ["different", "lost"]),
        ([appended(b"a", "aa"), appended(b"b", "bb")], [BOTH, model(B, A)], ["different"]),
        ([appended(b"a", "aa")], [model(A, A)], ["doubled"]),
        ([appended(b"a", "aa")], [model(A, ("cc", b"a"))], ["doubled"]),
        ([appended(b"b", "aa"), appended(b"a")], [model(A)], ["moved"]),
        ([appended(b"a", "aa")], [BOTH], ["foreign"]),
        ([appended(b"a", refused="no")], [model(A)], ["phantom"]),
        ([appended(b"a", "aa")], [], ["unverified"]),
        ([appended(b"a")], [], []),
    ],
)
def test_graph_checker_names_each_break(
    entries: list[WriteAttempt], readings: list[list[GraphEvent]], found: list[str]
) -> None:
    assert kinds(judge_graph(entries, dict(enumerate(readings, 1)))) == found


# Sequence.


def published(value: bytes, number: int = 0, at_s: float = 1.0, refused: str = "") -> WriteAttempt:
    return WriteAttempt(value, at_s, at_s + 0.5 if number else 0.0, number=number, refused=refused)


def order(*values: bytes, first: int = 1) -> list[SequenceEvent]:
    return [SequenceEvent("s", number, value, "drill", b"%d" % number) for number, value in enumerate(values, first)]


def test_sequence_without_breaks_is_clean() -> None:
    entries = [published(b"a", 1, 1), published(b"b", 2, 2), published(b"c"), published(b"d", refused="ERR")]
    whole = order(b"a", b"b", b"c")
    assert judge_sequence(entries, {1: whole, 2: whole, 3: whole[1:]}, 0.0) == ([], [])


@pytest.mark.parametrize(
    ("entries", "readings", "found"),
    [
        ([published(b"a", 1), published(b"b", 2, 2)], [order(b"a")], ["lost"]),
        ([published(b"a", 2), published(b"b")], [order(b"b", b"c"), order(b"b", b"c")], ["lost", "foreign"]),
        ([published(b"a", 2), published(b"b")], [order(b"a", b"b")], ["moved"]),
        ([published(b"a", 1), published(b"b", 1)], [order(b"a")], ["doubled", "lost"]),
        ([published(b"a", 1)], [order(b"a", b"a")], ["doubled", "doubled"]),
        ([published(b"a", 1)], [[*order(b"a"), *order(b"b", first=3)]], ["gap", "foreign"]),
        ([published(b"a"), published(b"b")], [order(b"a", b"b"), order(b"b", b"a")], ["different"]),
        ([published(b"a"), published(b"b")], [order(b"a", b"b"), order(b"a")], ["different"]),
        ([published(b"a", 2, 1), published(b"b", 1, 2)], [order(b"b", b"a")], ["overtaken"]),
        ([published(b"a", refused="no")], [order(b"a")], ["phantom"]),
        ([published(b"a", 1)], [[], []], ["lost"]),
        ([published(b"a", 1)], [], ["unverified"]),
    ],
)
def test_sequence_checker_names_each_break(
    entries: list[WriteAttempt], readings: list[list[SequenceEvent]], found: list[str]
) -> None:
    assert kinds(judge_sequence(entries, dict(enumerate(readings, 1)), 0.0)[0]) == found


def test_sequence_checker_leaves_out_events_from_before_the_loss_of_a_majority() -> None:
    entries = [published(b"a", 1, 1), published(b"b", 2, 2), published(b"c", 1, 9)]
    assert judge_sequence(entries, {1: order(b"c")}, 5.0) == (
        [],
        ["2 numbers given before a majority was killed at once: a sequence lives in memory"],
    )
    assert kinds(judge_sequence(entries, {1: order(b"c")}, 0.0)[0])


def test_sequence_checker_uses_the_follower_for_events_that_nodes_lost() -> None:
    entries = [published(b"a", 1, 1), published(b"b", 2, 2), published(b"c", 3, 3)]
    now = {1: order(b"c", first=3)}
    assert judge_sequence(entries, now, 0.0, order(b"a", b"b", b"c")) == ([], [])
    assert kinds(judge_sequence(entries, now, 0.0, order(b"b", b"a", b"c"))[0]) == ["moved", "moved"]
    assert kinds(judge_sequence(entries, now, 0.0, order(b"a", b"b", b"x"))[0]) == ["different"]
    assert kinds(judge_sequence(entries, now, 0.0, [*order(b"a"), *order(b"c", first=3)])[0]) == ["gap", "lost"]


def test_sequence_checker_leaves_out_events_that_nodes_no_longer_retain() -> None:
    entries = [published(b"a", 1, 1), published(b"b", 2, 2)]
    found, left_out = judge_sequence(entries, {1: order(b"b", first=2)}, 0.0)
    assert (found, left_out) == ([], ["1 numbers that nodes keep no longer, all before 2"])


# Pool.


def heard(*numbers: int, reported: tuple[int, ...] = (), speaker: int = 7) -> list[PoolHeard]:
    return [PoolHeard(speaker, number, number in reported) for number in numbers]


SENT = {7: [1.0, 2.0, 3.0, 4.0]}


@pytest.mark.parametrize(
    ("received", "faults", "found", "losses"),
    [
        (heard(0, 1, 2, 3), [], [], (0, 0)),
        (heard(2, 3), [], [], (0, 0)),  # the listener had not joined before
        ([], [], [], (0, 0)),
        (heard(0, 3), [], [], (2, 2)),
        (heard(0, 3, reported=(3,)), [], [], (2, 0)),
        (heard(0, 3), [(1.5, 3.5)], [], (2, 0)),
        (heard(0, 3), [(1.5, 2.5)], [], (2, 1)),
        (heard(0, 1), [], [], (2, 2)),  # the last broadcasts never arrived
        (heard(0, 1, 1, 2, 3), [], ["doubled"], (0, 0)),
        (heard(0, 2, 1, 3), [(0, 9)], ["disordered"], (1, 0)),
        ([*heard(0), PoolHeard(8, 0, True), *heard(3)], [], [], (2, 0)),  # reported with a broadcast of another speaker
    ],
)
def test_pool_checker_names_breaks_and_counts_losses(
    received: list[PoolHeard], faults: list[tuple[float, float]], found: list[str], losses: tuple[int, int]
) -> None:
    judged, counted_losses = judge_pool(SENT, {1: received}, faults)
    assert (kinds(judged), counted_losses) == (found, Losses(*losses))


def test_unacknowledged_broadcast_is_no_loss() -> None:
    assert judge_pool({7: [1.0, 0.0, 3.0, 0.0]}, {1: heard(0, 2)}, []) == ([], Losses(0, 0))


# Journal.


def test_journal_checker_reports_unverified_writes_if_no_node_was_read() -> None:
    writes = [[Attempt(b"a", 1.0, 2.0, 5), Attempt(b"b", 1.0)], [Attempt(b"c", 1.0, 2.0, 9)]]
    (found,) = judge(writes, {})
    assert (found.kind, found.offset) == ("unverified", 5)
    assert "2 acknowledged writes, at offsets 5 to 9," in found.detail
    assert judge([[Attempt(b"b", 1.0)]], {}) == []
