"""Token buckets and strikes of the graph's per-peer quota."""

from __future__ import annotations

from chaplain.graph.peer_quota import PeerQuota, TokenBucket
from chaplain.graph.settings import GraphSettings
from chaplain.units import SECOND_NS


def test_bucket_refills_at_its_rate_up_to_its_burst() -> None:
    bucket = TokenBucket(100, 10, 0)
    bucket.level = 0
    assert bucket.fill(SECOND_NS) == 10
    assert bucket.fill(60 * SECOND_NS) == 100


def test_bucket_keeps_time_shorter_than_one_token() -> None:
    bucket = TokenBucket(100, 10, 0)
    bucket.level = 0
    assert [bucket.fill(tenth * SECOND_NS // 20) for tenth in range(1, 5)] == [0, 1, 1, 2]


def test_token_bucket_is_unchanged_when_the_clock_goes_back() -> None:
    """Elapsed time is never negative, so an earlier time neither adds tokens nor moves the refill time back."""
    bucket = TokenBucket(100, 10, 5 * SECOND_NS)
    bucket.level = 0
    assert bucket.fill(0) == 0
    assert bucket.fill(5 * SECOND_NS) == 0
    assert bucket.fill(6 * SECOND_NS) == 10


def test_peer_is_ignored_once_its_strikes_are_used_up() -> None:
    quota = PeerQuota(GraphSettings("test", strikes_max=2, ban_ns=SECOND_NS), 0)
    assert [quota.strike(0), quota.strike(0)] == [False, True]
    assert quota.banned(SECOND_NS - 1)
    assert not quota.banned(SECOND_NS)
