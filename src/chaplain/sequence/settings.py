"""Bounds and intervals of the sequence, each with what happens at it."""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.units import MILLISECOND_NS, SECOND_NS


class SequenceSettings(Frozen, frozen=True):
    identifier: int
    """This node's name in parcels and work sets."""
    listed: tuple[int, ...] = ()
    """Identifiers of the other nodes that this node was configured with; for where nothing else says who belongs."""
    neighbours: tuple[str, ...] = ()
    """Endpoints that this node was configured with; whoever is met there is taken off the list of the unknown."""
    heartbeat_ns: int = SECOND_NS
    silence_ns: int = 5 * SECOND_NS
    """A member silent for so long is proposed for removal; with no majority heard for so long, this node is in ERR."""
    patience_ns: int = 10 * SECOND_NS
    """How long a majority of the list waits for the rest of it before it begins a history."""
    lonely_ns: int = 2 * SECOND_NS
    """A node with an empty list holds back its first events for so long: somebody may be about to find it."""
    lock_wait_ns: int = 400 * MILLISECOND_NS
    """Who waits for the lock without seeing any progress for so long takes it by a new ballot."""
    lock_wait_ns_max: int = 4 * SECOND_NS
    """Failed attempts double the wait up to this."""
    lack_ns: int = 100 * MILLISECOND_NS
    """Entries that others have and that did not come for so long are asked for."""
    chore_ns: int = 1 * SECOND_NS
    """How long the others leave a change of the work set to the holder of the lock."""
    batch_bytes_max: int = 1 << 20
    """A batch is closed at this size; what is left goes into the next."""
    publish_bytes_max: int = 2 << 20
    """One call to publish may carry so much; more is refused."""
    pending_bytes_max: int = 16 << 20
    """Events that wait for the lock; beyond it publishing is refused as busy."""
    flight_bytes_max: int = 5 << 20
    """Entries that no majority holds yet; beyond it nobody writes. With a batch it fits into one frame."""
    flight_entries_max: int = 4
    window_bytes: int = 64 << 20
    """Agreed events kept for readers and for members that fell behind; older ones are forgotten."""
    window_entries_max: int = 1 << 18
    """Small events take up more than their size: of these, no more than so many batches are kept."""
    page_wait_ns: int = SECOND_NS
    """Who learns what the others remember, and got no page for so long, asks another one."""
    page_bytes_max: int = 1 << 20
    """What one answer to a reader holds."""
    read_wait_ns_max: int = 30 * SECOND_NS
    readers_max: int = 4096
    """Reads that may wait for news; one more is refused."""
    streams_max: int = 1 << 14
    """Streams a history may have; events for one more are refused."""
