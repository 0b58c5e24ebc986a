"""The checker of journals: each guarantee has a history that breaks it; a correct history breaks none."""

from __future__ import annotations

import pytest

from chaplain import Message
from chaplain.drill.journal_history import Attempt, judge


def message(offset: int, value: bytes) -> Message:
    return Message(
        stream="s", offset=offset, key=None, value=value, headers={}, timestamp=0, client_id=1, client_message_id=1,
        message_no=0, regime=1, index=offset, ingest_node=1,
    )  # fmt: skip


def reading(*values: bytes) -> list[Message]:
    return [message(offset, value) for offset, value in enumerate(values)]


def wrote(value: bytes, offset: int | None, invoked_s: float = 0.0, acked_s: float = 1.0, refused: str = "") -> Attempt:
    return Attempt(value, invoked_s, acked_s, offset, index=offset or 0, refused=refused)


def breaks(histories: list[list[Attempt]], *readings: list[Message]) -> list[tuple[str, int | None]]:
    return [(one.kind, one.offset) for one in judge(histories, dict(enumerate(readings, 1)))]


def test_correct_history_has_no_breaks() -> None:
    ann = [wrote(b"a1", 0, 0, 1), wrote(b"a2", 2, 2, 3), wrote(b"a3", None, 4)]
    bob = [wrote(b"b1", 1, 0, 3), wrote(b"b2", None, 4, refused="full"), wrote(b"b3", None, 5)]
    held = reading(b"a1", b"b1", b"a2", b"b3")
    assert breaks([ann, bob], held, held, held) == []


@pytest.mark.parametrize(
    ("histories", "readings", "found"),
    [
        ([[wrote(b"a", 0), wrote(b"b", 1, 2, 3)]], [reading(b"a")], [("lost", 1)]),
        ([[wrote(b"a", None)]], [reading(b"a", b"a")], [("doubled", 0), ("doubled", 1)]),
        ([[wrote(b"a", 1), wrote(b"b", None)]], [reading(b"a", b"b")], [("moved", 1)]),
        ([[wrote(b"a", None, refused="no")]], [reading(b"a")], [("phantom", 0)]),
        ([[wrote(b"a", 0)]], [reading(b"a", b"x")], [("foreign", 1)]),
        ([[wrote(b"b", None), wrote(b"a", None)]], [reading(b"a", b"b")], [("disordered", 0)]),
        ([[wrote(b"a", 1, 0, 1)], [wrote(b"b", 0, 2, 3)]], [reading(b"b", b"a")], [("overtaken", 0)]),
        ([[wrote(b"a", 0)]], [reading(b"a"), reading(b"a", b"a")], [("different", 1)]),
        ([[wrote(b"a", 0)]], [reading(b"a"), []], [("different", 0)]),
        ([[wrote(b"a", None), wrote(b"b", None)]], [reading(b"a", b"b"), reading(b"b", b"a")], [("different", 0)]),
        ([[wrote(b"a", 1)]], [[message(1, b"a")]], [("gap", 0)]),
    ],
)
def test_journal_checker_names_each_break(
    histories: list[list[Attempt]], readings: list[list[Message]], found: list[tuple[str, int]]
) -> None:
    assert breaks(histories, *readings) == found
