"""Bounds and intervals of the sequence, each with what happens at it."""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.units import MILLISECOND_NS, SECOND_NS


class SequenceSettings(Frozen, frozen=True):
    identifier: int
    """This node's identifier in parcels and work sets."""
    listed: tuple[int, ...] = ()
    """Identifiers of the other configured nodes, used where the cluster has no agreed member list."""
    neighbours: tuple[str, ...] = ()
    """Configured endpoints. Discovery waits until a node was met at each of them, unless the members are known."""
    heartbeat_ns: int = SECOND_NS
    silence_ns: int = 5 * SECOND_NS
    """A member that is silent for this long is proposed for removal. A node that hears no majority for this long enters
    ERR.
    """
    patience_ns: int = 10 * SECOND_NS
    """How long a majority of the listed nodes waits for the rest before it founds a history."""
    lonely_ns: int = 2 * SECOND_NS
    """A node that founded a history alone holds back its first events for this long, because another node may be
    joining.
    """
    lock_wait_ns: int = 400 * MILLISECOND_NS
    """A node that waits for the lock and sees no progress for this long takes it with a new ballot."""
    lock_wait_ns_max: int = 4 * SECOND_NS
    """Failed attempts double the wait up to this value."""
    lack_ns: int = 100 * MILLISECOND_NS
    """Entries that peers have and that have not arrived within this time are requested."""
    chore_ns: int = 1 * SECOND_NS
    """How long the other members leave a due change of the work set to the lock holder."""
    batch_bytes_max: int = 1 << 20
    """A batch is closed at this size; further events go into the next batch."""
    publish_bytes_max: int = 2 << 20
    """Size of one publish call; a larger one is refused."""
    pending_bytes_max: int = 16 << 20
    """Events that wait for the lock; beyond this size publishing is refused as busy."""
    flight_bytes_max: int = 5 << 20
    """Entries without a majority; beyond this size nothing is written. With one batch more they fit into one frame."""
    flight_entries_max: int = 4
    """Number of entries without a majority; at this number nothing more is written."""
    window_bytes: int = 64 << 20
    """Decided events kept for readers and for members that fell behind; older ones are dropped."""
    window_entries_max: int = 1 << 18
    """Number of entries kept, because small events take more memory than their size."""
    page_wait_ns: int = SECOND_NS
    """A joining node that got no page for this long asks another member."""
    page_bytes_max: int = 1 << 20
    """Size of one page for a reader."""
    read_wait_ns_max: int = 30 * SECOND_NS
    readers_max: int = 4096
    """Reads that wait for new events; further ones are refused as busy."""
    streams_max: int = 1 << 14
    """Streams of one history; events for a further stream are refused."""
