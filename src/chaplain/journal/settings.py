"""Everything about the journal's requests that somebody may want to set on one node, with its bound.

What execution decides by is not here but in `founding.Policy`: there all nodes must agree.
"""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.units import MIB, MILLISECOND_NS, SECOND_NS

ENTRY_BYTES = 64
"""No less than a reference takes in a cluster message."""


class ConsensusSettings(Frozen, frozen=True):
    node: int
    genesis: bytes
    """Hash before the first message; see `cluster_message.genesis`."""
    disk: bytes
    """Id of the data directory we run on."""
    founding_disk: bytes
    """Id that the founding membership gives for this node."""
    boot: bytes
    """Changes with every start of the machine."""

    log: str = "journal"
    folder: str = ""
    """Put before every file name, with its slash."""
    segment_bytes: int = 64 * MIB
    """A record that needs more gets a larger segment, so nodes may be set to different sizes."""

    heartbeat_ns: int = 200 * MILLISECOND_NS
    election_ns: int = SECOND_NS
    """Silence of the master that begins an election is drawn between this and twice this."""
    news_ns: int = 10 * MILLISECOND_NS
    """When the master's connection was closed, a canvass begins within this."""
    mark_ns: int = 5 * MILLISECOND_NS
    """An idle log gets its agreed mark after this."""
    tell_ns: int = 2 * MILLISECOND_NS
    """What is agreed, and nobody else waits for, is told to the others after this, unless the next message says it."""
    retry_ns: int = 500 * MILLISECOND_NS
    """Unanswered questions and fetches are repeated after this."""
    patience_ns: int = 5 * SECOND_NS
    """A node that regains its standing begins anew if it came no further for this long."""
    nomination_ns: int = 5 * SECOND_NS
    """A new set is refused if one of its nodes came no further, or was not heard, for this long."""
    handover_ns: int = 300 * MILLISECOND_NS
    """How long a master waits for the one that is to follow it, before it hands over to whoever is furthest."""
    drain_ns: int = 5 * SECOND_NS
    """An ingest node that is silent for so long is dropped without its word that nothing of it waits."""

    order_entries_max: int = 4096
    order_bytes_max: int = 4 * MIB
    """Payload per cluster message; one larger payload goes alone."""
    payload_bytes_max: int = 4 * MIB
    """A larger payload is refused: it must fit in a frame. The same on every node, because each must take what others
    order."""
    supply_bytes_max: int = MIB
    supply_messages_max: int = 256
    """What is read, given or taken at once. Small messages cost time, not octets: nobody else is heard meanwhile."""
    recent_bytes_max: int = 16 * MIB
    """Messages kept in memory for those who are a little behind."""
    shelf_bytes_max: int = 256 * MIB
    """Payloads waiting to be ordered; more are dropped and asked for again."""
    shelf_idle_ns: int = 60 * SECOND_NS
    """Payloads of a journal of which nothing came for so long are let go."""
    gaps_max: int = 256
    """Missing payloads asked for with one heartbeat."""
    config_entries_max: int = 64
    config_bytes_max: int = 8 * 1024
    """Configuration entries waiting, and octets in each: all of them fit in one message."""
    room_bytes_min: int = 256 * MIB
    """With less room on the disk nothing is accepted."""

    @property
    def payload_bytes_bound(self) -> int:
        """The largest payload that this node makes itself, given the size of its segments."""
        return min(self.payload_bytes_max, self.segment_bytes // 2)

    @property
    def order_bytes_bound(self) -> int:
        """Payload per cluster message, given the size of segments: what is said about it is one record, too."""
        return min(self.order_bytes_max, self.segment_bytes // 4)

    @property
    def order_entries_bound(self) -> int:
        """References per cluster message, given the size of segments."""
        return min(self.order_entries_max, self.segment_bytes // 4 // ENTRY_BYTES)


class RetentionRules(Frozen, frozen=True):
    keep_bytes: int = 0
    """So much of the log is kept; 0: size is no reason to drop anything."""
    keep_ns: int = 0
    """What is younger is kept; 0: age is no reason to drop anything."""


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
    resend_ns: int = 200 * MILLISECOND_NS
    """What a peer has not acknowledged is sent again after this."""
    ack_ns: int = 50 * MILLISECOND_NS
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
    petition_retry_ns: int = 500 * MILLISECOND_NS
    petition_ns: int = 30 * SECOND_NS
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
    promotion_ns: int = 5 * SECOND_NS
    """If none of them got its offsets for so long, they are brought once more."""

    @property
    def node(self) -> int:
        return self.order.node

    @property
    def ingest_file(self) -> str:
        """Where the id of the next ingest journal is kept."""
        return f"{self.order.folder}{self.order.log}.ingest"
