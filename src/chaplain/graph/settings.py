"""Settings of the graph layer, each with its bound."""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.units import KIB, MIB, MILLISECOND_NS, SECOND_NS


class GraphSettings(Frozen, frozen=True):
    cluster: str
    """Signatures cover the cluster name, so an event of one cluster is invalid in another."""
    log: str = "graph"
    folder: str = ""
    """Prefix of every file name, including the trailing slash."""
    segment_bytes: int = 64 * MIB
    keep_events: int = 0
    """Older events than the newest `keep_events` of a stream are pruned once every member has them. 0: never prune."""

    max_confirms: int = 0
    """Confirmations that make an event read (`MAX_CONFIRMS`); 0: half of the number of members, rounded down."""
    sync_ns: int = 2 * SECOND_NS
    """Interval at which this node sends its leaves to every neighbour."""
    resend_ns: int = 2 * SECOND_NS
    """Interval at which unread events are sent again (`SEND_UNREAD_EVENTS_INTERVAL`)."""
    rebroadcast_ns: int = 150 * MILLISECOND_NS
    """After this time, an event that is still unread is forwarded to peers that are not known to have it."""
    confirm_ns: int = 5 * MILLISECOND_NS
    """Confirmations are batched for this long: one signature covers all ancestors."""
    past_ns: int = 300 * SECOND_NS
    """A first broadcast whose timestamp is further behind the local clock is refused, and so is each repetition by its
    author.
    """
    refused_max: int = 1 << 16
    """Ids of such events that are remembered. At the bound the oldest id is dropped."""
    pause_ns: int = 10 * SECOND_NS
    """A node without an input for this long was paused: for as long again it refuses old first broadcasts without
    remembering them, because they may be as old as the pause.
    """
    ahead_ns: int = 24 * 3600 * SECOND_NS
    """An event whose timestamp is further ahead of the local clock is refused, whether broadcast or fetched. It is
    accepted once the clock has come close enough.
    """
    ahead_max: int = 1 << 16
    """Ids of such events that are remembered to avoid fetching them repeatedly. At the bound the oldest id is dropped.
    """
    fetch_timeout_ns: int = 3 * SECOND_NS
    """A bulk fetch without a page for this long is abandoned; the next sync starts another."""

    content_bytes_max: int = MIB
    streams_max: int = 1024
    parents_max: int = 32
    """Further parents in an event that this node writes; the format allows 64."""
    orphans_max: int = 4096
    orphans_per_author: int = 512
    orphan_bytes_max: int = 16 * MIB
    early_max: int = 4096
    """Events for which confirmations are kept although the event has not arrived."""
    asked_max: int = 256
    """Events requested from one peer at a time."""
    recent_bytes_max: int = 16 * MIB
    """Size of the in-memory cache of recent events."""
    watched_max: int = 200_000
    """Read events for which further confirmations are still counted."""
    page_events_max: int = 1024
    page_bytes_max: int = 512 * KIB
    """Size of one page sent to a peer or reader. A larger single event is sent alone."""
    push_max: int = 64
    """Missing events pushed to a neighbour at once. A neighbour that lacks more must fetch them."""
    checks_inline_max: int = 8
    """Larger sets of signatures are verified on worker threads."""
    readers_max: int = 1024
    """Client calls that wait for new events. Further calls are answered at once with an empty page."""

    served_burst_bytes: int = 64 * MIB
    served_bytes_per_s: int = 16 * MIB
    """Average rate at which one peer is served, after a burst of `served_burst_bytes`. Beyond it, answers are delayed.
    """
    work_burst: int = 20_000
    work_per_s: int = 5_000
    """Signatures of unrequested events and confirmations that are verified a second for one peer, after a burst of
    `work_burst`. Further ones are dropped without verification.
    """
    strikes_max: int = 128
    """Strikes for invalid or excessive messages before the peer is ignored for `ban_ns`."""
    ban_ns: int = 30 * SECOND_NS
