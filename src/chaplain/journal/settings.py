"""Settings of the journal on one node, each with its bound.

Bounds that affect decisions of execution are in `model.bootstrap.Policy`: they must be the same on all nodes.
"""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.units import MIB, MILLISECOND_NS, SECOND_NS

ENTRY_BYTES = 64
"""At least the size of a reference in a cluster message."""


class ConsensusSettings(Frozen, frozen=True):
    """Settings of the serializer and of the log."""

    node: int
    genesis: bytes
    """Hash before the first message; see `messages.cluster.genesis`."""
    disk: bytes
    """Id of the data directory that this node runs on."""
    founding_disk: bytes
    """Id of this node's data directory in the cluster's initial configuration."""
    boot: bytes
    """An id that changes with every boot of the machine."""

    log: str = "journal"
    folder: str = ""
    """Prefix of every file name, including its slash."""
    segment_bytes: int = 64 * MIB
    """Size of a segment. A record that needs more gets a larger segment, so nodes may use different sizes."""

    heartbeat_ns: int = 200 * MILLISECOND_NS
    """Interval of the master's heartbeats."""
    election_ns: int = SECOND_NS
    """A node begins an election after the master was silent for a random time between this value and
    twice this value.
    """
    news_ns: int = 10 * MILLISECOND_NS
    """After the connection to the master was closed, a node sends its pre-vote within this time."""
    mark_ns: int = 5 * MILLISECOND_NS
    """When the log is idle, the node writes a record with the agreed index after this time."""
    tell_ns: int = 2 * MILLISECOND_NS
    """Delay before the master broadcasts the agreed index when no other node waits for it. The next proposal may carry
    it sooner.
    """
    retry_ns: int = 500 * MILLISECOND_NS
    """Unanswered requests are repeated after this time."""
    patience_ns: int = 5 * SECOND_NS
    """How long a node tolerates a lack of progress. Then it starts its vote recovery again, reports missing payloads,
    or accepts weaker evidence for a checkpoint; a master whose payloads reach too few nodes steps down.
    """
    nomination_ns: int = 5 * SECOND_NS
    """The master refuses a new serializer set if one of its nodes made no progress, or was not heard from, for this
    time.
    """
    handover_ns: int = 300 * MILLISECOND_NS
    """How long a master waits for its designated successor to catch up. Then it hands over to the node whose log
    reaches furthest.
    """
    drain_ns: int = 5 * SECOND_NS
    """The master drops a blocked ingest node that was silent for this time, even without its drained notice."""

    order_entries_max: int = 4096
    order_bytes_max: int = 4 * MIB
    """Payload octets in one cluster message. A larger payload gets a message of its own."""
    payload_bytes_max: int = 4 * MIB
    """The node refuses a larger payload, because it must fit in a frame. The value must be the same on every node: each
    node must accept what the others order.
    """
    supply_bytes_max: int = MIB
    supply_messages_max: int = 256
    """Octets and messages that are read, sent or accepted at a time during catch-up. Small messages cost time rather
    than octets, and the node handles no other input meanwhile.
    """
    recent_bytes_max: int = 16 * MIB
    """Agreed messages that stay in memory, for nodes that are a little behind."""
    shelf_bytes_max: int = 256 * MIB
    """Payloads that wait to be ordered. Beyond this bound, payloads are dropped and requested again later."""
    shelf_idle_ns: int = 60 * SECOND_NS
    """Payloads of an ingest journal are dropped after nothing was received from it for this time."""
    gaps_max: int = 256
    """Missing payloads that are requested with one heartbeat."""
    config_entries_max: int = 64
    config_bytes_max: int = 8 * 1024
    """Configuration entries that may wait, and octets of each. All of them fit in one message."""
    room_bytes_min: int = 256 * MIB
    """With less free space on the disk, the node accepts nothing."""

    @property
    def payload_bytes_bound(self) -> int:
        """The largest payload that this node creates, given the size of its segments."""
        return min(self.payload_bytes_max, self.segment_bytes // 2)

    @property
    def order_bytes_bound(self) -> int:
        """Payload octets per cluster message, given the size of segments. The verdict on the payload must fit in one
        record, too.
        """
        return min(self.order_bytes_max, self.segment_bytes // 4)

    @property
    def order_entries_bound(self) -> int:
        """References per cluster message, given the size of segments."""
        return min(self.order_entries_max, self.segment_bytes // 4 // ENTRY_BYTES)


class RetentionRules(Frozen, frozen=True):
    """The part of the log that a node retains although a checkpoint covers it."""

    keep_bytes: int = 0
    """Octets of the log to retain; 0: no segment is dropped because of size."""
    keep_ns: int = 0
    """Age up to which messages are retained; 0: no segment is dropped because of age."""


INGEST_OVERHEAD_BYTES = 1024
"""At least the octets of an ingest message besides its first pack."""


class JournalSettings(Frozen, frozen=True):
    """Settings of the journal as a whole."""

    order: ConsensusSettings

    batch_bytes_max: int = MIB
    """Octets of packs in one ingest message. A larger pack gets a message of its own."""
    window_bytes: int = 8 * MIB
    """Octets that one client may send before it is answered."""
    ingest_bytes_max: int = 128 * MIB
    """Octets of packs of all clients that wait to be ordered. Beyond this bound, packs are refused as busy."""
    waiting_bytes_max: int = 256 * MIB
    """Octets of ingest messages that wait to be ordered. Beyond this bound, the oldest messages of other nodes are
    dropped and fetched again later.
    """
    recent_bytes_max: int = 16 * MIB
    """Octets of ordered ingest messages that stay in memory, for nodes that are a little behind."""
    resend_ns: int = 200 * MILLISECOND_NS
    """Ingest messages that a peer has not acknowledged are sent again after this time."""
    ack_ns: int = 50 * MILLISECOND_NS
    """Received ingest messages are acknowledged after this time, well before `resend_ns`."""
    resend_bytes_max: int = MIB
    """Octets that are sent again to one peer at a time."""
    checks_inline_max: int = 2
    """Up to this many packs are verified at once in the main thread; for more, a thread is worth its overhead."""

    reserved: tuple[str, ...] = ()
    """Names of the clients whose packs this node accepts; empty for all clients."""
    prevalidate: bool = False
    """Whether the node tries out statements of these clients before they are ordered, if it can."""

    petitions_max: int = 1024
    """Configuration requests that may wait for a decision. Beyond this bound, clients get the answer `busy`."""
    petitions_per_client_max: int = 128
    """Waiting configuration requests of one client, or of one other node."""
    petition_bytes_max: int = 64 * 1024
    petition_retry_ns: int = 500 * MILLISECOND_NS
    petition_ns: int = 30 * SECOND_NS
    """The node gives up a configuration request that is not decided after this time. It may still be granted later."""

    reads_per_client_max: int = 64
    """Concurrent reads of one session. One more is refused as busy; the same holds for the next two bounds."""
    reads_per_identity_max: int = 256
    """Concurrent reads of all sessions of one identity."""
    reads_max: int = 4096
    """Concurrent reads of all clients."""
    read_bytes_max: int = MIB
    """Octets of the log that are read at a time."""
    spans_per_identity_max: int = 2
    """Concurrent disk reads for one identity; its other reads wait."""
    read_window_bytes: int = 4 * MIB
    """Flow-control credit of one read; grants beyond it are ignored."""
    read_identity_bytes_max: int = 32 * MIB
    """Credit that the reads of one identity share."""
    read_bytes_in_all_max: int = 128 * MIB
    """Credit that the reads of all clients share."""

    tree_folder: str = "tree/"
    """Folder of the files of the tree over the log."""
    sign_ns: int = SECOND_NS
    """The master starts a signed checkpoint of the tree at most once in this time, and only if something was written.
    """

    witnessed: bool = False
    """Whether complete checkpoints are offered to witnesses before clients receive them."""

    rules: RetentionRules = RetentionRules()
    """The part of the log that is retained after a checkpoint covers it."""

    @property
    def pack_bytes_max(self) -> int:
        """The node refuses a larger pack: its ingest message, with a heading for each pack, must fit in one record."""
        return self.order.payload_bytes_bound - INGEST_OVERHEAD_BYTES

    promoted_bytes_max: int = 4 * MIB
    """Octets of committed packs that are ordered again at a time."""
    promotion_ns: int = 5 * SECOND_NS
    """If none of them got its offsets after this time, they are submitted again."""

    @property
    def node(self) -> int:
        return self.order.node

    @property
    def ingest_file(self) -> str:
        """File that contains the id of the next ingest journal."""
        return f"{self.order.folder}{self.order.log}.ingest"
