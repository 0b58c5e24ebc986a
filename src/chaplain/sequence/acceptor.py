"""Entries of others: what is accepted, what is missing, and what others are given of ours.

Under the promised ballot, or a higher one, a log is accepted up to its last entry, because that entry's ballot says
whose log it is. Everything else is accepted only as far as it is decided.

Invariants: what is decided is never dropped; nothing is acknowledged that does not hang on what was held before.
"""

from __future__ import annotations

from collections.abc import Callable

from chaplain.sequence.context import SequenceContext
from chaplain.sequence.discovery import HistoryDiscovery
from chaplain.sequence.lock import SequenceLock
from chaplain.sequence.messages.entry import SequenceEntry, decode_entries
from chaplain.sequence.messages.peer import Bearing, EntryBatch, Fill, LockRefused, Why
from chaplain.sequence.peers import SequencePeer
from chaplain.sequence.window.log import SequenceLog
from chaplain.wire.limits import FRAME_BYTES_MAX

_MESSAGE_BYTES_MAX = FRAME_BYTES_MAX - (1 << 20)


class Acceptor:
    def __init__(
        self, bench: SequenceContext, locking: SequenceLock, discovery: HistoryDiscovery, advance: Callable[[int], None]
    ) -> None:
        self._bench = bench
        self._locking = locking
        self._discovery = discovery
        self._advance = advance
        self.lack: tuple[int, int] | None = None
        """Whom to ask for what we lack, and when."""
        self._filled_ns = -bench.settings.lack_ns

    def reset(self) -> None:
        self.lack = None

    def due_ns(self) -> int | None:
        return None if self.lack is None else self.lack[1]

    def tick(self) -> None:
        if self.lack is not None and self._bench.now_ns >= self.lack[1]:
            self._ask_for_missing(self.lack[0])

    def take_in(self, fellow: SequencePeer, message: EntryBatch) -> None:
        bench = self._bench
        entries = decode_entries(message.entries)
        if not bench.history and self._discovery.may_enter(entries, message.previous):
            bench.start_from(message.bearing.history)
            bench.since_ns = bench.now_ns
        if message.bearing.history != bench.history or not entries:
            return
        fitting = bench.log.fit(message.previous, message.previous_hash, entries)
        if fitting is None:
            self.note_lack(fellow, message.bearing)
            if message.previous >= bench.log.decided:
                self._ask_for_missing(fellow.identifier)
            return
        self._accept(fellow, message.bearing, *fitting)

    def _accept(self, fellow: SequencePeer, bearing: Bearing, previous: int, entries: list[SequenceEntry]) -> None:
        """Under the promised ballot or a higher one all is accepted; else only what is decided."""
        bench = self._bench
        if entries and entries[-1].ballot < bench.promised:
            if entries[-1].author == fellow.identifier and bearing.promised < bench.promised:
                bench.tell(fellow, LockRefused(bench.bearing(), Why.STALE))
            entries = entries[: max(0, bearing.decided - previous)]
        elif entries and entries[-1].ballot > bench.promised:
            self._locking.promise(entries[-1].ballot)
        dropped = bench.log.attach(previous, entries)
        if dropped:
            bench.publishing.displaced(dropped)
        if entries:
            bench.ack_due = True
            self.lack = None
        else:
            self.note_lack(fellow, bearing)
        told = min(bearing.decided, previous + len(entries))
        if told > bench.log.decided:
            self._advance(told)  # these are the sender's own, and it knows them to be decided
        if bearing.decided > bench.log.decided:
            self.learn_decided(bearing)
        if self.lacks(bearing):
            self._ask_for_missing(fellow.identifier)

    def learn_decided(self, bearing: Bearing) -> None:
        log = self._bench.log
        if bearing.decided > log.decided and log.hash_at(bearing.decided) == bearing.decided_hash:
            self._advance(bearing.decided)

    def note_lack(self, fellow: SequencePeer, bearing: Bearing) -> None:
        """Others acknowledge what has not come here: it is on its way, or lost."""
        bench = self._bench
        if self.lacks(bearing):
            if self.lack is None:
                self.lack = (fellow.identifier, bench.now_ns + self._bench.settings.lack_ns)
        elif self.lack is not None and self.lack[0] == fellow.identifier:
            self.lack = None

    def lacks(self, bearing: Bearing) -> bool:
        """Whether somebody holds what we could accept: something decided, or more under a ballot not given up."""
        bench = self._bench
        log = bench.log
        if bearing.decided > log.decided:
            return log.hash_at(bearing.decided) != bearing.decided_hash
        return bearing.head > log.head and bearing.head.ballot >= bench.promised

    def _ask_for_missing(self, identifier: int) -> None:
        """Not more often than once in the time that an answer may take; who learns has a way of its own."""
        bench = self._bench
        if bench.learns:
            self.lack = None
            return
        fellow = bench.company.fellows.get(identifier)
        if self._filled_ns > bench.now_ns - self._bench.settings.lack_ns // 2:
            self.lack = (identifier, bench.now_ns + self._bench.settings.lack_ns // 2)
            return
        self.lack = None
        if fellow is not None and bench.history:
            self._filled_ns = bench.now_ns
            bench.tell(fellow, Fill(bench.bearing()))

    def fill(self, fellow: SequencePeer, asker: Bearing) -> None:
        """As much as fits into one message: of what is undecided, all or nothing, so that it shows its ballot."""
        bench = self._bench
        log = bench.log
        before = log.hash_at(asker.decided)
        if asker.decided > log.decided:
            return
        if before is None:
            bench.tell(fellow, LockRefused(bench.bearing(), Why.FORGOTTEN))
            return
        chosen = _some(log, asker.decided, bench.settings.batch_bytes_max)
        bench.tell(fellow, EntryBatch(bench.bearing(), asker.decided, before, b"".join(chosen)))


def _some(log: SequenceLog, index: int, bytes_max: int) -> list[bytes]:
    """Decided entries behind an index, about so many bytes; if these are all, the undecided ones if there is room."""
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
