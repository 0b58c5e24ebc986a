"""Rates and counts."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from chaplain.gateway import problems
from chaplain.gateway.limits import InUse, TokenBucket
from chaplain.gateway.problems import Problem


def test_bucket_allows_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(2.0, 3)
    assert [bucket.take(10.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(10.5) for _ in range(2)] == [True, False]
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]


def test_bucket_ignores_a_clock_that_goes_back() -> None:
    bucket = TokenBucket(1.0, 1)
    assert bucket.take(10.0)
    assert not bucket.take(5.0)
    assert bucket.take(6.0)


def test_amount_beyond_a_bound_raises_the_problem_of_this_bound() -> None:
    used = InUse(3, Problem(problems.BUSY, "all"), 2, Problem(problems.RATE_LIMITED, "one"))
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(used.hold("a"))
        with pytest.raises(Problem, match="one") as one, used.hold("a"):
            pass
        assert one.value.headers == {"retry-after": "1"}
        stack.enter_context(used.hold("b"))
        with pytest.raises(Problem, match="all"), used.hold("b"):
            pass
        assert used.total == 3
    assert used.total == 0
    with used.hold("a"):
        assert used.total == 1
