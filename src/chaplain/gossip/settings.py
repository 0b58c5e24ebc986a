"""The bounds and periods of gossip, each with what happens at it. Byte formats are not settings: see `codec`."""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.units import MILLISECOND_NS, SECOND_NS

CONTENT_BYTES_MAX = 16 * 1024
"""The default. Clients check it before they send."""


class GossipSettings(Frozen, frozen=True):
    silence_ns: int = 5 * SECOND_NS
    """T: a member that is silent for T is suspected and asked about; after 2 T it is declared to have left."""
    tick_ns: int = 250 * MILLISECOND_NS
    """The interval of the timer; every period below is rounded up to it."""
    flood_max: int = 16
    """Up to this many members a message is sent to all sessions; above, to `fanout` random ones, followed by repair."""
    fanout: int = 5
    hops_max: int = 40
    """A message that was forwarded more often is dropped: it is in a loop, or forged."""
    sessions_max: int = 64
    """Up to this many members, all members have sessions with each other.
    Above, only ring neighbours at distances 1, 2, 4 … do."""
    always_met: frozenset[int] = frozenset()
    """Members that get a session in a cluster of any size: the configured ones. An attacker that invents thousands of
    members must not separate the real ones.
    """
    members_max: int = 16_384
    """Members present. At the bound new members are refused and reported."""
    hearsay_max: int = 4_096
    """Of these, members that are known from others only. At the bound only members that contact this node are added."""
    left_max: int = 1_024
    """Remembered members that left. At the bound the one that left first is forgotten."""
    strangers_max: int = 256
    """Origins that are not members and whose message ids are remembered. At the bound the least recent is forgotten."""
    window: int = 1_024
    """The largest distance of an accepted message to the newest one of its origin."""
    recent_max: int = 512
    """Messages retained for repair; the oldest is dropped first."""
    recent_bytes_max: int = 1024 * 1024
    recent_age_ns: int = 10 * SECOND_NS
    repair_ns: int = 1 * SECOND_NS
    """The interval at which one random peer gets a HAVE with recent message ids."""
    sync_ns: int = 2 * SECOND_NS
    """The interval of comparing membership lists with one random peer."""
    sync_bucket: int = 64
    """The approximate number of members that one comparison covers."""
    heal_ns: int = 2 * SECOND_NS
    """First wait before reconnecting to a lost member; grows by half up to `heal_wait_max_ns`."""
    heal_wait_max_ns: int = 8 * SECOND_NS
    heal_for_ns: int = 24 * 3600 * SECOND_NS
    """After this time a lost member is no longer dialled, except at a seed endpoint."""
    join_retry_ns: int = 1 * SECOND_NS
    """The interval of DISCOVERED messages while no member has acknowledged the join."""
    bytes_per_second_max: int = 512 * 1024
    """The send budget of gossip. Above it, ordinary messages are dropped and counted (repair delivers them later).
    Membership messages may use one second's budget more."""
    content_bytes_max: int = CONTENT_BYTES_MAX
    """Content of an event, question or answer."""
    queries_max: int = 256
    """Open questions of this node, questions that its application has yet to answer, and events that wait for
    acknowledgements. At the bound a new one is refused (our own) or declined (of others)."""
    questions_max: int = 1_024
    """Different questions that our applications answer. A further one is refused."""
    query_timeout_max_ns: int = 60 * SECOND_NS
    late_answers_ns: int = SECOND_NS // 5
    """A decided question waits this long for members that have not answered."""
