"""Everything about the journal's requests that somebody may want to set on one node, with its bound.

What execution decides by is not here but in `founding.Policy`: there all nodes must agree.
"""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.journal.consensus.settings import MIB, MILLISECOND, SECOND, ConsensusSettings
from chaplain.journal.snapshots.retention import RetentionRules

INGEST_OVERHEAD_BYTES = 1024
"""No less than an ingest message takes beside its first pack."""


class JournalSettings(Frozen, frozen=True):
    order: ConsensusSettings

    batch_bytes_max: int = MIB
    """Packs that go into one ingest message; one larger pack goes alone."""
    window_bytes: int = 4 * MIB
    """What one client may send before it is answered."""
    ingest_bytes_max: int = 128 * MIB
    """Packs of all clients that wait to be ordered; more are refused as busy."""
    waiting_bytes_max: int = 256 * MIB
    """Ingest messages kept until they are ordered; beyond it the oldest of others are dropped and fetched again."""
    recent_bytes_max: int = 16 * MIB
    """Ingest messages kept after they were ordered, for those who are a little behind."""
    resend_ns: int = 200 * MILLISECOND
    """What a peer has not acknowledged is sent again after this."""
    ack_ns: int = 50 * MILLISECOND
    """What was received is acknowledged after this: well before it would be sent again."""
    resend_bytes_max: int = MIB
    """How much is sent again to one peer at a time."""
    checks_inline_max: int = 2
    """So few packs are checked at once; for more a thread is worth its way."""

    reserved: tuple[str, ...] = ()
    """Names of the clients whose packs this node takes; empty: everybody's."""
    prevalidate: bool = False
    """Whether what they want executed is tried out before it is ordered, if this node can."""

    petitions_max: int = 1024
    """Configuration requests that wait to be decided; a client is answered with `busy` beyond it."""
    petitions_per_client_max: int = 128
    """How many of them one client may have, or another node."""
    petition_bytes_max: int = 64 * 1024
    petition_retry_ns: int = 500 * MILLISECOND
    petition_ns: int = 30 * SECOND
    """After this a petition is given up; it may still be granted."""

    reads_per_client_max: int = 64
    """Of one session. One more is refused as busy, and so for the next two."""
    reads_per_identity_max: int = 256
    """Of all sessions of one identity."""
    reads_max: int = 4096
    """Of all clients."""
    read_bytes_max: int = MIB
    """Octets of the log read at a time."""
    spans_per_identity_max: int = 2
    """Such reads of the log under way for one identity; its other reads wait for their turn."""
    read_window_bytes: int = 4 * MIB
    """Credit that one read may have; what is granted beyond it is ignored."""
    read_identity_bytes_max: int = 32 * MIB
    """Credit that the reads of one identity share."""
    read_bytes_in_all_max: int = 128 * MIB
    """Credit that the reads of all clients share."""

    rules: RetentionRules = RetentionRules()
    """What is kept of the log though a checkpoint covers it."""

    @property
    def pack_bytes_max(self) -> int:
        """A larger pack is refused: its ingest message, which has a heading for each pack, must fit in a record."""
        return self.order.payload_bytes_bound - INGEST_OVERHEAD_BYTES

    promoted_bytes_max: int = 4 * MIB
    """Committed packs that are ordered again at a time."""
    promotion_ns: int = 5 * SECOND
    """If none of them got its offsets for so long, they are brought once more."""

    @property
    def node(self) -> int:
        return self.order.node

    @property
    def ingest_file(self) -> str:
        """Where the id of the next ingest journal is kept."""
        return f"{self.order.folder}{self.order.log}.ingest"
