"""The bounds and periods of gossip, each with what happens at it. Byte formats are not settings: see `codec`."""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.units import MILLISECOND_NS, SECOND_NS

CONTENT_BYTES_MAX = 16 * 1024
"""Unless it is set otherwise; clients check it before they send."""


class GossipSettings(Frozen, frozen=True):
    silence_ns: int = 5 * SECOND_NS
    """T: silent so long, a member is asked about; twice as long, it is taken to have left."""
    tick_ns: int = 250 * MILLISECOND_NS
    """How often clocks are looked at; every period below is rounded up to it."""
    flood_max: int = 16
    """Up to so many members a message goes to all sessions; above, to `fanout` chosen by chance, then repair."""
    fanout: int = 5
    hops_max: int = 40
    """A message forwarded more often than this is dropped: a loop, or a liar."""
    sessions_max: int = 64
    """Up to so many members every member is met; above, only ring neighbours at distances 1, 2, 4 …"""
    always_met: frozenset[int] = frozenset()
    """Members that are met in a cluster of any size: the configured ones. Whoever invents members by the thousand must
    not part those that do exist."""
    members_max: int = 16_384
    """Members present. At the bound newcomers are refused and reported."""
    hearsay_max: int = 4_096
    """Of these, how many may be known by others' word only. At the bound only those who contact us are added."""
    left_max: int = 1_024
    """Remembered members that left. At the bound the one that left first is forgotten."""
    strangers_max: int = 256
    """Origins that are no members whose message ids are remembered. At the bound the longest silent is forgotten."""
    window: int = 1_024
    """How far behind an origin's newest message an older one may be and still be taken."""
    recent_max: int = 512
    """Messages kept for repair; the oldest goes first."""
    recent_bytes_max: int = 1024 * 1024
    recent_age_ns: int = 10 * SECOND_NS
    repair_ns: int = 1 * SECOND_NS
    sync_ns: int = 2 * SECOND_NS
    sync_bucket: int = 64
    """About how many members one comparison of views covers."""
    heal_ns: int = 2 * SECOND_NS
    """First wait before a member that left without saying so is met again; grows by half up to `heal_wait_max_ns`."""
    heal_wait_max_ns: int = 8 * SECOND_NS
    heal_for_ns: int = 24 * 3600 * SECOND_NS
    """Lost so long, a member is given up; but not at a door."""
    join_retry_ns: int = 1 * SECOND_NS
    bytes_per_second_max: int = 512 * 1024
    """What this node may say in gossip. Above, ordinary messages are dropped and counted (repair brings them later);
    membership may use one second's worth more."""
    content_bytes_max: int = CONTENT_BYTES_MAX
    """Content of an event, question or answer."""
    queries_max: int = 256
    """Questions of ours that wait, questions of others our application has yet to answer, and events of ours that wait
    to be acknowledged. At the bound a new one is refused (ours) or declined (theirs)."""
    questions_max: int = 1_024
    """Different questions that our applications answer. One more is refused."""
    query_timeout_max_ns: int = 60 * SECOND_NS
    late_answers_ns: int = SECOND_NS // 5
    """A decided question waits so long for those who have not answered."""
