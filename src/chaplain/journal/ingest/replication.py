"""Gets ingest messages to every node: sends ours, acknowledges those of others, and sends again what did not arrive.

Decides who is sent what and when. Refuses to know what messages hold, and whether they are ordered first here or there.

journal.txt's acknowledgement is immediate: it says what was received, for fetching and flow; nobody's durability rests
on it. Whatever is not ordered for long is sent again to everybody, acknowledged or not, for it may have been dropped
since.

Invariants: our messages are sent again until they are ordered; at most `resend_bytes_max` octets, or one message, are
on their way again to a peer at a time.
"""

from __future__ import annotations

from chaplain.journal.consensus.events import PayloadArrived
from chaplain.journal.events import AckCame, IngestEffect, ToPeer
from chaplain.journal.ingest.payload_cache import PayloadCache, ReceivedVector
from chaplain.journal.messages.cluster import Reference
from chaplain.journal.messages.peer import Ack, Payload
from chaplain.journal.settings import JournalSettings

STALE_ROUNDS = 10
"""After so many rounds of sending again without an order, acknowledgements are believed no longer."""


class PayloadReplication:
    def __init__(self, settings: JournalSettings) -> None:
        self._settings = settings
        self.cellar = PayloadCache(settings.node, settings.waiting_bytes_max, settings.recent_bytes_max)
        self._reach = ReceivedVector()
        self._acked: dict[int, int] = {}
        """Peers that are up, and the index of our journal up to which each has all."""
        self._owed: dict[int, None] = {}
        """Peers that wait for our acknowledgement."""
        self._owed_ns: int | None = None
        """When they are told: later than at once, for what is ordered soon needs no acknowledgement of its own."""
        self._rounds = 0
        self._resend_ns: int | None = None
        self.journal = 0
        self.effects: list[IngestEffect] = []

    @property
    def due_ns(self) -> int | None:
        resend_ns, owed_ns = self._resend_ns, self._owed_ns
        if resend_ns is None or (owed_ns is not None and owed_ns < resend_ns):
            return owed_ns
        return resend_ns

    def begin(self, journal: int) -> None:
        """Our messages belong to this journal from now on."""
        self.journal = journal
        self._acked = dict.fromkeys(self._acked, 0)

    def up(self, node: int) -> None:
        self._acked[node] = 0

    def down(self, node: int) -> None:
        self._acked.pop(node, None)
        self._owed.pop(node, None)

    def send(self, now_ns: int, reference: Reference, digest: bytes, payload: bytes) -> None:
        """A new message of ours: to everybody, and to the serializer here."""
        self.cellar.put(reference, digest, payload)
        message = Payload(payload)
        self.effects += [ToPeer(node, message) for node in self._acked]
        self.effects.append(PayloadArrived(reference, digest, payload))
        if self._resend_ns is None:
            self._resend_ns = now_ns + self._settings.resend_ns

    def received(self, node: int, reference: Reference, digest: bytes, payload: bytes) -> None:
        """A message of another ingest node came from this peer, and was checked."""
        self.cellar.put(reference, digest, payload)
        self._reach.received(reference)
        self._owed[node] = None
        self.effects.append(PayloadArrived(reference, digest, payload))

    @property
    def owes_ack(self) -> bool:
        """Somebody waits for our acknowledgement, and no moment is set for it."""
        return bool(self._owed) and self._owed_ns is None

    def drained(self, now_ns: int) -> None:
        if self.owes_ack:
            self._owed_ns = now_ns + self._settings.ack_ns

    def _acknowledge(self, now_ns: int) -> None:
        """Tell those that sent us something how far we have received everything."""
        if self._owed_ns is None or now_ns < self._owed_ns:
            return
        vector = self._reach.vector()
        self.effects += [ToPeer(node, Ack(vector)) for node in self._owed]
        self._owed.clear()
        self._owed_ns = None

    def acknowledged(self, event: AckCame) -> None:
        for reached in event.reached:
            if (reached.node, reached.journal) == (self._settings.node, self.journal) and event.node in self._acked:
                self._acked[event.node] = max(self._acked[event.node], reached.index)

    def ordered(self, references: tuple[Reference, ...]) -> None:
        self.cellar.ordered(references)
        self._reach.ordered(references)
        node = self._settings.order.node
        for reference in references:
            if reference.node == node:
                self._rounds = 0

    def woken(self, now_ns: int) -> None:
        self._acknowledge(now_ns)
        if self._resend_ns is None or now_ns < self._resend_ns:
            return
        waiting = next(self.cellar.own_after(self.journal, 0), None)
        self._resend_ns = None if waiting is None else now_ns + self._settings.resend_ns
        if waiting is None:
            self._rounds = 0
            return
        self._rounds += 1
        stale = self._rounds >= STALE_ROUNDS
        if stale:
            self._rounds = 0
            reference, payload = waiting
            self.effects.append(PayloadArrived(reference, self.cellar.digest(reference), payload))
        for node, acked in self._acked.items():
            self._resend(node, 0 if stale else acked)

    def _resend(self, node: int, index: int) -> None:
        size = 0
        for _, payload in self.cellar.own_after(self.journal, index):
            size += len(payload)
            if size > self._settings.resend_bytes_max and size > len(payload):
                break
            self.effects.append(ToPeer(node, Payload(payload)))
