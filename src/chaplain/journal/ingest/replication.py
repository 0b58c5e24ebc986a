"""Payload replication: sends this node's ingest messages to all nodes, acknowledges those of others, and resends.

Decides which peer gets which message, and when. Does not know the contents of messages, or where they are ordered.

An acknowledgement (journal.txt) reports reception only, for resending and flow control; durability does not depend on
it. It waits a short time, so that several are sent together, unless the message was sent before: then its ingest node
waits for it, and it is sent at once. It goes to the ingest node and to all serializers. A serializer adds what it knows
of the other nodes (`cluster_view`), so a node learns also of those that it did not hear. A message that has not been
ordered for a long time is sent to all peers again, acknowledged or not, because a peer may have dropped it since.

Invariants: this node's messages are sent again until they are ordered. At most `resend_bytes_max` bytes, or one
message, are resent to a peer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from chaplain.journal.consensus.events import PayloadArrived
from chaplain.journal.events import IngestEffect, ToPeer
from chaplain.journal.ingest.cluster_view import ClusterView
from chaplain.journal.ingest.payload_cache import PayloadCache, ReceivedVector
from chaplain.journal.messages.cluster import Reference
from chaplain.journal.messages.peer import Ack, Payload
from chaplain.journal.settings import JournalSettings

STALE_ROUNDS = 10
"""After this number of resend rounds without an ordered message, acknowledgements are ignored."""


class PayloadReplication:
    """Messages of this node, and the ones that each peer has received."""

    def __init__(self, settings: JournalSettings, serializers: Callable[[], Collection[int]]) -> None:
        self._settings = settings
        self._serializers = serializers
        self.view = ClusterView(settings.node)
        self.cache = PayloadCache(settings.node, settings.waiting_bytes_max, settings.recent_bytes_max)
        self._received = ReceivedVector()
        self._acked: dict[int, int] = {}
        """By connected peer: the index up to which it has received all messages of this node's journal."""
        self._ack_targets: dict[int, None] = {}
        """Peers that wait for an acknowledgement of this node."""
        self._ack_due_ns: int | None = None
        """When to acknowledge. The delay saves the acknowledgement of messages that are ordered soon."""
        self._resend_rounds = 0
        """Resend rounds since a message of this node was ordered last."""
        self._resend_ns: int | None = None
        """When the next resend round is due; None if nothing waits."""
        self.journal = 0
        """The journal id of this node's messages."""

    @property
    def due_ns(self) -> int | None:
        resend_ns, ack_due_ns = self._resend_ns, self._ack_due_ns
        if resend_ns is None or (ack_due_ns is not None and ack_due_ns < resend_ns):
            return ack_due_ns
        return resend_ns

    def begin(self, journal: int) -> None:
        """From now on this node's messages belong to this journal."""
        self.journal = journal
        self._acked = dict.fromkeys(self._acked, 0)

    def peer_up(self, node: int) -> None:
        self._acked[node] = 0
        self.view.forget(node)

    def peer_down(self, node: int) -> None:
        self._acked.pop(node, None)
        self._ack_targets.pop(node, None)

    def received_by_node(self) -> dict[int, tuple[Reference, ...]]:
        """The messages that this node has received, and those that it knows others to have."""
        known = {one.node: one.reached for one in self.view.nodes()}
        return {self._settings.node: self._received.vector(), **known}

    def send(self, now_ns: int, reference: Reference, digest: bytes, payload: bytes) -> list[IngestEffect]:
        """Send a new message of this node to all peers, and to the serializer here."""
        self.cache.put(reference, digest, payload)
        if self._resend_ns is None:
            self._resend_ns = now_ns + self._settings.resend_ns
        message = Payload(payload)
        return [*[ToPeer(node, message) for node in self._acked], PayloadArrived(reference, digest, payload)]

    def received(self, now_ns: int, node: int, reference: Reference, digest: bytes, payload: bytes) -> PayloadArrived:
        """A peer has sent a message of another ingest node, and its signatures were checked."""
        is_again = self._received.has(reference)
        self.cache.put(reference, digest, payload)
        self._received.received(reference)
        self._ack_targets[node] = None
        if is_again:
            self._ack_due_ns = now_ns
        elif self._ack_due_ns is None:
            self._ack_due_ns = now_ns + self._settings.ack_ns
        return PayloadArrived(reference, digest, payload)

    def _acknowledge(self, now_ns: int) -> list[IngestEffect]:
        """Report the received indexes to all peers that sent something, and to the serializers."""
        if self._ack_due_ns is None or now_ns < self._ack_due_ns:
            return []
        serializers = self._serializers()
        view = self.view.nodes() if self._settings.node in serializers else ()
        ack, targets = Ack(self._received.vector(), view), self._ack_targets
        targets |= {node: None for node in serializers if node in self._acked}
        self._ack_targets, self._ack_due_ns = {}, None
        return [ToPeer(node, ack) for node in targets]

    def on_ack(self, node: int, ack: Ack) -> None:
        self.view.acknowledged(node, ack.reached)
        self.view.reported(ack.view)
        for peer in [node, *(one.node for one in ack.view)]:
            if peer in self._acked:
                index = self.view.index_of(peer, self._settings.node, self.journal)
                self._acked[peer] = max(self._acked[peer], index)

    def mark_ordered(self, references: tuple[Reference, ...]) -> None:
        self.cache.mark_ordered(references)
        self._received.mark_ordered(references)
        node = self._settings.order.node
        for reference in references:
            if reference.node == node:
                self._resend_rounds = 0

    def woken(self, now_ns: int) -> list[IngestEffect]:
        effects = self._acknowledge(now_ns)
        if self._resend_ns is None or now_ns < self._resend_ns:
            return effects
        waiting = next(self.cache.own_after(self.journal, 0), None)
        self._resend_ns = None if waiting is None else now_ns + self._settings.resend_ns
        if waiting is None:
            self._resend_rounds = 0
            return effects
        self._resend_rounds += 1
        stale = self._resend_rounds >= STALE_ROUNDS
        if stale:
            self._resend_rounds = 0
            reference, payload = waiting
            effects.append(PayloadArrived(reference, self.cache.digest(reference), payload))
        for node, acked in self._acked.items():
            # A peer may have dropped a message after it acknowledged it, so a stale round ignores acknowledgements.
            effects += self._resend(node, 0 if stale else acked)
        return effects

    def _resend(self, node: int, index: int) -> list[IngestEffect]:
        effects: list[IngestEffect] = []
        size = 0
        for _, payload in self.cache.own_after(self.journal, index):
            size += len(payload)
            if size > self._settings.resend_bytes_max and size > len(payload):
                break
            effects.append(ToPeer(node, Payload(payload)))
        return effects
