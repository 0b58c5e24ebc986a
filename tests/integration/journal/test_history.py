"""The judge of histories sees what it is there for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaplain import Message
from tests.integration.journal.support.history import Attempt, judge, judge_chain


def message(offset: int, value: bytes) -> Message:
    return Message("load", offset, None, value, {}, 0, 1, offset + 1, 0, 1, offset + 1, 1)


READING = [message(0, b"0:0"), message(1, b"0:1"), message(2, b"1:0")]
ONE = [Attempt(b"0:0", 1.0, 2.0, 0, 1), Attempt(b"0:1", 3.0, 4.0, 1, 2)]
OTHER = [Attempt(b"1:0", 3.5, 5.0, 2, 3), Attempt(b"1:1", 6.0)]


def test_correct_history_passes_the_checker() -> None:
    counts = judge([ONE, OTHER], {1: READING, 2: list(READING)})
    assert counts == {"acknowledged": 3, "unknown": 1, "unknown and written": 0, "refused": 0}


def test_false_history_fails_the_checker() -> None:
    with pytest.raises(AssertionError, match=r"1 breaks, the first: .*lost"):
        judge([ONE, OTHER], {1: READING[:2]})


def test_receipt_hash_equals_the_message_hash_on_every_node() -> None:
    told = [[replace(ONE[0], hash=b"a"), replace(ONE[1], hash=b"b")], [Attempt(b"1:1", 6.0)]]
    chain = {1: b"a", 2: b"b", 3: b"c"}
    assert judge_chain(told, {1: chain, 2: dict(chain)}) == 2
    for other in ({1: b"a", 2: b"x"}, {1: b"a"}):
        with pytest.raises(AssertionError, match="another hash than its receipt"):
            judge_chain(told, {1: chain, 2: other})
