"""Everything about the order that somebody may want to set, with its bound."""

from __future__ import annotations

from chaplain.core import Frozen

MILLISECOND = 10**6
SECOND = 10**9
MIB = 1 << 20
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

    heartbeat_ns: int = 200 * MILLISECOND
    election_ns: int = SECOND
    """Silence of the master that begins an election is drawn between this and twice this."""
    news_ns: int = 10 * MILLISECOND
    """When the master's connection was closed, a canvass begins within this."""
    mark_ns: int = 5 * MILLISECOND
    """An idle log gets its agreed mark after this."""
    tell_ns: int = 2 * MILLISECOND
    """What is agreed, and nobody else waits for, is told to the others after this, unless the next message says it."""
    retry_ns: int = 500 * MILLISECOND
    """Unanswered questions and fetches are repeated after this."""
    patience_ns: int = 5 * SECOND
    """A node that regains its standing begins anew if it came no further for this long."""
    nomination_ns: int = 5 * SECOND
    """A new set is refused if one of its nodes came no further, or was not heard, for this long."""
    handover_ns: int = 300 * MILLISECOND
    """How long a master waits for the one that is to follow it, before it hands over to whoever is furthest."""
    drain_ns: int = 5 * SECOND
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
    shelf_idle_ns: int = 60 * SECOND
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
