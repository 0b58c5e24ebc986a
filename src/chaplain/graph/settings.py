"""Everything about the graph that somebody may want to set, with its bound."""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.units import KIB, MIB, MILLISECOND_NS, SECOND_NS


class GraphSettings(Frozen, frozen=True):
    cluster: str
    """Signatures cover it: an event of one cluster proves nothing in another."""
    log: str = "graph"
    folder: str = ""
    """Put before every file name, with its slash."""
    segment_bytes: int = 64 * MIB
    keep_events: int = 0
    """Events of a stream below these newest ones may be pruned once everybody has them; 0: nothing ever is."""

    sync_ns: int = 2 * SECOND_NS
    """How often leaves are told to every neighbour."""
    resend_ns: int = 2 * SECOND_NS
    """How often unread events are sent again (`SEND_UNREAD_EVENTS_INTERVAL`)."""
    rebroadcast_ns: int = 150 * MILLISECOND_NS
    """An event that is unread for so long is passed on to whoever has not shown that they have it."""
    confirm_ns: int = 5 * MILLISECOND_NS
    """Confirmations wait so long for each other: one signature covers all ancestors."""
    valid_ns: int = 300 * SECOND_NS
    """A first broadcast whose timestamp is further from now is refused; it may still come with a sync."""
    ahead_ns: int = 24 * 3600 * SECOND_NS
    """An event whose timestamp is further in the future is not taken before it is not, whichever way it comes."""
    ahead_max: int = 1 << 16
    """Ids of such events, remembered so that they are not fetched again and again; at the bound the oldest goes."""
    fetch_timeout_ns: int = 3 * SECOND_NS

    content_bytes_max: int = MIB
    streams_max: int = 1024
    parents_max: int = 32
    """Further parents of an event that we write; the format allows 64."""
    orphans_max: int = 4096
    orphans_per_author: int = 512
    orphan_bytes_max: int = 16 * MIB
    early_max: int = 4096
    """Confirmations of events that are not here yet."""
    asked_max: int = 256
    """Events one peer may be asked for at a time."""
    recent_bytes_max: int = 16 * MIB
    """Events kept in memory for those who ask at once."""
    watched_max: int = 200_000
    """Read events of which further confirmations are counted."""
    page_events_max: int = 1024
    page_bytes_max: int = 512 * KIB
    """What one answer to a fetch or a reader holds; one larger event goes alone."""
    push_max: int = 64
    """So many missing events are sent to a neighbour at once; one who misses more fetches them."""
    checks_inline_max: int = 8
    """More signatures than this are checked by other threads."""
    readers_max: int = 1024
    """Calls of clients that wait for news."""

    served_burst_bytes: int = 64 * MIB
    served_bytes_per_s: int = 16 * MIB
    """What one peer may be given, on average; faster, it waits."""
    work_burst: int = 20_000
    work_per_s: int = 5_000
    """Signatures of unasked events and confirmations checked for one peer; more are not looked at."""
    strikes_max: int = 128
    """What a peer may do wrong, or too often, before it is not listened to for a while."""
    ban_ns: int = 30 * SECOND_NS
