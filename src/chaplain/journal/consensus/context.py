"""State that the parts of a serializer share: settings, hard state, log, payload queue, peers and the persist barrier.

The context derives the quorum and the lists of peers from the agreed configuration, applies agreed messages, and
schedules the agreed mark. It does not decide elections or proposals.

Invariant: the parts send and write only through `barrier`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import TypeAlias

from chaplain.core import Report
from chaplain.journal.consensus.events import Agreed, LogSynced, NeedPayload
from chaplain.journal.consensus.hard_state import HardStateStore
from chaplain.journal.consensus.payload_queue import PayloadQueue
from chaplain.journal.consensus.persist_barrier import PersistBarrier
from chaplain.journal.messages.cluster import DataEntry
from chaplain.journal.messages.consensus import OrderMessage
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.model.log_entry import LogEntry
from chaplain.journal.model.quorum import Quorum
from chaplain.journal.settings import ConsensusSettings
from chaplain.journal.storage.last_known_members import LastKnownMembers
from chaplain.journal.storage.log import ReplicatedLog
from chaplain.journal.storage.segment_index import SegmentIndex

Retains: TypeAlias = Callable[[SegmentIndex, int, int, int], bool]
"""A function of the log's segments, the time, an index and a timestamp: True if this node retains that message."""
REFERENCES_REPORTED_MAX = 8
"""Number of missing payloads that a report names, as node/journal/index."""


class ConsensusContext:
    """One instance for each serializer; every part has a reference to it."""

    def __init__(
        self,
        settings: ConsensusSettings,
        chance: random.Random,
        barrier: PersistBarrier,
        hard_state: HardStateStore,
        log: ReplicatedLog,
        *,
        last_known_members: LastKnownMembers | None = None,
        retains: Retains | None = None,
        tokens: Iterator[int] | None = None,
    ) -> None:
        """`last_known_members` is the content of the file `roster`, used while it is newer than this log. `tokens`
        numbers reads of the log.
        """
        self.settings = settings
        self.chance = chance
        self.barrier = barrier
        self.hard_state = hard_state
        self.log = log
        self.payload_queue = PayloadQueue(settings.shelf_bytes_max, settings.shelf_idle_ns)
        self.connected: list[int] = []
        """Peers with an open connection, in the order in which they connected."""
        self.peer_log_ranges: dict[int, tuple[int, int]] = {}
        """First and last index of each peer's log, as the peer reported them last."""
        self._retains = retains
        self.has_space = True
        """True while the disk has at least `room_bytes_min` free."""
        self.stopping = False
        """True once the node was asked to stop. A master hands over; other nodes leave elections."""
        self._tokens = tokens or count(1)
        self.last_known_members = last_known_members
        self._config: ClusterConfig | None = None
        self._quorum = Quorum(())
        self._peers: tuple[int, ...] = ()
        self._other_voters: tuple[int, ...] = ()
        self._candidates: frozenset[int] = frozenset()
        self._electorates: tuple[Quorum, ...] = ()
        self._data_holders: tuple[int, ...] = ()
        self._missing: list[DataEntry] = []
        self._missing_since_ns: int | None = None
        self.missing_payloads = ""
        """References of ordered payloads that no connected peer has supplied for `patience_ns`, as text for reports.
        Always empty unless the cluster has index-only serializers."""
        self.mark_due_ns: int | None = None
        """When to write the agreed mark to the log, unless the next message makes it superfluous."""

    @property
    def quorum(self) -> Quorum:
        """The quorum for the next message, by the configuration at the agreed prefix of this log. While a new set of
        serializers replaces the old one, it is joint: a majority of each set.
        """
        if self.log.execution.cluster_config is not self._config:
            self._refresh()
        return self._quorum

    @property
    def latest_known_quorum(self) -> Quorum:
        """The quorum by the newest configuration that this node knows: that of the last-known-members file while this
        log is behind the file, otherwise `quorum`. A node that lacks messages asks these nodes for them.
        """
        last_known = self.last_known_members
        return self.quorum if last_known is None or self.log.agreed >= last_known.index else last_known.quorum

    @property
    def peers(self) -> tuple[int, ...]:
        """All other members: each of them receives every proposal and mark."""
        if self.log.execution.cluster_config is not self._config:
            self._refresh()
        return self._peers

    @property
    def other_voters(self) -> tuple[int, ...]:
        """All other nodes that have a vote."""
        if self.log.execution.cluster_config is not self._config:
            self._refresh()
        return self._other_voters

    def may_be_master(self, node: int) -> bool:
        """True if the node is a serializer, or is nominated as one, by what this node knows. Other nodes get no vote,
        and a regime in their messages has no effect.
        """
        if self.log.execution.cluster_config is not self._config:
            self._refresh()
        return node in self._candidates or node in self.latest_known_quorum.voters

    @property
    def electorates(self) -> tuple[Quorum, ...]:
        """Sets of serializers. This node believes a statement of a majority of any one of them. They are the sets of
        `quorum`, and those of the last-known-members file while the file is ahead of this log.

        During a joint configuration one of the two sets is enough here. The old set may have elected the master before
        Implement was agreed, and the new set after Confirm. This rule checks statements about the past. It elects no
        master and agrees on no message: both need the joint `quorum`.
        """
        if self.log.execution.cluster_config is not self._config:
            self._refresh()
        latest = self.latest_known_quorum
        return self._electorates if latest is self._quorum else (*self._electorates, *_each_set(latest))

    def key_of(self, node: int) -> bytes:
        """The node's public key by the agreed configuration, or by the last-known-members file; empty if neither
        contains the node.
        """
        member = self.log.execution.cluster_config.node(node)
        if member is not None:
            return member.key
        return bytes.fromhex(self.last_known_members.keys.get(node, "")) if self.last_known_members is not None else b""

    @property
    def data_holders(self) -> tuple[int, ...]:
        """Other members that store payloads. Empty unless the cluster has index-only serializers."""
        if self.log.execution.cluster_config is not self._config:
            self._refresh()
        return self._data_holders

    def _refresh(self) -> None:
        """Derive the quorum and the lists of nodes again: the configuration has changed."""
        self._config = config = self.log.execution.cluster_config
        self._quorum = config.quorum
        self._peers = tuple(node for node in config.members if node != self.settings.node)
        self._other_voters = tuple(node for node in self._quorum.voters if node != self.settings.node)
        self._electorates = _each_set(self._quorum)
        nominated = config.new_set
        self._candidates = frozenset((*self._quorum.voters, *(nominated.nodes if nominated else ())))
        self._data_holders = tuple(filter(config.holds_data, self._peers)) if self.log.copies else ()

    def next_read_token(self) -> int:
        """A new number for one read of the log."""
        return next(self._tokens)

    def is_retained(self, now_ns: int, index: int, timestamp_ns: int) -> bool:
        """True if retention keeps this message here."""
        return self._retains is None or self._retains(self.log.segment_index, now_ns, index, timestamp_ns)

    def broadcast(self, message: OrderMessage) -> None:
        """Send a message to all members at once, without waiting for the disk."""
        self.barrier.send_now_to_all(self.peers, message)

    def report(self, event: str, node: int = 0, **detail: str | int) -> None:
        self.barrier.emit(Report(event, str(node) if node else "", detail))

    def log_synced_proof(self) -> LogSynced:
        """The event that reports, after the next sync, that all of the log written so far is on disk."""
        log = self.log
        last_index = log.tail.index if log.tail is not None and log.has_no_gap else log.agreed
        return LogSynced(log.written, last_index)

    def gather_payloads(self, entries: tuple[DataEntry, ...], master: int) -> tuple[bytes, ...] | None:
        """Return the payloads of these entries, or None and request those that are missing here."""
        found: list[bytes] = []
        missing: list[DataEntry] = []
        for entry in entries:
            payload = self.payload_queue.find(entry)
            if payload is None:
                payload = self.log.cached_payload(entry)
            if payload is None:
                missing.append(entry)
                self.barrier.emit(NeedPayload(entry.reference, entry.digest, master))
            else:
                found.append(payload)
        if missing or self._missing:
            self.payload_queue.reserve(missing)
            self._missing = missing
        return None if missing else tuple(found)

    def apply_tail(self, now_ns: int, master: int = 0) -> bool:
        """The tail is agreed: execute it and report it to the rest of the journal. Return False if its payloads are
        missing; they are requested then, and the caller tries again. That happens only on index-only serializers, which
        store the order without the payloads.
        """
        tail = self.log.tail
        assert tail is not None
        payloads = self.gather_payloads(tail.entries, master) if tail.lacks_payloads else tail.payloads
        if payloads is None:
            return False
        self.emit_agreed(now_ns, [self.log.commit_tail(payloads)])
        return True

    def emit_agreed(self, now_ns: int, messages: Iterable[LogEntry]) -> None:
        """Report these messages as agreed, in order, and schedule the agreed mark."""
        for message in messages:
            self.payload_queue.mark_ordered(message.body.data_entries)
            self.barrier.emit(Agreed(message.body, message.ballot, message.hash, message.payloads))
        self._missing, self._missing_since_ns, self.missing_payloads = [], None, ""
        self.mark_due_ns = now_ns + self.settings.mark_ns

    def _report_missing(self, now_ns: int) -> None:
        """Report payloads that have been missing for `patience_ns`, and again after each further `patience_ns`. A node
        never skips an ordered message, so an operator must know which payloads it waits for.
        """
        if not self._missing or not self.log.copies:
            self._missing_since_ns = None
        elif self._missing_since_ns is None:
            self._missing_since_ns = now_ns
        elif now_ns - self._missing_since_ns >= self.settings.patience_ns:
            self._missing_since_ns = now_ns
            found = [entry.reference for entry in self._missing]
            self.missing_payloads = ", ".join(
                f"{one.node}/{one.journal}/{one.index}" for one in found[:REFERENCES_REPORTED_MAX]
            )
            more = f" and {len(found) - REFERENCES_REPORTED_MAX} more" if len(found) > REFERENCES_REPORTED_MAX else ""
            self.report("payloads are missing", 0, index=self.log.agreed + 1, references=self.missing_payloads + more)

    def woken(self, now_ns: int) -> None:
        self.payload_queue.expire(now_ns)
        self._report_missing(now_ns)
        if self.mark_due_ns is not None and now_ns >= self.mark_due_ns:
            if self.barrier.busy:
                self.mark_due_ns = now_ns + self.settings.heartbeat_ns  # the mark can wait while the disk is busy
            else:
                self.write_mark()

    def write_mark(self) -> None:
        """Write the agreed mark (commit index) to the log. Its sync also covers everything written before it."""
        self.mark_due_ns = None
        self.barrier.write(self.log.mark(self.hard_state.regime), self.log_synced_proof())


def _each_set(quorum: Quorum) -> tuple[Quorum, ...]:
    return tuple(Quorum((members,)) for members in quorum.sets)
