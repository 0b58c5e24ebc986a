"""The acceptor: accepts entries of other members, requests missing ones, and sends entries on request.

A log under the promised or a higher ballot is accepted entirely, because the ballot of its last entry identifies the
log. Any other log is accepted only up to its decided part.

Invariants: decided entries are never dropped; only entries that connect to our log are acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable

from chaplain.sequence.context import SequenceContext
from chaplain.sequence.discovery import HistoryDiscovery
from chaplain.sequence.lock import SequenceLock
from chaplain.sequence.messages.entry import SequenceEntry, decode_entries
from chaplain.sequence.messages.peer import EntryBatch, Fill, LockRefused, PeerState, Why
from chaplain.sequence.peers import SequencePeer
from chaplain.sequence.window.log import SequenceLog
from chaplain.wire.limits import FRAME_BYTES_MAX

_MESSAGE_BYTES_MAX = FRAME_BYTES_MAX - (1 << 20)


class Acceptor:
    def __init__(
        self, context: SequenceContext, lock: SequenceLock, discovery: HistoryDiscovery, advance: Callable[[int], None]
    ) -> None:
        self._context = context
        self._lock = lock
        self._discovery = discovery
        self._advance = advance
        self.missing: tuple[int, int] | None = None
        """The peer to ask for missing entries, and when; None if nothing is missing."""
        self._filled_ns = -context.settings.lack_ns

    def reset(self) -> None:
        self.missing = None

    def due_ns(self) -> int | None:
        return None if self.missing is None else self.missing[1]

    def tick(self) -> None:
        if self.missing is not None and self._context.now_ns >= self.missing[1]:
            self._request_missing(self.missing[0])

    def on_entries(self, peer: SequencePeer, message: EntryBatch) -> None:
        """Process entries of a peer; they may found a history that contains our seat."""
        context = self._context
        entries = decode_entries(message.entries)
        if not context.history and self._discovery.may_accept(entries, message.previous):
            context.start_from(message.peer_state.history)
            context.since_ns = context.now_ns
        if message.peer_state.history != context.history or not entries:
            return
        fitting = context.log.fit(message.previous, message.previous_hash, entries)
        if fitting is None:
            self.note_missing(peer, message.peer_state)
            if message.previous >= context.log.decided:
                self._request_missing(peer.identifier)
            return
        self._accept(peer, message.peer_state, *fitting)

    def _accept(self, peer: SequencePeer, peer_state: PeerState, previous: int, entries: list[SequenceEntry]) -> None:
        """Accept all entries under the promised or a higher ballot, else only the decided ones."""
        context = self._context
        if entries and entries[-1].ballot < context.promised:
            if entries[-1].author == peer.identifier and peer_state.promised < context.promised:
                context.send(peer, LockRefused(context.own_state(), Why.STALE))
            entries = entries[: max(0, peer_state.decided - previous)]
        elif entries and entries[-1].ballot > context.promised:
            self._lock.promise(entries[-1].ballot)
        dropped = context.log.attach(previous, entries)
        if dropped:
            context.publish_queue.displaced(dropped)
        if entries:
            context.ack_due = True
            self.missing = None
        else:
            self.note_missing(peer, peer_state)
        decided = min(peer_state.decided, previous + len(entries))
        if decided > context.log.decided:
            self._advance(decided)  # the sender holds these entries and knows that they are decided
        if peer_state.decided > context.log.decided:
            self.learn_decided(peer_state)
        if self.lacks(peer_state):
            self._request_missing(peer.identifier)

    def learn_decided(self, peer_state: PeerState) -> None:
        """Decide up to the sender's decided index if our entry there has the same hash."""
        log = self._context.log
        if peer_state.decided > log.decided and log.hash_at(peer_state.decided) == peer_state.decided_hash:
            self._advance(peer_state.decided)

    def note_missing(self, peer: SequencePeer, peer_state: PeerState) -> None:
        """The peer holds entries that have not arrived here. They may be in flight, so request them only after
        `lack_ns`.
        """
        context = self._context
        if self.lacks(peer_state):
            if self.missing is None:
                self.missing = (peer.identifier, context.now_ns + self._context.settings.lack_ns)
        elif self.missing is not None and self.missing[0] == peer.identifier:
            self.missing = None

    def lacks(self, peer_state: PeerState) -> bool:
        """True if the peer holds entries that we could accept: decided ones, or more entries under a current ballot."""
        context = self._context
        log = context.log
        if peer_state.decided > log.decided:
            return log.hash_at(peer_state.decided) != peer_state.decided_hash
        return peer_state.head > log.head and peer_state.head.ballot >= context.promised

    def _request_missing(self, identifier: int) -> None:
        """Send Fill, at most once per half `lack_ns`. During catch-up, `CatchUp` requests pages instead."""
        context = self._context
        if context.is_learning:
            self.missing = None
            return
        peer = context.peers.by_id.get(identifier)
        if self._filled_ns > context.now_ns - self._context.settings.lack_ns // 2:
            self.missing = (identifier, context.now_ns + self._context.settings.lack_ns // 2)
            return
        self.missing = None
        if peer is not None and context.history:
            self._filled_ns = context.now_ns
            context.send(peer, Fill(context.own_state()))

    def on_fill(self, peer: SequencePeer, asker: PeerState) -> None:
        """Send entries after the asker's decided index, as many as fit into one message.

        It sends either all undecided entries or none, because the ballot of the last one identifies the log.
        """
        context = self._context
        log = context.log
        before = log.hash_at(asker.decided)
        if asker.decided > log.decided:
            return
        if before is None:
            context.send(peer, LockRefused(context.own_state(), Why.FORGOTTEN))
            return
        chosen = _page(log, asker.decided, context.settings.batch_bytes_max)
        context.send(peer, EntryBatch(context.own_state(), asker.decided, before, b"".join(chosen)))


def _page(log: SequenceLog, index: int, bytes_max: int) -> list[bytes]:
    """Decided entries after an index, about `bytes_max`; if these are all, also the undecided ones, if they fit."""
    chosen: list[bytes] = []
    size = 0
    for held in log.since(index):
        if held.index > log.decided and (not chosen or size + log.undecided_bytes <= _MESSAGE_BYTES_MAX):
            return [*chosen, *(one.entry.encoded for one in log.after(log.decided))]
        if held.index > log.decided or size > bytes_max:
            break
        chosen.append(held.entry.encoded)
        size += len(held.entry.encoded)
    return chosen
